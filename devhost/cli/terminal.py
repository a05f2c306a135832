"""The whole terminal for one program: keys come in, frames go out, and it is always given back."""

import asyncio
import codecs
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from devhost.cli import output

_ENTER: Final = "\x1b[?1049h\x1b[?2004l"  # another screen; pasted text comes as if it was typed
_LEAVE: Final = "\x1b[?25h\x1b[0m\x1b[?1049l"
# A character, Alt with one, or an escape sequence; an Esc that another one follows is alone.
_KEY: Final = re.compile(r"\x1b(?=\x1b)|\x1b(?:\[[0-?]*[ -/]*[^ -?]|O.|[^\[O])|[^\x1b]", re.DOTALL)
_IFLAG: Final = 0  # the place in what tcgetattr returns
_READ_MAX: Final = 4096


def usable() -> bool:
    """Whether a person sits at a terminal that can move its cursor."""
    streams = (sys.stdin, sys.stdout)
    here = all(stream is not None and stream.isatty() for stream in streams)
    return here and output.moves_cursor()


def keys_of(text: str) -> tuple[list[str], str]:
    """Split what was typed into keys; return them, and the beginning of another."""
    keys, end = [], 0
    while found := _KEY.match(text, end):
        keys.append(found[0])
        end = found.end()
    return keys, text[end:]


class Terminal:
    """Standard input and output, if `usable`.

    Args:
        on_keys: Called with the keys that came: characters, or escape sequences; with ``None``
            when the terminal has gone.
        on_redraw: Called when the frame is gone or has another size.
    """

    def __init__(
        self, on_keys: Callable[[Sequence[str] | None], None], on_redraw: Callable[[], None]
    ) -> None:
        self._on_keys, self._on_redraw = on_keys, on_redraw
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._before: list[Any] | None = None  # the modes, while this has the terminal
        self._lent = False
        self._frame: str | None = None
        self._on_quit: Any = signal.SIG_DFL

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            size = os.get_terminal_size(self._output)
        except OSError:  # the terminal has gone
            return 80, 24
        return size.columns or 80, size.lines or 24  # 0: unknown

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take the terminal, also after each stop (Ctrl-Z); give it back at the end."""
        loop = asyncio.get_running_loop()
        callbacks = {
            signal.SIGWINCH: self.redraw,
            signal.SIGTSTP: self._stop,
            signal.SIGCONT: self._continue,
        }
        handlers = {
            number: signal.signal(number, lambda *_, it=callback: loop.call_soon_threadsafe(it))
            for number, callback in callbacks.items()
        }
        self._on_quit = signal.signal(signal.SIGQUIT, self._quit)
        handlers[signal.SIGQUIT] = self._on_quit
        try:
            self._enter()
            yield
        finally:
            self._leave()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give the terminal to another program for a while; Ctrl-C and SIGQUIT are for it alone."""
        before = self._before
        self._leave()
        self._lent = True
        # Not SIG_IGN, which the other program would inherit.
        handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGINT, signal.SIGQUIT)
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._lent = False
            self._enter(before)  # not in the modes that the other program may leave

    def draw(self, lines: Sequence[str], cursor: tuple[int, int]) -> None:
        """Show as many lines as there are, which may have colors, and the cursor.

        Args:
            lines: Of at most the terminal's columns.
            cursor: Its column and line.
        """
        column, line = cursor
        # Each line is erased first: after its last column, that would be erased.
        body = "\r\n".join(f"\x1b[2K{text}" for text in lines)
        frame = f"\x1b[?25l\x1b[H{body}\x1b[{line + 1};{column + 1}H\x1b[?25h"
        if self._before is not None and frame != self._frame:
            self._frame = frame
            try:
                self._write(frame)
            except OSError:
                self._gone()

    def _enter(self, before: list[Any] | None = None) -> None:
        try:
            if self._before is None:
                self._before = before or termios.tcgetattr(self._input)
                asyncio.get_running_loop().add_reader(self._input, self._readable)
            tty.setcbreak(self._input)
            modes = termios.tcgetattr(self._input)
            modes[_IFLAG] &= ~termios.IXON  # Ctrl-S would stop the program at its next line
            termios.tcsetattr(self._input, termios.TCSADRAIN, modes)
            self._write(_ENTER)
        except (termios.error, OSError):
            self._gone()
        self.redraw()

    def _leave(self) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(self._input)
            with contextlib.suppress(termios.error, OSError):  # the terminal has gone
                self._write(_LEAVE)
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
            self._before = None

    def redraw(self) -> None:
        """Draw the next frame even if it is the same."""
        self._frame = None
        self._on_redraw()

    def _quit(self, number: int, _frame: object) -> None:
        """End immediately, as SIGQUIT ends other programs: the loop may be what hangs."""
        self._leave()
        signal.signal(number, self._on_quit)
        signal.raise_signal(number)

    def _stop(self) -> None:
        self._leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # goes on after SIGCONT
        signal.signal(signal.SIGTSTP, ours)
        self._continue()

    def _continue(self) -> None:
        if not self._lent:
            self._enter()

    def _readable(self) -> None:
        try:
            raw = os.read(self._input, _READ_MAX)
        except OSError:  # EIO: the terminal has gone
            raw = b""
        if not raw:
            self._gone()
            return
        keys, self._rest = keys_of(self._rest + self._decoder.decode(raw))
        if keys:
            self._on_keys(keys)

    def _gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._input)
        self._on_keys(None)

    def _write(self, text: str) -> None:
        raw = text.encode()
        while raw:
            raw = raw[os.write(self._output, raw) :]
