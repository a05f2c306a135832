"""pytest fixtures: ``pytest_plugins = ["devhost.testing.fixtures"]`` in your ``conftest.py``.

They need pytest and pytest-asyncio, which devhost itself does not.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devhost.testing import HostTree, StandInKubelet, short_directory


@pytest_asyncio.fixture
async def devhost_kubelet() -> AsyncIterator[StandInKubelet]:
    """A running stand-in kubelet with a pod-resources API, in a temporary directory."""
    with short_directory() as directory:
        kubelet = StandInKubelet(directory / "plugins", directory / "pod-resources.sock")
        await kubelet.start()
        yield kubelet
        await kubelet.stop()


@pytest.fixture
def devhost_tree(tmp_path: Path) -> HostTree:
    """A host without files."""
    return HostTree(tmp_path / "host")
