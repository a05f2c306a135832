"""Time that passes for commands when a test wants it."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from devhost.hostfs import command


def time_passes(patch: pytest.MonkeyPatch, begun: Path) -> None:
    """Advance the clock of commands by an hour once a file is there, however long that takes."""

    def now() -> float:
        return time.monotonic() + 3600 * begun.exists()

    patch.setattr(command, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
