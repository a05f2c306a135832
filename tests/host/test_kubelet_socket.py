"""Changes from outside to kubelet.sock, to the streams and to the plugin directory."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.deviceplugin.kubelet_socket import KubeletSocket
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.custody import holders
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from devhost.node.node import Host
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Hosting, Kubelet, contract

T = "example.com/t"
MANY = 50


def kubelet_of(host: Host) -> KubeletSocket:
    backend = host.parts.backend
    return cast("DevicePluginBackend", backend).kubelet


def sockets(directory: Path) -> set[Path]:
    return set((directory / "plugins").glob("devhost-*.sock"))


@contextlib.asynccontextmanager
async def foreign_stream(directory: Path) -> AsyncIterator[None]:
    """Hold a stream of the one resource open, as a curious person does."""
    (path,) = sockets(directory)
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{path}", options) as channel:
        stream = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
        async for message in stream:
            assert len(message.devices) == 3
            break
        yield


@contract
async def test_kubelet_socket_that_is_touched_ends_no_stream_of_fifty_resources(
    started: Kubelet, hosting: Hosting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream of 50 resources ends; a kubelet that starts has them all again."""
    names = [f"example.com/r{number}" for number in range(MANY)]
    host = hosting.start(tokens(**{name.partition("/")[2]: 2 for name in names}))
    for name in names:
        await started.wait(name, 2, 2)
    monkeypatch.setattr("devhost.backends.deviceplugin.registration.END_TIMEOUT_S", 0.5)
    before, path = sockets(directory), directory / "plugins" / "kubelet.sock"
    path.chmod(0o700)  # as backups and relabelling do
    os.chown(path, os.getuid(), os.getgid())
    path.with_name("copy").hardlink_to(path)
    kubelet_of(host).check()
    await asyncio.sleep(1)  # after half of it a stream was given up
    assert sockets(directory) == before
    assert {runner.status.state for runner in host.resources} == {State.REGISTERED}
    assert set((await started.capacity()).values()) == {(2, 2)}
    for _ in range(2):
        await started.restart()
        for name in names:
            await started.wait(name, 2, 2)
        assert sockets(directory).isdisjoint(before)


async def test_server_outlives_a_kubelet_but_not_with_a_stream_of_somebody_else(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """That stream could be one of the former kubelet's, whose end unregisters the resource."""
    host = hosting.start(tokens(t=3))
    await standin.wait(T, 3, 3)
    await hosting.until(T, State.REGISTERED)
    (before,), first = sockets(directory), directory / "first"
    first.hardlink_to(before)
    kubelet_of(host)._reached_until = 0.0  # it was not reached just now
    await standin.restart()
    await standin.wait(T, 3, 3)
    (after,) = sockets(directory)
    assert after != before
    assert after.samefile(first)
    async with foreign_stream(directory):
        await standin.restart()
        await standin.wait(T, 3, 3)
        (last,) = sockets(directory)
        assert not last.samefile(first)


async def test_resource_is_registered_again_though_somebody_else_has_a_stream(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """The kubelet's stream has ended, and no other kubelet comes."""
    hosting.start(tokens(t=3))
    await standin.wait(T, 3, 3)
    await hosting.until(T, State.REGISTERED)
    async with foreign_stream(directory):
        for endpoint in standin._plugins.connected.values():
            await endpoint.channel.close()
        async with asyncio.timeout(60):
            while len(standin.registrations) == 1:
                await standin.ledger.changed.wait()


async def test_restart_finds_resources_though_the_directory_of_locks_was_removed(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other sockets replace the servers' own without a failed attempt."""
    host = hosting.start(tokens(t=3))
    await standin.wait(T, 3, 3)
    await hosting.until(T, State.REGISTERED)
    shutil.rmtree(directory / "plugins" / "devhost-locks")
    kubelet_of(host)._reached_until = 0.0  # it was not reached just now
    await standin.restart()
    await standin.wait(T, 3, 3)
    warnings = {record.name for record in caplog.records if record.levelname != "INFO"}
    assert warnings <= {holders.__name__}  # it may have asked for pods just then


async def test_plugin_directory_symlink_is_followed(directory: Path, daemon: Daemon) -> None:
    """A link may change, and may replace a directory."""
    places = [directory / "one", directory / "two"]
    link = directory / "plugins"
    link.rmdir()
    for place in places:
        place.mkdir()
    kubelets = [SimulatedKubelet(place) for place in places]
    link.symlink_to(places[0])
    async with contextlib.AsyncExitStack() as stack:
        for kubelet in kubelets:
            await kubelet.start()
            stack.push_async_callback(kubelet.stop)
        await daemon.start(tokens(t=3))
        for now, then in ((0, 1), (1, 0)):
            await kubelets[now].wait(T, 3, 3)
            (directory / "fresh").symlink_to(places[then])
            (directory / "fresh").rename(link)
        await kubelets[0].wait(T, 3, 3)
        assert await daemon.stop() == 0
