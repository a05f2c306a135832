"""YAML syntax errors, with the most common mistakes explained."""

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from devhost.loading.loaded import SIZE_MAX

# Line breaks: editors know the first three, YAML 1.1 knows all.
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

_KEY: Final = re.compile(r"(?P<indent> *(?:- +)*)[\"']?(?P<key>[\w./-]+)[\"']?:(?=\s|$)")
_NO_SPACE: Final = re.compile(r" *(?:- +)*[A-Za-z_][\w./-]*:(?!//)(?=[^\s/'\"])")
# A string that begins with a bracket, with text after the one that closes it.
_BRACKET: Final = re.compile(r"(?:: |- |[\[,] ?)([\[{][^\[\]{}]*[\]}])[^\s,\]}:]")
_SPECIAL: Final = re.compile(r"\s*([%@`*&])")
_ODD: Final = re.compile(
    "[\u00a0\u2007\u200b\u202f\ufeff\u2018-\u201f\u00ab\u00bb\u2010-\u2015\u2022\u2212\uff1a]"
)
# Lines of another language, wherever they are.
_FOREIGN: Final = (
    (
        re.compile(r"\s*(?:\{\{-? *+(?!\.)[^}]*\}\}\s*$|\{%)"),
        "a template, not YAML; render it first, such as by 'helm template'",
    ),
    (re.compile(r"<{7} |={7}$|>{7} "), "an unresolved merge conflict"),
    (re.compile("```"), "not part of the file; remove it"),
)
# What makes of the rest of the file, or of the next line, something else.
_MISTAKES: Final = (
    (re.compile(r"[ -]*\t"), "indented with a tab; use spaces"),
    (re.compile(r" *-(?=[A-Za-z_/][^ ]*:(?:\s|$))"), "missing space after '-'"),
    (_NO_SPACE, "missing space after ':'"),
    (re.compile(r" *[A-Za-z_][\w-]*\s*$"), "missing ':' after a key"),
)
_HINTS: Final = (
    ("mapping values are not allowed", "quote a string that contains ': '"),
    ("block sequence entries", "begin a list on a line of its own, or write it in [ ]"),
    ("cannot start any token", "quote a string that begins with a special character"),
)
_CLOSING: Final = {"[": "]", "{": "}"}
_LINES: Final = 3  # before the one where the parser stopped


class TreeError(Exception):
    """The text is not YAML, or uses YAML that a configuration may not use.

    Attributes:
        line: Counted from 1.
        column: Counted from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def error_at(message: str, marked: Any) -> TreeError:
    """Return an error at the position of a parser's event or node."""
    mark = marked.start_mark
    return TreeError(message, mark.line + 1, mark.column + 1)


def lines(text: str) -> list[str]:
    """Return the lines of a text, as the parser counts them."""
    return _BREAK.split(text)


def position_after(text: str) -> tuple[int, int]:
    """Return the line and column, counted from 1, of what follows a text."""
    found = lines(text)
    return len(found), len(found[-1]) + 1


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


def odd_character(line: str) -> tuple[int, str] | None:
    """Return where a line has a character that YAML does not take for what it looks like."""
    found = _ODD.search(line.split(" #", maxsplit=1)[0])
    if found is None:
        return None
    character = f"{found[0]} (U+{ord(found[0]):04X})"
    return found.start(), f"{character} looks like a quote, dash, colon or space, but is none"


def explained(error: yaml.MarkedYAMLError, text: str) -> TreeError:
    """Return a syntax error with its position, and with common mistakes explained."""
    mark, opening = error.problem_mark or error.context_mark, error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    every, context = lines(text), error.context or ""
    problem = error.problem or context or "invalid YAML"
    around = every[line] if line < len(every) else ""
    if found := _foreign(every):
        return found
    if opening and "quoted" in context and line > opening.line:
        return TreeError("unclosed quote", opening.line + 1, opening.column + 1)
    if found := _unquoted(around, line, column):
        return found
    if opening and "flow" in context and "expected ','" in problem:
        return _in_brackets(every, opening, line, column)
    if "escape" in problem or "decimal number" in problem:
        message = "invalid escape; write '\\\\' for a backslash, or use single quotes"
        return TreeError(message, line + 1, around.rfind("\\", 0, column + 1) + 1)
    if opening and "expected ':'" in problem and not _NO_SPACE.match(every[opening.line]):
        return TreeError("missing ':' after a key", opening.line + 1, opening.column + 1)
    if found := _mistake(every, line) or _misplaced(every, line, column, problem):
        return found
    hint = next((f"; {one}" for words, one in _HINTS if words in problem), "")
    if around[:column].rstrip().endswith(("'", '"')):
        hint = "; quote the whole value, or close an earlier quote"
    if context:
        problem += f", {context}" + (f" on line {opening.line + 1}" if opening else "")
    return TreeError(f"invalid YAML: {problem}{hint}", line + 1, column + 1)


def _foreign(every: Sequence[str]) -> TreeError | None:
    """Find a line of another language: a template, git, Markdown."""
    for number, line in enumerate(every, 1):
        for pattern, message in _FOREIGN:
            if pattern.match(line):
                return TreeError(message, number, len(line) - len(line.lstrip()) + 1)
    return None


def _unquoted(around: str, line: int, column: int) -> TreeError | None:
    """Explain a string that needs quotes, on the line where the parser stopped."""
    before, template, _ = around.partition("${")
    quoted = before.count("'") % 2 or before.count('"') % 2
    if template and not quoted and ("[" in before or "{" in before):
        return TreeError('inside { } and [ ] quote a template: "${…}"', line + 1, column + 1)
    if string := _BRACKET.search(around) or _SPECIAL.match(around, column):
        message = f"quote a string that begins with '{around[string.start(1)]}'"
        return TreeError(message, line + 1, string.start(1) + 1)
    return None


def _in_brackets(every: Sequence[str], opening: yaml.Mark, line: int, column: int) -> TreeError:
    """Tell a bracket that is not closed from a comma that is missing, by counting brackets."""
    rest = "\n".join(every[opening.line :])[opening.column :]
    own = rest[:1]
    if own in _CLOSING and rest.count(own) > rest.count(_CLOSING[own]):
        return TreeError(f"this '{own}' is not closed", opening.line + 1, opening.column + 1)
    return TreeError("missing ',' before this", line + 1, column + 1)


def _mistake(every: Sequence[str], line: int) -> TreeError | None:
    """Find what has misled the parser, on the line where it stopped or shortly before."""
    for number in range(min(line, len(every) - 1), max(line - _LINES, 0) - 1, -1):
        if odd := odd_character(every[number]):
            return TreeError(odd[1], number + 1, odd[0] + 1)
        for pattern, message in _MISTAKES:
            if found := pattern.match(every[number]):
                return TreeError(message, number + 1, max(found.end(), 1))
    return None


def _misplaced(every: Sequence[str], line: int, column: int, problem: str) -> TreeError | None:
    """Explain a key that is not aligned with the one above it."""
    own = _KEY.match(every[line]) if line < len(every) else None
    if own is None or (own.end() <= column and "mapping values" not in problem):
        return None
    for above in range(line - 1, -1, -1):
        other = _KEY.match(every[above])
        if other and len(other["indent"]) != len(own["indent"]):
            message = f"indentation differs from '{other['key']}' on line {above + 1}"
            begin = len(every[line]) - len(every[line].lstrip(" "))
            return TreeError(message, line + 1, begin + 1)
    return None
