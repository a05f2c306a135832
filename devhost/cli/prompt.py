"""A line that a person edits."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from devhost.model.names import printable

Edited = tuple[str, int]  # a text, and before which of its characters the cursor is

_SAME: Final = {  # keys that others stand for
    **{f"\x1bO{last}": f"\x1b[{last}" for last in "ABCDHF"},
    "\x1b[1~": "\x1b[H",
    "\x1b[4~": "\x1b[F",
    "\x01": "\x1b[H",
    "\x05": "\x1b[F",
    "\x04": "\x1b[3~",
    "\x08": "\x7f",
    "\n": "\r",
}
_EDITS: Final[Mapping[str, Callable[[str, int], Edited]]] = {
    "\x7f": lambda text, at: (text[: max(0, at - 1)] + text[at:], max(0, at - 1)),
    "\x1b[3~": lambda text, at: (text[:at] + text[at + 1 :], at),
    "\x15": lambda text, at: (text[at:], 0),
    "\x0b": lambda text, at: (text[:at], at),
    "\x17": lambda text, at: (text[: (cut := _word(text, at))] + text[at:], cut),
    "\x1b[D": lambda text, at: (text, max(0, at - 1)),
    "\x1b[C": lambda text, at: (text, min(len(text), at + 1)),
    "\x1b[H": lambda text, _at: (text, 0),
    "\x1b[F": lambda text, _at: (text, len(text)),
}
_RECALLS: Final = {"\x1b[A": -1, "\x1b[B": 1}


class Prompt:
    """A line, its cursor, and the lines before it.

    Args:
        complete: Returns what the word at the end of a text may be.

    Attributes:
        text: The line.
        cursor: Before which character the cursor is.
    """

    def __init__(self, complete: Callable[[str], Iterable[str]]) -> None:
        self._complete = complete
        self._history: list[str] = []
        self._place = 0  # in the history; its end is the line that is being written
        self.text, self.cursor = "", 0

    def key(self, key: str) -> str | None:
        """Take a key, a character or an escape sequence; return the line if this is its end."""
        key = _SAME.get(key, key)
        if key == "\r":
            return self._entered()
        if edit := _EDITS.get(key):
            self.text, self.cursor = edit(self.text, self.cursor)
        elif step := _RECALLS.get(key):
            self._recall(self._place + step)
        elif key == "\t":
            self._completed()
        elif key.isprintable():
            self._insert(key)
        return None

    def _entered(self) -> str:
        line = self.text.strip()
        if line and self._history[-1:] != [line]:
            self._history.append(line)
        self._place = len(self._history)
        self.text, self.cursor = "", 0
        return line

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _recall(self, place: int) -> None:
        if 0 <= place <= len(self._history):
            self._place = place
            self.text = (*self._history, "")[place]
            self.cursor = len(self.text)

    def _completed(self) -> None:
        """Complete the word before the cursor by how names go on; or by the one that has it."""
        before = self.text[: self.cursor]
        word = before.rpartition(" ")[2]
        names = [printable(name) for name in self._complete(before)]
        found = [name for name in names if name.startswith(word)]
        if not found:
            found = [name for name in names if word in name]
            if len(found) != 1:
                return
            self.text = before[: len(before) - len(word)] + self.text[self.cursor :]
            self.cursor -= len(word)
            word = ""
        same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*found, strict=False))
        rest = "".join(column[0] for column in same)[len(word) :]
        self._insert(rest + " " * (len(found) == 1))


def _word(text: str, at: int) -> int:
    """Return where the word before a cursor begins."""
    return text[:at].rstrip().rfind(" ") + 1
