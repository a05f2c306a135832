"""What the scenarios share; the kubelets are those of tests/conftest.py."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.host.overlap import Instance, Start


@pytest.fixture
async def start(directory: Path) -> AsyncIterator[Start]:
    """Starts hosts in this process; all are stopped in the end."""
    instances: list[Instance] = []

    def start(config: str) -> Instance:
        instances.append(Instance(directory, config))
        return instances[-1]

    yield start
    for instance in instances:
        await instance.stop()
