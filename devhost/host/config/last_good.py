"""The last good configuration: a copy from which a node starts when the file is invalid."""

import contextlib
from pathlib import Path
from typing import Final

from devhost.host.state_files import locked, read_state, write_atomically

NAME: Final = "last-good.yaml"


class LastGood:
    """The copy in the state directory of the configuration that was applied last."""

    def __init__(self, state_dir: Path, name: str = NAME) -> None:
        self.path = state_dir / name

    def read(self) -> bytes | None:
        """Return the copy; ``None`` where there is none.

        Raises:
            OSError: It cannot be read.
        """
        return read_state(self.path)

    def write(self, raw: bytes) -> None:
        """Replace the copy atomically.

        Raises:
            OSError: It cannot be written.
        """
        with contextlib.suppress(OSError):  # it may be replaced all the same
            if self.read() == raw:
                return
        with locked(self.path.parent):
            write_atomically(self.path, raw)
