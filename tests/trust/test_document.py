"""docs/security.md: it has every flag that allows something, and every bound with its value."""

from typing import Final

from devhost.cli.validate_command import command
from devhost.model import limits
from tools import bounds

TEXT: Final = bounds.DOCUMENT.read_text(encoding="utf-8")


def test_the_bounds_are_those_of_the_code() -> None:
    assert bounds.written(TEXT) == TEXT, "run python -m tools.bounds"
    for name in vars(limits):
        assert not name.isupper() or f"`{name}`" in TEXT


def test_every_flag_is_described() -> None:
    """With what it gives away, and the chart's value."""
    options = [one for one in command.params if str(one.name).startswith("allow_")]
    rows = [line for line in TEXT.splitlines() if line.startswith("| `--allow-")]
    assert len(options) > 3
    for flag in (one.opts[0] for one in options):
        assert [row for row in rows if flag in row and "`allow." in row and row.count(" | ") == 2]
