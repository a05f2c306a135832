"""What a YAML syntax error means, naming the usual mistakes as such."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

# What ends a line: for editors the first three, for YAML 1.1 all.
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

_ITEMS: Final = r" *(?:- +)*"
_KEY: Final = re.compile(_ITEMS + r"""(?P<key>"[^"]*"|'[^']*'|[^\s"'#:{[-][^:#]*):(?=\s|$)""")
_NO_BLANK: Final = re.compile(_ITEMS + r"[A-Za-z_][\w./-]*:(?!//)(?=\S)")
# What the two parsers say of a thing that no block goes on with.
_BLOCK_PROBLEMS: Final = (
    "did not find expected key",
    "did not find expected '-' indicator",
    "did not find expected <document start>",
    "expected <block end>",
    "expected '<document start>'",
)


class TreeError(Exception):
    """The text is not YAML, or not YAML of a kind that a configuration may use.

    Attributes:
        line: Counted from 1.
        column: Counted from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def error_at(message: str, event: Any) -> TreeError:
    """Return an error at the place of a parser's event."""
    mark = event.start_mark
    return TreeError(message, mark.line + 1, mark.column + 1)


def position_after(text: str) -> tuple[int, int]:
    """Return line and column, counted from 1, of what follows a text."""
    lines = _BREAK.split(text)
    return len(lines), len(lines[-1]) + 1


def explained(error: yaml.MarkedYAMLError, text: str) -> TreeError:
    """Return what a syntax error is, at its place, naming the usual mistakes as such."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = _BREAK.split(text)
    around = lines[line] if line < len(lines) else ""
    before, problem = around[:column], error.problem or error.context or "not YAML"
    if "${" in around and ("{" in before.replace("${", "") or "[" in before):
        message = 'inside { } and [ ] a template must be quoted: write "${…}"'
        return TreeError(message, line + 1, column + 1)
    if "\t" in around[: column + 1] and not around[: column + 1].strip():
        return TreeError("indented with a tab: YAML wants spaces", line + 1, column + 1)
    return (
        _quoted(error, problem, around, column)
        or _bracket(error, lines)
        or _key(error, problem, lines)
        or TreeError(_named(error, problem, around, column), line + 1, column + 1)
    )


def _named(error: yaml.MarkedYAMLError, problem: str, around: str, column: int) -> str:
    for character in around[max(0, column - 1) : column + 1]:
        if character in "%@`*&!|>":
            return f"a text that begins with {character!r} must be quoted ({problem})"
    if "mapping values are not allowed" in problem:
        return f"{problem}: a text with ': ' in it must be quoted"
    if around[:column].rstrip().endswith(("'", '"')) and problem.startswith(_BLOCK_PROBLEMS):
        return "something stands behind a closing quote: quote the whole, or close an earlier quote"
    if "unexpected ':'" in problem or (error.context and "flow" in error.context):
        where = f", {error.context}" if error.context else ""
        return f"{problem}{where}: quote texts with {{ }} [ ] or , in them"
    return f"not YAML: {problem}"


def _quoted(
    error: yaml.MarkedYAMLError, problem: str, around: str, column: int
) -> TreeError | None:
    """Explain a quote that is not closed, or a backslash that double quotes do not know."""
    opening = error.context_mark
    if opening is None or "quoted" not in (error.context or ""):
        return None
    if "end of stream" in problem:
        return TreeError("the quote is not closed", opening.line + 1, opening.column + 1)
    if "unknown escape" in problem and error.problem_mark is not None:
        # Of the two parsers one points at the backslash, the other behind it.
        at = column if around[column : column + 1] == "\\" else max(column - 1, 0)
        escape = around[at + 1 : at + 2]
        message = f"in double quotes write '\\\\{escape}', or use single quotes"
        return TreeError(message, error.problem_mark.line + 1, at + 1)
    return None


def _bracket(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> TreeError | None:
    """Explain what goes on behind a bracket: a text that begins with one."""
    context = error.context or ""
    mark = error.context_mark if context.startswith("while scanning") else error.problem_mark
    if mark is None or mark.line >= len(lines):
        return None
    before = lines[mark.line][: mark.column]
    if "flow" not in context:  # there, what a blank parts may lack its comma
        before = before.rstrip()
    if not before.endswith(("]", "}")):
        return None
    depth = 0
    for column in range(len(before) - 1, -1, -1):
        depth += (before[column] in "]}") - (before[column] in "[{")
        if depth == 0:
            message = f"a text that begins with {before[column]!r} must be quoted"
            return TreeError(message, mark.line + 1, column + 1)
    return None


def _key(error: yaml.MarkedYAMLError, problem: str, lines: Sequence[str]) -> TreeError | None:
    """Explain a key that is not where it should be, or not written as one."""
    mark, opening = error.problem_mark, error.context_mark
    if opening is not None and "find expected ':'" in problem and opening.line < len(lines):
        return _no_blank(lines, opening.line) or TreeError(
            "a key needs a ':' behind it", opening.line + 1, opening.column + 1
        )
    if mark is None or mark.line >= len(lines):
        return None
    if "mapping values are not allowed" in problem:
        return _text_goes_on(lines, mark.line, mark.column)
    if problem.startswith(_BLOCK_PROBLEMS) and not lines[mark.line][: mark.column].strip():
        return _misplaced(lines, mark.line, opening.line if opening is not None else 0)
    return None


def _no_blank(lines: Sequence[str], line: int) -> TreeError | None:
    """Find a ``key:value`` on a line, which is one text to YAML."""
    if _KEY.match(lines[line]) or not (found := _NO_BLANK.match(lines[line])):
        return None
    return TreeError("a blank is missing after ':'", line + 1, found.end())


def _text_goes_on(lines: Sequence[str], line: int, column: int) -> TreeError | None:
    """Explain a key that to YAML is part of the text that begins on a line above it."""
    own = _KEY.match(lines[line])
    if own is None or own.end() != column + 1:
        return None
    for above in range(line - 1, -1, -1):
        if found := _no_blank(lines, above):
            return found
        if key := _KEY.match(lines[above]):
            message = f"indented differently from `{key['key']}` in line {above + 1}"
            return TreeError(message, line + 1, own.start("key") + 1)
        if lines[above].lstrip().startswith("- "):
            message = f"no key can follow the text in line {above + 1}: is a ':' missing there?"
            return TreeError(message, line + 1, own.start("key") + 1)
    return None


def _misplaced(lines: Sequence[str], line: int, first: int) -> TreeError | None:
    """Explain a key or list item that is in no column of those above it, from line ``first``."""
    column = len(lines[line]) - len(lines[line].lstrip(" "))
    is_item = lines[line][column : column + 2].rstrip() == "-"
    if not is_item and not _KEY.match(lines[line]):
        return None
    nearest, message = len(lines[line]) + 1, ""
    for above in range(first, line):
        for other, name in _beginnings(lines[above], items=is_item):
            distance = abs(other - column)
            if 0 < distance <= nearest:
                nearest = distance
                message = f"indented differently from {name} in line {above + 1}"
    return TreeError(message, line + 1, column + 1) if message else None


def _beginnings(line: str, *, items: bool) -> Iterator[tuple[int, str]]:
    """Yield the columns, counted from 0, where list items of a line begin, or its key."""
    if items:
        for column in range(len(line) - len(line.lstrip(" -"))):
            if line[column] == "-" and line[column + 1 : column + 2] in ("", " "):
                yield column, "the '-'"
    elif key := _KEY.match(line):
        yield key.start("key"), f"`{key['key']}`"
