"""YAML syntax errors, with the common mistakes explained."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from devhost.loading.brackets import bracket_mistake, extra_bracket
from devhost.loading.characters import odd_character
from devhost.loading.loaded import SIZE_MAX
from devhost.loading.syntax_error import TreeError

# Line breaks: editors know the first three, YAML 1.1 knows all.
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

_ITEMS: Final = r" *(?:- +)*"
_KEY: Final = re.compile(_ITEMS + r"""(?P<key>"[^"]*"|'[^']*'|[^\s"'#:{[-][^:#]*):(?=\s|$)""")
_NO_SPACE: Final = re.compile(_ITEMS + r"[A-Za-z_][\w./-]*:(?!//)(?=\S)")
_WORD: Final = re.compile(r" *(?P<word>[A-Za-z_][\w-]*|//|/\*)(?=\s|$)")  # not a list item
_DASH: Final = re.compile(r" *-(?=[A-Za-z_/][^ ]*:(?:\s|$))")
_FOREIGN: Final = re.compile(
    r"\s*(?:(?P<template>\{\{-? *+(?!\.)[^}]*\}\}\s*$|\{%)|(?P<fence>```))"
    r"|(?P<conflict><{7} |={7}$|>{7} )"
)
_DASH_LINES: Final = 3  # before the one where the parser stopped
_SCANNED_MAX: Final = 100_000  # characters
_ODD_LINES: Final = 2  # before the one where the parser stopped
# What PyYAML's two parsers report for a line that does not fit into its block.
_BLOCK_PROBLEMS: Final = (
    "did not find expected key",
    "did not find expected '-' indicator",
    "did not find expected <document start>",
    "expected <block end>",
    "expected '<document start>'",
)


def error_at(message: str, event: Any) -> TreeError:
    """Return an error at the position of a parser event."""
    mark = event.start_mark
    return TreeError(message, mark.line + 1, mark.column + 1)


def position_after(text: str) -> tuple[int, int]:
    """Return the line and column, counted from 1, of what follows a text."""
    lines = _BREAK.split(text)
    return len(lines), len(lines[-1]) + 1


def decoded(raw: bytes) -> str:
    """Return the text of a file, without a byte order mark.

    Raises:
        TreeError: It is larger than a ConfigMap can be, or not UTF-8.
    """
    if len(raw) > SIZE_MAX:
        raise TreeError(f"larger than {SIZE_MAX >> 10} KiB, the limit of a ConfigMap", 1, 1)
    begin = raw[:4]
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff") or begin[:2].count(0) == begin[2:].count(0) == 1:
        raise TreeError("UTF-16, not UTF-8; save it as UTF-8", 1, 1)
    if begin[:2] == b"\x1f\x8b":
        raise TreeError("compressed (gzip), not YAML", 1, 1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()  # without a byte order mark
        raise TreeError("not UTF-8; save it as UTF-8", *position_after(before)) from None


def lines(text: str) -> list[str]:
    """Return the lines of a text, as the parser counts them."""
    return _BREAK.split(text)


def explained(error: yaml.MarkedYAMLError, text: str) -> TreeError:
    """Return a syntax error with its position, and with common mistakes explained."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = _BREAK.split(text)
    around = lines[line] if line < len(lines) else ""
    found = _foreign(lines) or _odd(lines, line) or _open_quote(text, lines)
    if found := found or _flow(error, lines):
        return found
    before, problem = around[:column], error.problem or error.context or "invalid YAML"
    if "${" in around and ("{" in before.replace("${", "") or "[" in before):
        message = 'inside { } and [ ] quote a template: "${…}"'
        return TreeError(message, line + 1, column + 1)
    if "\t" in around[: column + 1] and not around[: column + 1].strip(" \t-"):
        what = "a tab after '-'" if "-" in before else "indented with a tab"
        return TreeError(f"{what}; use spaces", line + 1, column + 1)
    return (
        _quoted(error, problem, around, column)
        or _bracket(error, lines)
        or _key(error, problem, lines)
        or TreeError(_named(error, problem, around, column), line + 1, column + 1)
    )


def _foreign(lines: Sequence[str]) -> TreeError | None:
    """Explain a line that is part of another language: a template, git, Markdown."""
    for number, line in enumerate(lines, 1):
        found = _FOREIGN.match(line)
        if found is None:
            continue
        if found["template"]:
            message = "a template, not YAML; render it first, such as by 'helm template'"
        elif found["conflict"]:
            message = "an unresolved merge conflict"
        else:
            message = "not part of the file; remove it"
        return TreeError(message, number, found.start(found.lastgroup or 0) + 1)
    return None


def _odd(lines: Sequence[str], last: int) -> TreeError | None:
    """Explain a character that looks like another, in the lines where the parser stopped."""
    for number in range(max(last - _ODD_LINES, 0), last + 1):
        if number < len(lines) and (found := odd_character(lines[number])):
            return TreeError(found[1], number + 1, found[0] + 1)
    return None


def _open_quote(text: str, lines: Sequence[str]) -> TreeError | None:
    """Explain a quote that closes at the opening quote of a later string."""
    last = None
    if len(text) > _SCANNED_MAX:
        return None
    try:
        for token in yaml.scan(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(token, yaml.ScalarToken) and token.style in ("'", '"'):
                last = token
    except yaml.MarkedYAMLError:
        pass
    if last is None or last.start_mark.line == last.end_mark.line:
        return None
    after = lines[last.end_mark.line][last.end_mark.column :]
    if not after.strip() or after.lstrip().startswith(("#", ",", ":", "]", "}")):
        return None
    return TreeError("unclosed quote", last.start_mark.line + 1, last.start_mark.column + 1)


def _flow(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> TreeError | None:
    """Explain brackets that do not fit."""
    opening, mark, context = error.context_mark, error.problem_mark, error.context or ""
    if mark is None:
        return None
    if opening is not None and "flow" in context:
        place = opening.line, opening.column
        return bracket_mistake(lines, place, (mark.line, mark.column))
    if mark.line < len(lines) and (found := extra_bracket(lines[mark.line], mark.column)):
        return TreeError(str(found), mark.line + 1, found.column)
    return None


def _named(error: yaml.MarkedYAMLError, problem: str, around: str, column: int) -> str:
    for character in around[max(0, column - 1) : column + 1]:
        if character in "%@`*&!|>":
            return f"quote a string that begins with {character!r} ({problem})"
    if "block sequence entries are not allowed" in problem:
        return "begin a list on a line of its own, or write it in [ ]"
    if "mapping values are not allowed" in problem:
        return f"{problem}; quote a string that contains ': '"
    if around[:column].rstrip().endswith(("'", '"')) and problem.startswith(_BLOCK_PROBLEMS):
        return "text after a closing quote; quote the whole value, or close an earlier quote"
    if "unexpected ':'" in problem or (error.context and "flow" in error.context):
        where = f", {error.context}" if error.context else ""
        return f"{problem}{where}; quote strings that contain {{ }} [ ] or ,"
    return f"invalid YAML: {problem}"


def _quoted(
    error: yaml.MarkedYAMLError, problem: str, around: str, column: int
) -> TreeError | None:
    """Explain a quote that is not closed, or an invalid escape in double quotes."""
    opening = error.context_mark
    if opening is None or "quoted" not in (error.context or ""):
        return None
    if "end of stream" in problem:
        return TreeError("unclosed quote", opening.line + 1, opening.column + 1)
    if "hexdecimal" in problem or "hexadecimal" in problem:  # libyaml spells it so
        at = around.rfind("\\", 0, column + 1)
        message = "invalid escape; write '\\\\' for a backslash, or use single quotes"
        return TreeError(message, opening.line + 1, at + 1)
    if "unknown escape" in problem and error.problem_mark is not None:
        # One of PyYAML's parsers points at the backslash, the other after it.
        at = column if around[column : column + 1] == "\\" else max(column - 1, 0)
        escape = around[at + 1 : at + 2]
        message = f"invalid escape '\\{escape}'; write '\\\\{escape}' or use single quotes"
        return TreeError(message, error.problem_mark.line + 1, at + 1)
    return None


def _bracket(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> TreeError | None:
    """Explain text after a closing bracket: a string that begins with a bracket."""
    context = error.context or ""
    mark = error.context_mark if context.startswith("while scanning") else error.problem_mark
    if mark is None or mark.line >= len(lines):
        return None
    before = lines[mark.line][: mark.column]
    if "flow" not in context:  # in a flow collection, what follows a space may lack its comma
        before = before.rstrip()
    if not before.endswith(("]", "}")):
        return None
    depth = 0
    for column in range(len(before) - 1, -1, -1):
        depth += (before[column] in "]}") - (before[column] in "[{")
        if depth == 0:
            after = lines[mark.line][len(before) :].lstrip()
            if after.startswith(("//", "/*")):
                return TreeError("a comment begins with '#'", mark.line + 1, mark.column + 1)
            message = f"quote a string that begins with {before[column]!r}"
            if after.startswith((",", ";")):
                message = f"remove the {after[0]!r} after {before[-1]!r}"
            return TreeError(message, mark.line + 1, column + 1)
    return None


def _key(error: yaml.MarkedYAMLError, problem: str, lines: Sequence[str]) -> TreeError | None:
    """Explain a key that is misplaced or misspelt."""
    mark, opening = error.problem_mark, error.context_mark
    if opening is not None and "find expected ':'" in problem and opening.line < len(lines):
        return _no_space(lines, opening.line) or TreeError(
            "missing ':' after a key", opening.line + 1, opening.column + 1
        )
    if mark is None or mark.line >= len(lines):
        return None
    for line in range(max(mark.line - _DASH_LINES, 0), mark.line + 1):
        if found := _DASH.match(lines[line]):
            return TreeError("missing space after '-'", line + 1, found.end())
    if "mapping values are not allowed" in problem:
        return _continued_string(lines, mark.line, mark.column)
    if problem.startswith(_BLOCK_PROBLEMS) and not lines[mark.line][: mark.column].strip():
        return _misplaced(lines, mark.line, opening.line if opening is not None else 0)
    return None


def _no_space(lines: Sequence[str], line: int) -> TreeError | None:
    """Find a ``key:value`` on a line, which YAML reads as one string."""
    if _KEY.match(lines[line]) or not (found := _NO_SPACE.match(lines[line])):
        return None
    return TreeError("missing space after ':'", line + 1, found.end())


def _continued_string(lines: Sequence[str], line: int, column: int) -> TreeError | None:
    """Explain a key that YAML reads as the continuation of a string above it."""
    own = _KEY.match(lines[line])
    if own is None or own.end() != column + 1:
        return None
    for above in range(line - 1, -1, -1):
        if found := _no_space(lines, above):
            return found
        if key := _KEY.match(lines[above]):
            message = f"indentation differs from '{key['key']}' on line {above + 1}"
            return TreeError(message, line + 1, own.start("key") + 1)
        if word := _WORD.match(lines[above]):
            at = word.start("word") + 1
            if word["word"].startswith(("//", "/*")):
                return TreeError("a comment begins with '#'", above + 1, at)
            return TreeError(f"missing ':' after '{word['word']}'", above + 1, at)
        if lines[above].lstrip().startswith("- "):
            message = f"unexpected key after a string on line {above + 1}; missing ':' there?"
            return TreeError(message, line + 1, own.start("key") + 1)
    return None


def _misplaced(lines: Sequence[str], line: int, first: int) -> TreeError | None:
    """Explain a key or list item that is not aligned with those above it."""
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
                message = f"indentation differs from {name} on line {above + 1}"
    return TreeError(message, line + 1, column + 1) if message else None


def _beginnings(line: str, *, items: bool) -> Iterator[tuple[int, str]]:
    """Yield the columns, counted from 0, where the list items of a line, or its key, begin."""
    if items:
        for column in range(len(line) - len(line.lstrip(" -"))):
            if line[column] == "-" and line[column + 1 : column + 2] in ("", " "):
                yield column, "the '-'"
    elif key := _KEY.match(line):
        yield key.start("key"), f"'{key['key']}'"
