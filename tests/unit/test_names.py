"""The name rules of Kubernetes, the container runtimes and CDI; their messages: golden/values.txt."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from devhost.model import names

CASES: Final = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text())
# A text that is often a resource name, or nearly one.
NEARLY_NAMES: Final = st.one_of(
    st.text(alphabet="aZ0.-_/", max_size=12),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(("", "requests.", "a.", "kubernetes.io", "x", "-")),
        st.sampled_from(("", "/", "//")),
        st.sampled_from(("", "a", "A_b", "kubernetes.io", "kubernetes.io/a", "b.", "a" * 64)),
    ),
)


@pytest.mark.parametrize("rule", [rule for rule in CASES if rule != "natural"])
def test_name_is_legal_or_not(rule: str) -> None:
    problem: Callable[[str], str | None] = getattr(names, rule)
    for kind in ("legal", "illegal"):
        for text in CASES[rule][kind]:
            name = re.sub(r"<(.)\*(\d+)>", lambda part: part[1] * int(part[2]), text)
            assert (problem(name) is None) == (kind == "legal"), name


@given(NEARLY_NAMES)
@example("mykubernetes.io/a")
@example("requests.a/a")
@example("a" * 244 + "/b")
@example("a" * 245 + "/b")
@example("a.b/" + "c" * 64)
def test_resource_name_pattern_of_schema_is_the_rule(name: str) -> None:
    matches = re.search(names.RESOURCE_NAME_PATTERN, name) is not None
    matches = matches and re.search(names.UNFIT_NAME_PATTERN, name) is None
    assert matches == (names.resource_name_problem(name) is None)


@given(st.lists(st.text(alphabet="ab\udcff", min_size=4, max_size=70), unique=True))
def test_device_ids_of_long_names_are_distinct_and_readable(ends: list[str]) -> None:
    ids = [names.device_id("x" * 60 + end) for end in ends]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == names.DEVICE_ID_MAX == 63 and i.startswith("x" * 52) for i in ids)


@pytest.mark.parametrize(("given_order", "natural_order"), CASES["natural"])
def test_natural_order_is_by_numbers(given_order: list[str], natural_order: list[str]) -> None:
    assert names.natural(given_order) == natural_order


@given(st.lists(st.text(alphabet="a01.²", max_size=6)), st.randoms())
def test_natural_order_of_any_order_is_the_same(texts: list[str], random: object) -> None:
    shuffled = list(texts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert names.natural(shuffled) == names.natural(texts)
    assert sorted(names.natural(texts)) == sorted(texts)


def test_sorting_long_names_keeps_no_memory() -> None:
    """Paths of 4096 bytes, of ever new files of a tenant, would fill the memory of the process."""
    long = [f"{number}{'x' * 4_000}" for number in range(3_000)]
    names.natural(long)
    tracemalloc.start()
    try:
        names.natural(f"{name}y" for name in long)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
