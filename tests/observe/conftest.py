"""A process that listens, and the kubelets of tests/conftest.py."""

from pathlib import Path

import pytest

from tests.support.daemon import Daemon

LISTEN = ["--listen", "127.0.0.1:0", "--status-listen", "127.0.0.1:0"]


@pytest.fixture
def daemon(daemon: Daemon, directory: Path) -> Daemon:
    """A process that is not started yet."""
    daemon.flags = [*LISTEN, "--cdi-dir", str(directory / "cdi")]
    daemon.prelude = """
import devhost.kubelet.device_list
devhost.kubelet.device_list.LEAVE_AFTER_S = 0.3
"""
    return daemon
