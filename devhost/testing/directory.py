"""A temporary directory with a path short enough for sockets."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.kubelet.resource_lock import path_length_problem

_PREFIX: Final = "devhost-"
_SHORTEST: Final = "/tmp"  # noqa: S108 (only the parent of a directory with a random name)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Create a temporary directory for a plugin directory, and remove it at the end.

    A socket's path is at most 107 bytes, so pytest's ``tmp_path`` is often too long.

    Raises:
        OSError: It cannot be created.
    """
    usual = Path(tempfile.gettempdir())
    likely = usual / f"{_PREFIX}12345678" / "plugins"
    parent = _SHORTEST if path_length_problem(likely) else usual
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as directory:
        yield Path(directory)
