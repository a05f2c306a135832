"""The last good configuration, kept where a node finds it again after a reboot."""

import os
import tempfile
from pathlib import Path
from typing import Final

_NAME: Final = "last-good.yaml"


class LastGood:
    """A copy of the configuration that was applied last, in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / _NAME

    def read(self) -> bytes | None:
        """Return the copy; ``None`` where there is none or it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def write(self, raw: bytes) -> None:
        """Replace the copy, whole or not at all.

        Raises:
            OSError: It cannot be written; the former copy is still there.
        """
        if self.read() == raw:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for left in self.path.parent.glob(f".{_NAME}.*"):  # by a process that was killed
            left.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{_NAME}.", dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
