"""Tables as kubectl prints them: aligned columns, a line for each row, nothing folded or cut."""

import unicodedata
from collections.abc import Sequence
from typing import Final

_GAP: Final = "   "
_NOTHING: Final = "-"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with something in every column but the last."""
    lines = [headings, *([*(cell or _NOTHING for cell in row[:-1]), row[-1]] for row in rows)]
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    return [
        _GAP.join(
            cell + " " * (width - cells(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(one) in ("Mn", "Me") else 1 + _is_wide(one) for one in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")
