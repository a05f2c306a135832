"""What the mode of a plugin socket says of its owner, for other instances of devhost to read.

A fresh socket may be executed, as far as modes go; without that, its owner has registered it.
(The set-user-ID bit would be plainer, but hardened units may not set it.) With the sticky bit,
its owner sends no lists and hands out nothing. Instances set that on their own sockets when they
give way, and on those of instances that do not answer before they register in their place: those
find it when they go on. Who may connect depends on neither.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

_EXECUTE: Final = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_SILENT: Final = stat.S_ISVTX


def registered(path: str | Path) -> bool:
    """Whether the owner of a socket has registered it."""
    mode = _mode(path)
    return mode is not None and not mode & _EXECUTE


def silent(path: str | Path) -> bool:
    """Whether the owner of a socket sends no lists and hands out nothing."""
    return bool((_mode(path) or 0) & _SILENT)


def set_registered(path: str | Path) -> None:
    """Mark a socket, if it is there, as registered."""
    _change(path, clear=_EXECUTE)


def set_silent(path: str | Path) -> None:
    """Mark a socket, if it is there, as silent."""
    _change(path, put=_SILENT)


def _mode(path: str | Path) -> int | None:
    try:
        return os.stat(path).st_mode  # asked often, and Path.stat costs more
    except OSError:
        return None


def _change(path: str | Path, *, put: int = 0, clear: int = 0) -> None:
    mode = _mode(path)
    if mode is not None:
        with contextlib.suppress(OSError):
            Path(path).chmod(mode & ~clear | put)
