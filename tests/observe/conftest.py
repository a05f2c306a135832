"""A process that listens."""

from pathlib import Path

import pytest

from tests.support.daemon import Daemon

LISTEN = ["--listen", "127.0.0.1:0", "--status-listen", "127.0.0.1:0"]


@pytest.fixture
def daemon(daemon: Daemon, directory: Path) -> Daemon:
    daemon.flags = [*LISTEN, "--cdi-dir", str(directory / "cdi")]
    daemon.constants = {"backends.deviceplugin.device_list.LEAVE_AFTER_S": 0.3}
    return daemon
