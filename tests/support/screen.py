"""A program in a terminal, as a person sees it: a pseudo-terminal, and pyte for what is on it."""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import tempfile
import termios
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import pyte

WAIT_S: Final = 60.0


class Screen:
    """A terminal of some size, and the process in it.

    Attributes:
        raw: All that the program wrote.
    """

    def __init__(
        self, master: int, process: asyncio.subprocess.Process, columns: int, lines: int
    ) -> None:
        self._master, self.process = master, process
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._news = asyncio.Event()
        self.raw = b""
        asyncio.get_running_loop().add_reader(master, self._readable)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def cells(self) -> list[list[pyte.screens.Char]]:
        """What is on it, with colors, line by line."""
        screen = self._screen
        return [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]

    @property
    def cursor(self) -> tuple[int, int]:
        return self._screen.cursor.x, self._screen.cursor.y

    def modes(self) -> list[Any]:
        """The terminal's modes, which the program has to give back."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        """As when a window is resized: the kernel tells the program."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    async def until(self, holds: Callable[[], object], what: object) -> None:
        """Wait until something holds, looked at after each write of the program."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never seen: {what}\n{self.text}") from None

    async def shows(self, text: str) -> None:
        await self.until(lambda: text in self.text, text)

    async def writes(self, raw: bytes) -> None:
        """Wait for an escape sequence."""
        await self.until(lambda: raw in self.raw, raw)

    def close(self) -> None:
        """As when the window is closed."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        self._master = -1

    def _readable(self) -> None:
        try:
            raw = os.read(self._master, 65536)
        except OSError:  # EIO: the program has ended
            asyncio.get_running_loop().remove_reader(self._master)
            raw = b""
        self.raw += raw
        self._stream.feed(raw)
        self._news.set()


@contextlib.asynccontextmanager
async def terminal(
    argv: Sequence[str], environment: Mapping[str, str], columns: int = 80, lines: int = 24
) -> AsyncIterator[Screen]:
    """Run a program in a session and a terminal of its own; kill it at the end.

    It has a directory of its own for temporary files, which it may not get to remove.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def control() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with tempfile.TemporaryDirectory(prefix="dh") as temporary:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={"TMPDIR": temporary, **environment, "TERM": "xterm-256color"},
            preexec_fn=control,
        )
        screen = Screen(master, process, columns, lines)
        try:
            yield screen
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            os.close(slave)
            if screen._master != -1:
                screen.close()


def read_to_end(terminal: int, process: int) -> bytes:
    """Return what a forked program writes to its terminal until it ends; wait for it."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the program has ended
        while chunk := os.read(terminal, 4096):
            shown += chunk
    os.close(terminal)
    os.waitpid(process, 0)
    return shown
