"""The last good configuration, kept where a node finds it again after a reboot."""

from pathlib import Path
from typing import Final

from devhost.host.state_files import locked, write_atomically

NAME: Final = "last-good.yaml"
_LOCK_S: Final = 5.0  # another instance holds the lock for milliseconds


class LastGood:
    """A copy of the configuration that was applied last, in the state directory."""

    def __init__(self, state_dir: Path, name: str = NAME) -> None:
        self.path = state_dir / name

    def read(self) -> bytes | None:
        """Return the copy; ``None`` where there is none or it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def write(self, raw: bytes) -> None:
        """Replace the copy, whole or not at all.

        Raises:
            OSError: As of `locked` and `write_atomically`.
        """
        if self.read() != raw:
            with locked(self.path.parent, _LOCK_S):
                write_atomically(self.path, raw)
