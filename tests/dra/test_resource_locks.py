"""One publishes a resource on a node: of two drivers, two backends, or two instances."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from devhost.backends.resource_lock import ResourceLock, resource_hash
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from tests.dra.world import NODE, World, eventually, failing
from tests.support.daemon import Daemon
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet

X, Y = "example.com/x", "example.com/y"
OLD, NEW = "old.example.com", "new.example.com"
BY_DRA: Final = "another instance of devhost serves it by DRA"
BY_PLUGIN: Final = "another instance of devhost serves it by a device plugin"


@pytest.fixture(autouse=True)
def events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at again without an event."""
    monkeypatch.setattr("devhost.backends.resource_lock._POLL_S", 3600.0)
    monkeypatch.setattr("devhost.backends.backend.FREE_POLL_S", 3600.0)


def resources(world: World, *names: str, backend: str = "dra") -> str:
    entries = (
        f"{{name: {name}, backend: {backend}, sources: [directory: {world.devices}/{name[-1]}]}}"
        for name in names
    )
    return f"version: v1\nresources: [{', '.join(entries)}]\n"


@pytest.fixture(autouse=True)
def devices(world: World) -> None:
    for name in ("x", "y"):
        (world.devices / name).mkdir()
        for number in range(2):
            (world.devices / name / f"{name}{number}").touch()


def published(world: World) -> dict[str, list[str]]:
    """Return the devices in slices, by driver."""
    devices: dict[str, list[str]] = {}
    for content in world.slices():
        spec = content["spec"]
        devices.setdefault(spec["driver"], []).extend(device["name"] for device in spec["devices"])
    return devices


async def until_published(world: World, **devices: list[str]) -> None:
    wanted = {{"old": OLD, "new": NEW}[driver]: names for driver, names in devices.items()}
    await eventually(lambda: published(world) == wanted, lambda: published(world))


async def test_of_two_drivers_one_publishes_a_resource(world: World) -> None:
    second = World.beside(world)
    config = resources(world, X)
    async with world.serve(config, X, driver=OLD), second.run(config, driver=NEW):
        await second.kubelet.register()
        await second.until(X, State.WAITING, BY_DRA)
        await until_published(world, old=["x0", "x1"])
        await world.stop()
        await second.until(X, State.REGISTERED)
        async with world.run(config, driver=OLD):
            await world.until(X, State.WAITING, BY_DRA)
            await until_published(world, new=["x0", "x1"])
        assert second.state_of(X)[0] is State.REGISTERED


@pytest.mark.parametrize("binary", REAL_KUBELETS)
@pytest.mark.parametrize("backends", [("dra", "devicePlugin"), ("devicePlugin", "dra")])
async def test_rollout_offers_by_one_backend(
    world: World, binary: Path, backends: tuple[str, str]
) -> None:
    world.pod_resources = world.directory / "kubelet-pr.sock"
    second = World.beside(world)
    old, new = (resources(world, X, backend=backend) for backend in backends)
    seen: list[tuple[int, int]] = []

    async def watch(kubelet: RealKubelet) -> None:
        while True:
            before = len(world.published())
            _, allocatable = (await kubelet.capacity()).get(X, (0, 0))
            seen.append((min(before, len(world.published())), allocatable))

    def offers(backend: str, count: int) -> bool:
        return seen[-1:] == [(count, 0) if backend == "dra" else (0, count)]

    async with RealKubelet(binary, world.plugins, world.pod_resources) as kubelet:
        watching = asyncio.create_task(watch(kubelet))
        async with world.serve(old):
            await eventually(lambda: offers(backends[0], 2), lambda: seen[-1:])
            async with second.serve(new):
                await second.until(X, State.WAITING, "another instance of devhost serves it")
                (world.devices / "x" / "x2").touch()
                await eventually(lambda: offers(backends[0], 3), lambda: seen[-1:])
                world.api.fault = failing(503, "away", "DELETE")
                await world.stop()
                if backends[0] == "dra":
                    await second.until(X, State.WAITING, "its slices are not deleted yet")
                    await eventually(lambda: world.api.requests[-1][::2] == ("DELETE", 503))
                world.api.fault = lambda _verb, _path: None
                await eventually(lambda: offers(backends[1], 3), lambda: seen[-1:])
        watching.cancel()
        await asyncio.wait({watching})
    assert not [pair for pair in seen if all(pair)]


async def test_device_plugin_waits_for_dra(world: World, plugins: SimulatedKubelet) -> None:
    second = World.beside(world)
    async with (
        world.serve(resources(world, X), X, driver=OLD),
        second.run(resources(world, X, backend="devicePlugin"), driver=OLD),
    ):
        await second.until(X, State.WAITING, BY_DRA)
        assert not plugins.registrations
        await until_published(world, old=["x0", "x1"])
        await world.stop()
        await plugins.wait(X, 2, 2)
        await until_published(world)
        await second.until(X, State.REGISTERED)


async def test_dra_waits_for_the_device_plugin(world: World, plugins: SimulatedKubelet) -> None:
    second = World.beside(world)
    async with second.serve(resources(world, X), driver=NEW):
        await until_published(world, new=["x0", "x1"])
    async with world.run(resources(world, X, backend="devicePlugin"), driver=OLD):
        await plugins.wait(X, 2, 2)
        await world.kubelet.register()
        async with second.run(resources(world, X), driver=NEW):
            await second.until(X, State.WAITING, BY_PLUGIN)
            await until_published(world)
            await second.kubelet.register()
            claim = world.claim("u", X, "x0", driver=NEW)
            assert BY_PLUGIN in (await second.kubelet.prepare(claim, "u")).error
            await world.stop()
            await until_published(world, new=["x0", "x1"])
            assert not (await second.kubelet.prepare(claim, "u")).error


async def test_pool_of_a_removed_resource_goes_with_its_instance(world: World) -> None:
    second = World.beside(world)
    async with world.serve(resources(world, X, Y), driver=OLD):
        await until_published(world, old=["x0", "x1", "y0", "y1"])
        async with second.serve(resources(world, X), driver=OLD):
            await second.until(X, State.WAITING, BY_DRA)
            await eventually(lambda: f"{NODE}/{Y}" in second.dra.writer.pools.unowned)
            await until_published(world, old=["x0", "x1", "y0", "y1"])
            await world.stop()
            await until_published(world, old=["x0", "x1"])
        async with world.serve(resources(world, X, Y), driver=OLD):
            await until_published(world, old=["x0", "x1", "y0", "y1"])


async def test_the_newer_instance_takes_over_without_a_write(world: World) -> None:
    second = World.beside(world)
    config = resources(world, X, Y)
    async with world.serve(config, driver=OLD):
        await until_published(world, old=["x0", "x1", "y0", "y1"])
        before = [*world.api.requests]
        async with second.serve(config, driver=OLD):
            for name in (X, Y):
                await second.until(name, State.WAITING, BY_DRA)
            await eventually(lambda: second.dra.writer.problem is None)
            await world.stop()
            for name in (X, Y):
                await second.until(name, State.REGISTERED)
            assert world.api.requests == before


@pytest.mark.parametrize("backend", ["devicePlugin", "dra"])
async def test_killed_process_is_replaced(
    world: World, plugins: SimulatedKubelet, backend: str
) -> None:
    daemon = Daemon(world.directory)
    daemon.plugins, daemon.state = world.plugins, world.state
    daemon.flags = ["--node-name", NODE, "--dra", "--dra-driver", OLD]
    daemon.flags += ["--api-server", world.api.url, "--kubelet-dir", str(world.directory)]
    await daemon.start(resources(world, X, backend=backend))
    await world.kubelet.register()
    await daemon.logged("state", resource=X, state="Registered")
    async with world.serve(resources(world, X), driver=OLD):
        await world.until(X, State.WAITING, BY_DRA if backend == "dra" else BY_PLUGIN)
        await daemon.kill()
        await world.until(X, State.REGISTERED)
        await eventually(lambda: len([*world.kubelet.registry.iterdir()]) == 1)


async def test_removed_lock_is_taken_again_before_a_write(world: World) -> None:
    async with world.serve(resources(world, X), driver=OLD):
        await until_published(world, old=["x0", "x1"])
        for path in (world.plugins / "devhost-locks").iterdir():
            path.unlink()
        lock = ResourceLock(world.plugins, resource_hash(X))
        assert lock.acquire(NEW)
        (world.devices / "x" / "x2").touch()
        await world.until(X, State.WAITING, BY_DRA)
        await until_published(world)
        lock.release()
        await until_published(world, old=["x0", "x1", "x2"])
