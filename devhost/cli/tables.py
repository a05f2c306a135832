"""Tables as lines: one for each row for programs, folded to the width of a terminal for people.

No cell is ever cut. A word that is wider than the terminal is left to the terminal, so that an ID
or a path can be copied.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

_GAP: Final = "   "
_LEAST: Final = 24  # columns for a cell of several lines
_REPEATED: Final = "(as above)"
_NOTHING: Final = "-"

Row = Sequence[str]


def plain(headings: Row, rows: Sequence[Row]) -> list[str]:
    """Return the heading and one line for each row, with something in every column but the last."""
    return _aligned([headings, *map(_filled, rows)])


def folded(headings: Row, rows: Sequence[Row], width: int) -> list[str]:
    """Return the lines of a table for a terminal; what the row above says is not repeated.

    Rows that are too wide fold their last cell, or become blocks with a line for each cell.
    """
    above = [[""] * len(headings), *rows]
    rows = [_shortened(_filled(row), _filled(last)) for last, row in pairwise(above)]
    lines = _aligned([headings, *rows])
    if max(map(cells, lines)) <= width:
        return lines
    natural = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
    indent = sum(natural[:-1]) + len(_GAP) * (len(natural) - 1)
    words = max((cells(word) for row in rows for word in row[-1].split(" ")), default=0)
    if width - indent >= max(_LEAST, words):
        return _aligned([headings, *(line for row in rows for line in _split(row, width - indent))])
    return [line for row in rows for line in _block(headings, row, width)]


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of some width; a word that is wider has a line of its own."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cells(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _filled(row: Row) -> Row:
    return [*(cell or _NOTHING for cell in row[:-1]), row[-1]]


def _shortened(row: Row, above: Row) -> Row:
    """Return a row without what the row above has said."""
    if row[0] and row[0] == above[0]:
        same = [mine == other for mine, other in zip(row, above, strict=True)]
        first = same.index(False) if False in same else len(same)
        return ["" if index < first else cell for index, cell in enumerate(row)]
    if row[-1] == above[-1] and len(row[-1]) > _LEAST:
        return [*row[:-1], _REPEATED]
    return row


def _aligned(lines: Sequence[Row]) -> list[str]:
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    return [
        _GAP.join(
            cell + " " * (width - cells(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _split(row: Row, width: int) -> Iterator[Row]:
    """Yield a row, and rows with nothing but the rest of its last cell."""
    first, *more = wrap(row[-1], width)
    yield [*row[:-1], first]
    yield from ([""] * (len(row) - 1) + [line] for line in more)


def _block(headings: Row, row: Row, width: int) -> Iterator[str]:
    """Yield the first cell, and each other one with its heading."""
    if row[0]:
        yield row[0]
    label = max(map(cells, headings[1:]), default=0)
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        if cell not in ("", _NOTHING):
            first, *more = wrap(cell, width - label - 4)
            yield f"  {heading.ljust(label)}  {first}"
            yield from (f"{' ' * (label + 4)}{line}" for line in more)
