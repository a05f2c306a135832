"""A node with DRA, whose API server runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dra.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    node = World(tmp_path)
    async with node.api.running():
        yield node
