"""devhost or the kubelet dies, or the plugin directory is taken from them."""

import asyncio
import random
import shutil
import socket

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until
from tests.support.hosting import Kubelet, contract

SHORT_LEAVE = {"backends.deviceplugin.device_list.LEAVE_AFTER_S": 0.3}
A, B = "example.com/a", "example.com/b"


@pytest.mark.parametrize("moment", ["start", "registration", "reload", "drain", "stop"])
async def test_devhost_killed_at_any_moment_is_followed_by_one_that_serves_all(
    started: Kubelet, daemon: Daemon, moment: str
) -> None:
    many = {f"r{number}": 2 for number in range(10)}
    await daemon.start(tokens(**many, a=1))
    if moment == "start":
        await asyncio.sleep(random.uniform(0, 0.4))
    elif moment == "registration":
        await until(daemon.sockets, "a socket")
    else:
        await started.wait(A, 1, 1)
        if moment == "reload":
            daemon.write(tokens(**many, a=4, b=1))
            await asyncio.sleep(random.uniform(0, 0.2))
        elif moment == "drain":
            daemon.write(tokens(**many, b=1))
            await started.wait(A, 1, 0)
        else:
            daemon.signal(15)
            await asyncio.sleep(random.uniform(0, 0.1))
    await daemon.kill()
    daemon.constants = SHORT_LEAVE
    # With b in all cases: what is left of a resource is removed by who serves it next.
    await daemon.start(tokens(**many, a=3, b=1))
    declared = {f"example.com/{name}": numbers(2) for name in many} | {A: numbers(3), B: numbers(1)}
    await at_rest(started, daemon, declared)

    def files() -> set[str]:
        return {path.name for path in daemon.state.glob("*") if path.is_file()}

    await until(
        lambda: files() == {"last-good.yaml", "lock"}, "a copy, and nothing left of another"
    )
    assert await daemon.stop() == 0
    assert daemon.sockets() == set()


async def test_kubelet_socket_dead_moved_or_replaced_is_followed(
    standin: SimulatedKubelet, daemon: Daemon
) -> None:
    """A dead kubelet.sock is waited for; one that is moved away and back is the same one.

    With one that is replaced twice in a row all is registered.
    """
    declared = {A: numbers(2)}
    daemon.flags = ["--log-level", "debug"]
    await standin.kill()
    await daemon.start(tokens(a=2))
    await until(lambda: daemon.found("state", state="Discovering"), "it runs")
    await standin.start()
    await at_rest(standin, daemon, declared)
    before = daemon.sockets()
    path, moved = daemon.plugins / "kubelet.sock", daemon.plugins / "moved"
    for _ in range(2):
        path.rename(moved)  # the kubelet lives on, and it is the same socket
        moved.rename(path)
    daemon.write(tokens(a=2, b=3))
    await at_rest(standin, daemon, declared | {B: numbers(3)})
    assert before < daemon.sockets()
    path.rename(moved)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await daemon.logged("kubelet.sock was replaced", resource=A)
    await daemon.logged("nobody listens on kubelet.sock", resource=A)
    assert daemon.found("the kubelet ended the stream") == [], "it lives"
    moved.rename(path)
    await at_rest(standin, daemon, declared | {B: numbers(3)})
    for _ in range(2):
        await standin.stop()
        await standin.start()
    await at_rest(standin, daemon, declared | {B: numbers(3)})


@contract
async def test_plugin_directory_removed_and_made_again_is_used(
    started: Kubelet, daemon: Daemon
) -> None:
    declared = {A: numbers(2), B: numbers(3)}
    await daemon.start(tokens(a=2, b=3))
    await at_rest(started, daemon, declared)
    await started.kill()
    shutil.rmtree(daemon.plugins.rename(daemon.plugins.with_name("moved")))
    daemon.plugins.mkdir()
    await started.start()
    await at_rest(started, daemon, declared)
    assert await daemon.stop() == 0
