"""What every fault test takes; the kubelets are those of tests/conftest.py."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon


@pytest.fixture
async def daemon(directory: Path) -> AsyncIterator[Daemon]:
    """A process that is not started yet."""
    daemon = Daemon(directory)
    yield daemon
    await daemon.kill()


@pytest.fixture
async def standin(directory: Path) -> AsyncIterator[SimulatedKubelet]:
    """The stand-in, running, for faults that are not of the kubelet."""
    kubelet = SimulatedKubelet(directory / "plugins")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
