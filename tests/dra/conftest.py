"""A node with DRA, whose API server runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2_grpc as pb_grpc
from tests.dra.world import PodResourcesLists, World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    node = World(tmp_path)
    async with node.api.running():
        yield node


@pytest.fixture
async def lists(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodResourcesLists]:
    monkeypatch.setattr("devhost.node.holders.POLL_S", 0.05)
    lists, server = PodResourcesLists(), grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(lists, server)
    world.pod_resources = Path(world.directory) / "pr.sock"
    server.add_insecure_port(f"unix:{world.pod_resources}")
    await server.start()
    yield lists
    await server.stop(None)
