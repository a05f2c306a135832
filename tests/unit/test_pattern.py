"""RE2 patterns, matched as a whole; most messages are in golden/sources.txt."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml

from devhost.model import pattern
from devhost.model.pattern import PatternError

CASES: Final = yaml.safe_load(Path(__file__).with_name("pattern.yaml").read_text())
LONG: Final = ("(a*)*(a*)*b", "a" * 10_000, None)  # no backtracking


@pytest.mark.parametrize(("text", "subject", "groups"), [*CASES["matches"], LONG])
def test_pattern_matches_whole_text(text: str, subject: str, groups: dict[str, str] | None) -> None:
    assert pattern.fullmatch(text, subject) == groups


def test_pattern_groups_are_in_its_order() -> None:
    assert pattern.group_names(r"(?P<z>a)(b)(?P<a>c)(?P<m>d)") == ("z", "a", "m")


@pytest.mark.parametrize(("text", "says"), [*CASES["refused"], ("\\pL" * 333, "pattern too large")])
def test_pattern_refused_by_re2_is_explained(text: str, says: str) -> None:
    with pytest.raises(PatternError) as caught:
        pattern.group_names(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("problem_of", "text"),
    [
        (pattern.directory_problem, "/{" + "," * 1_000_000),
        (pattern.directory_problem, "/{" + "." * 1_000_000),
        (pattern.dev_problem, "[" * 1_000_000),
    ],
)
def test_long_text_takes_linear_time(problem_of: Callable[[str], str | None], text: str) -> None:
    """Else an edit stops the process for hours: the search lets no other thread run."""
    assert problem_of(text) is None
