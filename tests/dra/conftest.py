"""A node with DRA, whose API server runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2_grpc as pb_grpc
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.dra.world import World


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 0.05)
    node, server = World(tmp_path), grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(node.lists, server)
    server.add_insecure_port(f"unix:{node.pod_resources}")
    await server.start()
    async with node.api.running():
        yield node
    await server.stop(None)


@pytest.fixture
async def plugins(world: World) -> AsyncIterator[SimulatedKubelet]:
    """Run the side of kubelet that device plugins see."""
    kubelet = SimulatedKubelet(world.plugins)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
