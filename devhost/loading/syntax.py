"""What a YAML syntax error means, naming the usual mistakes as such."""

import re
from typing import Any, Final

import yaml

# What ends a line: for editors the first three, for YAML 1.1 all.
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


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


def explain(error: yaml.MarkedYAMLError, text: str, line: int, column: int) -> str:
    """Say what a syntax error is, naming the usual mistakes as such."""
    problem = error.problem or error.context or "not YAML"
    lines = text.splitlines()
    around = lines[line] if line < len(lines) else ""
    before = around[:column]
    if "${" in around and ("{" in before.replace("${", "") or "[" in before):
        return 'inside { } and [ ] a template must be quoted: write "${…}"'
    for character in around[max(0, column - 1) : column + 1]:
        if character in "%@`*&!|>":
            return f"a text that begins with {character!r} must be quoted ({problem})"
    if "\t" in around[: column + 1] and not around[: column + 1].strip():
        return "indented with a tab: YAML wants spaces"
    if "mapping values are not allowed" in problem:
        return f"{problem}: a text with ': ' in it must be quoted"
    if error.context and "flow" in error.context:
        return f"{problem}, {error.context}: quote texts with {{ }} [ ] or , in them"
    return f"not YAML: {problem}"
