"""Brackets and braces that do not fit, and commas that are missing between them."""

from collections.abc import Iterator, Sequence
from typing import Final

from devhost.loading.syntax_error import TreeError

_CLOSING: Final = {"[": "]", "{": "}"}
_LINES_MAX: Final = 1000


def bracket_mistake(
    lines: Sequence[str], opening: tuple[int, int], problem: tuple[int, int]
) -> TreeError | None:
    """Explain what is wrong in the collection that begins at ``opening``.

    Args:
        lines: The lines of the text.
        opening: The line and column of its bracket, counted from 0.
        problem: Where the parser stopped.
    """
    line, column = opening
    own = lines[line][column : column + 1] if line < len(lines) else ""
    if own not in _CLOSING:
        return None
    unclosed: list[str] = []
    for at, index, character in _brackets(lines, line, column):
        if character in _CLOSING:
            unclosed.append(character)
        elif _CLOSING[unclosed[-1]] != character:
            message = f"'{character}' does not close the '{unclosed[-1]}' before it"
            return TreeError(message, at + 1, index + 1)
        else:
            unclosed.pop()
            if not unclosed:
                return _comma(lines, opening, problem)
    return TreeError(f"this '{own}' is not closed", line + 1, column + 1)


def _brackets(lines: Sequence[str], line: int, column: int) -> Iterator[tuple[int, int, str]]:
    """Yield the brackets outside of quotes and comments."""
    quote = ""
    for at in range(line, min(len(lines), line + _LINES_MAX)):
        text = lines[at]
        for index in range(column if at == line else 0, len(text)):
            character, before = text[index], text[index - 1 : index]
            if quote:
                quote = "" if character == quote else quote
            elif character in "\"'" and not before.isalnum():
                quote = character
            elif character == "#" and before in ("", " "):
                break
            elif character in "[]{}":
                yield at, index, character


def _comma(
    lines: Sequence[str], opening: tuple[int, int], problem: tuple[int, int]
) -> TreeError | None:
    """Explain a missing comma before a line in brackets, or a comment of another language."""
    line, column = problem
    for at in range(opening[0], min(line + 1, len(lines))):
        if lines[at].lstrip().startswith(("//", "/*")):
            begin = len(lines[at]) - len(lines[at].lstrip()) + 1
            return TreeError("a comment begins with '#'", at + 1, begin)
    if line > opening[0] and line < len(lines) and not lines[line][:column].strip():
        return TreeError("missing ',' before this line", line + 1, column + 1)
    before = lines[line][:column] if line < len(lines) else ""
    if before.endswith(" ") and before.rstrip().endswith(("]", "}", '"', "'")):
        return TreeError("missing ',' before this", line + 1, column + 1)
    return None


def extra_bracket(line: str, column: int) -> TreeError | None:
    """Explain a closing bracket without an opening one; its line number is not set."""
    rest = line[column:].split(" #", maxsplit=1)[0].strip()
    if rest and not rest.strip("]}") and line[:column].rstrip().endswith(("]", "}")):
        index = column + len(line[column:]) - len(line[column:].lstrip())
        return TreeError(f"unexpected '{rest[0]}'", 0, index + 1)
    return None
