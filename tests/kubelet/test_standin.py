"""Behaviour of the stand-in alone: what it tells, and how it starts and ends."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from devhost.fake_kubelet.connections import serve
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import until
from tests.support.scripted_plugin import COLA, Node, a_node, healthy, refused, register, unhealthy


@pytest.fixture
async def kubelet(directory: Path) -> SimulatedKubelet:
    return SimulatedKubelet(directory / "plugins", directory / "pr.sock")


async def test_list_changed_is_told(node: Node, kubelet: SimulatedKubelet) -> None:
    seen = []

    async def look() -> None:
        while True:
            await kubelet.ledger.changed.wait()
            seen.append(kubelet.devices(COLA))

    looking = asyncio.create_task(look())
    plugin = await node.registered(*healthy("a"))
    plugin.list(*healthy("a"), *unhealthy("b"))
    await kubelet.wait(COLA, 2, 1)
    plugin.hang_up()
    await kubelet.wait(COLA, 2, 0)
    looking.cancel()
    devices = {"a": "Healthy", "b": "Unhealthy"}
    assert seen == [{}, {"a": "Healthy"}, devices, dict.fromkeys("ab", "Unhealthy")]
    assert kubelet.registrations == [COLA]


async def test_wait_in_vain_tells_what_was_seen(node: Node, kubelet: SimulatedKubelet) -> None:
    await kubelet.wait(COLA, None, None, timeout=0)
    await node.registered(*healthy("a"))
    with pytest.raises(AssertionError, match=r"wanted \(2, 2\), last seen \(1, 1\)"):
        await kubelet.wait(COLA, 2, 2, timeout=0)


async def test_device_gone_during_allocate_is_a_panic(
    node: Node, kubelet: SimulatedKubelet
) -> None:
    plugin = await node.registered(*healthy("a"))

    async def unplug() -> None:
        plugin.list()
        await kubelet.wait(COLA, 0, 0)

    plugin.on_allocate = unplug
    with pytest.raises(RuntimeError, match="kubelet panic"):
        await kubelet.admit("pod", {"main": {COLA: 1}})
    assert kubelet.panics == [f"{COLA}: a left the list in Allocate"]


async def test_socket_registered_twice_is_refused(node: Node, kubelet: SimulatedKubelet) -> None:
    """Kubelet does so since 1.37."""
    plugin = await node.registered(*healthy("a"))
    expected = f"device plugin already connected: {plugin.socket}"
    assert await refused(kubelet, plugin.socket.name) == (grpc.StatusCode.UNKNOWN, expected)


async def test_socket_late_is_found_and_missing_is_an_error(
    node: Node, kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = asyncio.create_task(register(kubelet, "late.sock"))
    await until(lambda: kubelet.registrations, "a registration")
    await node.plugin(*healthy("a"), endpoint="late.sock")
    await pending
    await kubelet.wait(COLA, 1, 1)
    monkeypatch.setattr("devhost.fake_kubelet.connections._DIAL_S", 0.1)
    code, text = await refused(kubelet, "none.sock")
    assert code is grpc.StatusCode.UNKNOWN
    assert text.startswith("failed to dial device plugin:")


async def test_start_removes_sockets_and_links_to_them(kubelet: SimulatedKubelet) -> None:
    place = kubelet.plugin_dir
    (place / "sub").mkdir()
    for name in ("kubelet.sock", "old.sock", "sub/kept.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(place / name))
    (place / "kubelet_internal_checkpoint").touch()
    (place / "dangling").symlink_to("nowhere")
    (place / "link").symlink_to("sub/kept.sock")
    async with a_node(kubelet):
        left = ["dangling", "kubelet.sock", "kubelet_internal_checkpoint", "sub"]
        assert sorted(entry.name for entry in place.iterdir()) == left
        assert (place / "sub" / "kept.sock").is_socket()
    assert not (place / "kubelet.sock").exists()


@pytest.mark.parametrize("turns", range(4))
async def test_start_cancelled_ends_stopped(directory: Path, turns: int) -> None:
    """Ctrl-C does so: gRPC cannot stop a server whose start was interrupted."""
    server = grpc.aio.server()
    starting = asyncio.create_task(serve(server, directory / "kubelet.sock"))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
