"""YAML syntax errors, with the most common mistakes explained."""

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

SIZE_MAX: Final = 1 << 20  # the limit of a ConfigMap (1 MiB, Kubernetes)

# Line breaks: editors know the first three, YAML 1.1 knows all.
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_KEY: Final = re.compile(r"(?P<indent> *(?:- +)*)[\"']?(?P<key>[\w./-]+)[\"']?:(?=\s|$)")
_NO_SPACE: Final = re.compile(r" *(?:- +)*[A-Za-z_][\w./-]*(?=:(?!//)[^\s/'\"])")
# A string that begins with a bracket, with text after the one that closes it; a special character.
_BRACKET: Final = re.compile(r"(?:: |- |[\[,] ?)([\[{][^\[\]{}]*[\]}])[^\s,\]}:]")
_INNER_BRACKET: Final = re.compile(r"[\w)*?.+-]([\[{])")
_SPECIAL: Final = re.compile(r"\s*([%@`*&])")
_UNDEFINED: Final = re.compile(r"undefined alias '([\w-]+)'")
_FIRST_KEYS: Final = "name|directory|glob|dev|static|usb|pci|sysfs|hostPath|run|mode|waitFor"
LOOKALIKE: Final = re.compile("[\u00a0\u200b\ufeff\u2013\u2014\u2018\u2019\u201c\u201d]")
LOOKS_ALIKE: Final = "a character that looks like a space, dash or quote, but is another one"
# Mistakes that make of the rest of the file, or of the next line, something else.
_MISTAKES: Final = (
    (
        re.compile(r"\s*(?=\{\{-? *+(?!\.)[^}]*\}\}\s*$|\{%)|[^#]*?(?=\{\{-)"),
        "a template, not YAML; render it first, such as by 'helm template'",
    ),
    (re.compile(r"(?=<{7} |={7}$|>{7} )"), "an unresolved merge conflict"),
    (re.compile(f"[^#]*?(?={LOOKALIKE.pattern})"), LOOKS_ALIKE),
    (re.compile(r"[ -]*(?=\t)"), "indented with a tab; use spaces"),
    (re.compile(r" *(?=-[A-Za-z_/][^ ]*:(?:\s|$))"), "missing space after '-'"),
    (_NO_SPACE, "missing space after ':'"),
    (re.compile(r" *(?=[A-Za-z_][\w-]*\s*$)"), "missing ':' after a key"),
    (re.compile(rf" *- +(?=(?:{_FIRST_KEYS}) +(?:[\[{{]|[^\s:]+\s*$))"), "missing ':' after a key"),
)
_LINES: Final = 3  # before the one where the parser stopped


class TreeError(Exception):
    """The text is not YAML, or uses YAML that a configuration may not use."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def place(marked: Any) -> tuple[int, int]:
    """Return line and column of a parser's event or node, counted from 1."""
    return marked.start_mark.line + 1, marked.start_mark.column + 1


def error_at(message: str, marked: Any) -> TreeError:
    """Return an error at the position of a parser's event or node."""
    return TreeError(message, *place(marked))


def lines(text: str) -> list[str]:
    """Return the lines of a text, as the parser counts them."""
    return _BREAK.split(text)


def position_after(text: str) -> tuple[int, int]:
    """Return the line and column, counted from 1, of what follows a text."""
    before = lines(text)
    return len(before), len(before[-1]) + 1


def decode(raw: bytes) -> str:
    """Return the text of a file, without a byte order mark."""
    if len(raw) > SIZE_MAX:
        raise TreeError(f"larger than {SIZE_MAX >> 10} KiB, the limit of a ConfigMap", 1, 1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()  # without a byte order mark
        raise TreeError("not UTF-8; save it as UTF-8", *position_after(before)) from None


def explain(error: yaml.MarkedYAMLError, text: str) -> TreeError:
    """Return a syntax error with its position, and with common mistakes explained."""
    mark, opening = error.problem_mark or error.context_mark, error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    all_lines, context = lines(text), error.context or ""
    problem = error.problem or context or "invalid YAML"
    around = all_lines[line] if line < len(all_lines) else ""
    if opening and "quoted" in context and line > opening.line:
        return TreeError("unclosed quote", opening.line + 1, opening.column + 1)
    before, template, _ = around.partition("${")
    quoted = before.count("'") % 2 or before.count('"') % 2
    if template and not quoted and ("[" in before or "{" in before):
        return TreeError('inside { } and [ ] quote a template: "${…}"', line + 1, column + 1)
    begin = opening.column if opening and "alias" in context else column  # of '*' in a glob
    if string := _BRACKET.search(around) or _SPECIAL.match(around, begin):
        alias = _UNDEFINED.search(problem)
        hint = f"; as an alias, it needs &{alias[1]} above it" if alias else ""
        message = f"quote a string that begins with '{around[string.start(1)]}'{hint}"
        return TreeError(message, line + 1, string.start(1) + 1)
    if opening and "expected ','" in problem:
        return _explain_bracket(all_lines, opening, line, column)
    if "escape" in problem or "decimal number" in problem:
        message = "invalid escape; write '\\\\' for a backslash, or use single quotes"
        return TreeError(message, line + 1, around.rfind("\\", 0, column + 1) + 1)
    if mistake := _find_mistake(all_lines, line):
        return mistake
    if opening and "expected ':'" in problem:
        return TreeError("missing ':' after a key", opening.line + 1, opening.column + 1)
    if misplaced := _explain_indentation(all_lines, line, column):
        return misplaced
    hint = "; quote a string that contains ': '" if "mapping values" in problem else ""
    if context:
        problem += f", {context}" + (f" on line {opening.line + 1}" if opening else "")
    return TreeError(f"invalid YAML: {problem}{hint}", line + 1, column + 1)


def _explain_bracket(
    all_lines: Sequence[str], opening: yaml.Mark, line: int, column: int
) -> TreeError:
    bracket = all_lines[opening.line][opening.column : opening.column + 1]
    if not "".join(all_lines[line:])[column:].strip():
        return TreeError(f"this '{bracket}' is not closed", opening.line + 1, opening.column + 1)
    message = f"missing ',' before this, or '{bracket}' on line {opening.line + 1} not closed"
    if (inner := _INNER_BRACKET.match(all_lines[line], max(column - 1, 0))) is not None:
        message = f"quote a string that contains '{inner[1]}'"
    quoted = all_lines[opening.line]
    if line > opening.line and quoted.count('"') % 2:
        message, line, column = "unclosed quote", opening.line, quoted.rindex('"')
    return TreeError(message, line + 1, column + 1)


def _find_mistake(all_lines: Sequence[str], line: int) -> TreeError | None:
    """Return what has misled the parser, on the line where it stopped or shortly before."""
    for number in range(min(line, len(all_lines) - 1), max(line - _LINES, 0) - 1, -1):
        for pattern, message in _MISTAKES:
            if mistake := pattern.match(all_lines[number]):
                return TreeError(message, number + 1, mistake.end() + 1)
    return None


def _explain_indentation(all_lines: Sequence[str], line: int, column: int) -> TreeError | None:
    """Return that a key is not aligned with the nearest key above it, if so."""
    key = _KEY.match(all_lines[line]) if line < len(all_lines) else None
    if key is None or key.end() <= column:
        return None
    for above in range(line - 1, -1, -1):
        above_key = _KEY.match(all_lines[above])
        if above_key and len(above_key["indent"]) != len(key["indent"]):
            message = f"indentation differs from '{above_key['key']}' on line {above + 1}"
            begin = len(all_lines[line]) - len(all_lines[line].lstrip(" "))
            return TreeError(message, line + 1, begin + 1)
    return None
