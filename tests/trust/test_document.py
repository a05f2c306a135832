"""docs/security.md: it has every flag that allows something, and every bound with its value."""

from typing import Final

from deploy import bounds
from devhost import limits
from devhost.cli.options import _TRUST_OPTIONS

TEXT: Final = bounds.DOCUMENT.read_text(encoding="utf-8")


def test_the_bounds_are_those_of_the_code() -> None:
    assert bounds.written(TEXT) == TEXT, "run python -m deploy.bounds"
    for name in vars(limits):
        assert not name.isupper() or f"`{name}`" in TEXT


def test_every_flag_is_described() -> None:
    """With what it gives away, and the chart's value."""

    def command() -> None:
        """Take the options."""

    for option in _TRUST_OPTIONS:
        option(command)
    flags = [option.opts[0] for option in command.__dict__["__click_params__"]]
    rows = [line for line in TEXT.splitlines() if line.startswith("| `--allow-")]
    assert "--allow-path" in flags
    for flag in flags:
        assert [row for row in rows if flag in row and "`allow." in row and row.count(" | ") == 2]
