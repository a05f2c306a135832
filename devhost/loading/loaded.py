"""What comes of reading a file, and how it is read; without what only the checks need."""

import errno
import sys
from pathlib import Path
from typing import Final

from devhost.errors import ConfigError, Problem
from devhost.immutable import immutable
from devhost.model.config import Config
from devhost.model.names import printable

SIZE_MAX: Final = 1 << 20  # the limit of a ConfigMap (1 MiB, Kubernetes)
_MESSAGE_MAX: Final = 1000


@immutable
class Loaded:
    """The content of a file.

    Attributes:
        config: The configuration; ``None`` if any problem is an error.
        problems: Errors and warnings in the order of the file.
        name: Which part of the file it is; empty if it is the file.
    """

    config: Config | None
    problems: tuple[Problem, ...]
    name: str = ""

    def require(self) -> Config:
        """Return the configuration.

        Raises:
            ConfigError: The file has errors; it carries every problem.
        """
        if self.config is None:
            raise ConfigError(self.problems)
        return self.config


def read(file: str) -> bytes:
    """Read a file, or standard input for ``-``, up to one byte more than `SIZE_MAX`.

    Raises:
        OSError: It cannot be read.
    """
    if not file:
        raise FileNotFoundError(errno.ENOENT, "the file name is empty")
    if "\0" in file:
        raise FileNotFoundError(errno.ENOENT, "the file name contains a NUL")
    if file == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return sys.stdin.buffer.read(SIZE_MAX + 1)
    with Path(file).open("rb") as stream:
        return stream.read(SIZE_MAX + 1)


def unusable(file: str, message: str, line: int = 1, column: int = 1) -> Loaded:
    """Return the result for a file with a single error that makes it unusable."""
    message = brief(message)
    return Loaded(None, (Problem("error", file or "''", line, column, "", message),))


def brief(message: str) -> str:
    """Return a message as one printable line of limited length."""
    if len(message) > _MESSAGE_MAX:
        half = _MESSAGE_MAX // 2
        message = f"{message[:half]} … {message[-half:]}"
    return printable(message)
