"""A program in a terminal: a pseudo-terminal, and what it writes there."""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import tempfile
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

WAIT_S: Final = 60.0


class Screen:
    """A terminal, and the process in it; `text` is all that it wrote."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self._master, self.process = master, process
        self._news = asyncio.Event()
        self._seen = 0
        self.text = ""
        asyncio.get_running_loop().add_reader(master, self._readable)

    def modes(self) -> list[Any]:
        """The terminal's modes, which the program has to give back."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, os.fsencode(text))

    async def shows(self, text: str) -> None:
        """Wait until the program writes a text, after the one before."""
        try:
            async with asyncio.timeout(WAIT_S):
                while (index := self.text.find(text, self._seen)) < 0:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never seen: {text}\n{self.text[self._seen :]}") from None
        self._seen = index + len(text)

    async def answers(self, line: str, *texts: str) -> None:
        """Type a line, and wait for these texts."""
        self.type(f"{line}\r")
        for text in texts:
            await self.shows(text)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        self._master = -1

    def _readable(self) -> None:
        try:
            raw = os.read(self._master, 65536)
        except OSError:  # EIO: the program has ended
            asyncio.get_running_loop().remove_reader(self._master)
            raw = b""
        self.text += raw.decode(errors="replace")
        self._news.set()


@contextlib.asynccontextmanager
async def terminal(argv: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[Screen]:
    """Run a program in a terminal and a temporary directory of its own; kill it at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

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
        screen = Screen(master, process)
        try:
            yield screen
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            os.close(slave)
            if screen._master != -1:
                screen.close()


def read(terminal: int) -> bytes:
    """Return what is written to a terminal until all that have it open have ended."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(terminal, 4096):
            shown += chunk
    os.close(terminal)
    return shown
