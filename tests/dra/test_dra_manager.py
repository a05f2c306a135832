"""devhost under the DRA manager of a real kubelet, for what happens to either of them."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.backends.dra.slices import PATH
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from tests.dra.manager import DraManager
from tests.dra.test_dra_host import SERIAL, SERIALS, TOKEN, TOKENS
from tests.dra.world import World, declare_files, eventually
from tests.support import dra_build
from tests.support.dra_kubelet import CLAIMS
from tests.support.realkubelet import UNSET

X, Y = "example.com/x", "example.com/y"
OLD, NEW = "old.example.com", "new.example.com"
BY_DRA: Final = "another instance of devhost serves it by DRA"
PORTS: Final = f"""
version: v1
resources:
  - name: {X}
    backend: dra
    sources: [{{dev: "null|(?P<group>zero)"}}]
    id: "${{name}}"
    replicas: 2
    maxPerContainer: 2
    allocate:
      devices: [{{hostPath: "${{path}}", containerPath: "/dev/port${{index}}"}}]
      env: {{A: before}}
  - {{name: {Y}, backend: dra, sources: [static: 1]}}
"""
BY_PLUGIN: Final = "example.com/by-plugin"
CDI_PLUGIN: Final = f"""
  - name: {BY_PLUGIN}
    sources: [{{dev: "null|zero"}}]
    inject: cdi
    overlap: allow
"""
pytestmark = pytest.mark.program("dra")
VERSIONS = [
    pytest.param(minor, marks=pytest.mark.real_kubelet) for minor in dra_build.versions()
] or [pytest.param("", marks=pytest.mark.skip(reason=UNSET))]


@pytest.fixture(params=VERSIONS)
async def manager(request: pytest.FixtureRequest, world: World) -> AsyncIterator[DraManager]:
    async with DraManager(dra_build.build(request.param), world).running() as manager:
        yield manager


def reserved(world: World, uid: str, resource: str, *devices: str, pods: str, **keys: Any) -> str:
    """Make a claim that is reserved for pods, separated by spaces."""
    name = world.claim(uid, resource, *devices, **keys)
    content = world.api.objects[f"{CLAIMS}/{name}"]
    reserved_for = [{"resource": "pods", "name": pod, "uid": f"pod-{pod}"} for pod in pods.split()]
    status = {**content["status"], "reservedFor": reserved_for}
    world.api.put(f"{CLAIMS}/{name}", {**content, "status": status})
    return name


async def test_pod_by_extended_name_and_by_claim(world: World, manager: DraManager) -> None:
    async with world.run(SERIALS, until=SERIAL):
        first = reserved(world, "u1", SERIAL, "fake-null", "fake-zero", pods="a")
        names = await manager.prepare("a", first, SERIAL)
        kind = "dra.devhost/claim"
        assert sorted(names) == [f"{kind}=cu1-0", f"{kind}=cu1-1", f"{kind}=cu1-s0"]
        assert {name.partition("=")[2] for name in names} == world.spec().keys()
        assert not await manager.unprepare("a", first)
        assert not world.records()
        second = reserved(world, "u2", SERIAL, "fake-zero", pods="b")
        assert f"{kind}=cu2-0" in await manager.prepare("b", second)


async def test_kubelet_is_killed(world: World, manager: DraManager) -> None:
    async with world.run(TOKENS, until=TOKEN):
        name = reserved(world, "u", TOKEN, "0", pods="a")
        before = await manager.prepare("a", name)
        await manager.kill()
        await manager.start(running=["a"])
        deleted = ("DELETE", PATH, 200)
        await eventually(lambda: world.api.requests.count(deleted) == 2, lambda: world.api.requests)
        await world.until_published("0", "1", "2")
        await eventually(lambda: world.dra.restarts == 1)
        assert set(await manager.prepare("a", name)) == set(before)
        assert not await manager.unprepare("a", name)
        assert not world.cdi_files()


async def test_devhost_is_killed_while_a_pod_ends(world: World, manager: DraManager) -> None:
    async with world.run(TOKENS, until=TOKEN):
        name = reserved(world, "u", TOKEN, "0", pods="a")
        await manager.prepare("a", name)
        spec = world.spec()
    assert await manager.unprepare("a", name), "the pod stays Terminating"
    shutil.rmtree(world.cdi)
    requests = len(world.api.requests)
    async with world.run(TOKENS):
        await eventually(world.cdi_files)
        assert world.spec() == spec
        await world.until(TOKEN, State.REGISTERED)
        assert not await manager.unprepare("a", name)
        assert not world.records()
        assert not world.cdi_files()
        assert len(world.api.requests) == requests, "nothing is written"


async def test_claim_of_a_former_name(world: World, manager: DraManager) -> None:
    async with world.run(TOKENS, until=TOKEN):
        name = reserved(world, "old", TOKEN, "0", pods="a")
        await manager.prepare("a", name)
    world.api.remove(f"{CLAIMS}/{name}")
    reserved(world, "new", TOKEN, "1", pods="b", name=name)
    async with world.run(TOKENS, until=TOKEN):
        assert not await manager.unprepare("a", name)
        assert not world.records()
        assert await manager.prepare("b", name) == ["dra.devhost/claim=cnew-s0"]
        assert [record["claim"] for record in world.records()] == ["new"]


async def test_removed_files_come_back(
    world: World, manager: DraManager, plugins: SimulatedKubelet
) -> None:
    config = SERIALS + CDI_PLUGIN
    registry = world.kubelet.registry

    async def seen() -> None:
        """Wait until all is as before; then kubelet can call the driver."""
        await eventually(lambda: (world.cdi_specs(), world.records()) == before, world.cdi_files)
        await world.until(SERIAL, State.REGISTERED)
        await world.until_published("fake-null", "fake-zero")
        number = len(names)
        name = reserved(world, f"u{number}", SERIAL, "fake-zero", pods=f"p{number}")
        names.append(name)
        assert await manager.prepare(f"p{number}", name)
        assert not await manager.unprepare(f"p{number}", name)
        await eventually(lambda: (world.cdi_specs(), world.records()) == before)

    async def without_kubelet(remove: Callable[[], object]) -> None:
        await manager.kill()
        remove()
        registry.mkdir(exist_ok=True)
        await world.until(SERIAL, State.WAITING, "was removed")
        await manager.start(running=["a"])

    async with world.run(config, until=SERIAL):
        await plugins.wait(BY_PLUGIN, 2, 2)
        names = [reserved(world, "u0", SERIAL, "fake-null", pods="a")]
        granted = await manager.prepare("a", names[0])
        before = world.cdi_specs(), world.records()
        assert len(before[0]) == 2
        socket_of(world).unlink()
        await world.until(SERIAL, State.WAITING, "its socket was removed")
        await seen()
        await without_kubelet(lambda: socket_of(world).unlink())
        await seen()
        await without_kubelet(lambda: shutil.rmtree(registry))
        await seen()
        for path in world.cdi_files():
            path.unlink()
            await seen()
        shutil.rmtree(world.cdi)
        await seen()
        shutil.rmtree(world.state)
        await seen()
        for content in world.slices():
            world.api.remove(f"{PATH}/{content['metadata']['name']}")
        await eventually(lambda: not world.published(), world.published)
        await seen()
        assert set(await manager.prepare("a", names[0])) == set(granted)


def socket_of(world: World) -> Path:
    (path,) = world.kubelet.registry.iterdir()
    return path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A: before", "A: '${group}'"),  # which one of the devices has not
        ("${name}", "other-${name}"),
        ("maxPerContainer: 2", "maxPerContainer: 1"),
        ("null|(?P<group>zero)", "full"),
    ],
    ids=["env", "id", "maxPerContainer", "sources"],
)
async def test_edit_keeps_devices_of_pods(
    world: World, manager: DraManager, before: str, after: str
) -> None:
    edited = PORTS.replace(before, after).replace("static: 1", "static: 2")
    async with world.run(PORTS, until=X):
        name = reserved(world, "u", X, *world.published()[:3], pods="a")  # of one, both shares
        names = await manager.prepare("a", name)
        (path,) = world.cdi_files()
        content = path.read_bytes()
        world.reload(edited)
        await eventually(lambda: "1" in world.published(), world.published)
        await manager.kill()
        await manager.start(running=["a"])
        await eventually(lambda: world.dra.restarts == 1)
        assert set(await manager.prepare("a", name)) == set(names)
        assert path.read_bytes() == content
        await manager.kill()
    path.unlink()
    async with world.run(edited):
        await manager.start(running=["a"])
        await world.until(Y, State.REGISTERED)
        assert set(await manager.prepare("a", name)) == set(names)
        assert path.read_bytes() == content


async def test_pod_keeps_its_device_without_state(world: World, manager: DraManager) -> None:
    (world.devices / "n0").touch()
    first = reserved(world, "u1", X, "n0", pods="a")
    late = reserved(world, "u2", X, "n0", pods="b")
    async with world.run(declare_files(world, X), until=X):
        await manager.prepare("a", first)
        records = world.records()
    world.lists.hold("a", X, "n0", claim=first)
    shutil.rmtree(world.state)
    await manager.kill()
    async with world.run(declare_files(world, X)):
        await manager.start(running=["a"])
        await world.until(X, State.REGISTERED)
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        await manager.prepare("a", first)
        assert world.records() == records
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        world.lists.pods.clear()
        await eventually(lambda: not world.holders(X))
        assert not await manager.unprepare("a", first)
        await manager.prepare("b", late)


async def until_offered(world: World, driver: str, *names: str) -> None:
    """Wait until pods may be given these devices of a driver."""

    def offered() -> list[str]:
        specs = [content["spec"] for content in world.slices()]
        devices = (spec["devices"] for spec in specs if spec["driver"] == driver)
        return [device["name"] for device in itertools.chain(*devices) if "taints" not in device]

    await eventually(lambda: offered() == [*names], world.slices)


async def refusal(manager: DraManager, pod: str, claim: str) -> str:
    with pytest.raises(RuntimeError) as refused:
        await manager.prepare(pod, claim)
    return str(refused.value)


@pytest.fixture
def claims(world: World) -> tuple[str, str]:
    """A claim of each driver, of one node; there is another one."""
    for name in ("n0", "n1"):
        (world.devices / name).touch()
    return (
        reserved(world, "u1", X, "n0", pods="a", driver=OLD),
        reserved(world, "u2", X, "n0", pods="b", driver=NEW),
    )


async def test_waiting_driver_gives_no_node(
    world: World, manager: DraManager, claims: tuple[str, str]
) -> None:
    (first, late), second = claims, World.beside(world)
    async with (
        world.run(declare_files(world, X), OLD, until=X),
        second.run(declare_files(world, X), NEW),
    ):
        await second.until(X, State.WAITING, BY_DRA)
        await eventually(lambda: second.dra.registrar.registrations)
        await manager.prepare("a", first)
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        await until_offered(world, OLD, "n0", "n1")
        await world.stop()
        await until_offered(world, NEW, "n1")
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        assert [record["claim"] for record in world.records()] == ["u1"]
        async with world.run(declare_files(world, X), OLD):  # which waits, and ends what it gave
            await eventually(lambda: world.dra.registrar.registrations)
            assert not await manager.unprepare("a", first)
            await until_offered(world, NEW, "n0", "n1")
            await manager.prepare("b", late)


async def test_one_driver_gives_a_node(
    world: World, manager: DraManager, claims: tuple[str, str]
) -> None:
    (first, _), second = claims, World.beside(world)
    late = reserved(world, "u3", Y, "n0", pods="b", driver=NEW)
    async with world.run(declare_files(world, X), OLD), second.run(declare_files(world, Y), NEW):
        await world.until(X, State.REGISTERED)
        await second.until(Y, State.REGISTERED)
        await until_offered(world, NEW, "n0", "n1")
        await manager.prepare("a", first)
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        await until_offered(world, NEW, "n1")
        assert not await manager.unprepare("a", first)
        await until_offered(world, NEW, "n0", "n1")
        await manager.prepare("b", late)
        await until_offered(world, OLD, "n1")


async def test_node_of_a_former_driver(
    world: World, manager: DraManager, claims: tuple[str, str]
) -> None:
    first, late = claims
    async with world.run(declare_files(world, X), OLD, until=X):
        await manager.prepare("a", first)
    world.lists.hold("a", X, "n0", driver_name=OLD, claim=first)
    async with world.run(declare_files(world, X), NEW, until=X):
        await until_offered(world, NEW, "n1")
        assert f"claim default/{first}" in await refusal(manager, "b", late)
        assert await manager.unprepare("a", first), "there is no such driver"
        world.api.remove(f"{CLAIMS}/{first}")  # with its pod, by force
        world.lists.pods.clear()
        await refusal(manager, "b", late)
        await until_offered(world, NEW, "n0", "n1")
        await manager.prepare("b", late)


async def test_pod_status_has_the_health_of_its_device(world: World, manager: DraManager) -> None:
    device = world.devices / "d"
    device.touch()
    config = declare_files(world, X, ', allocate: {env: {A: "${id}"}}')

    async def until_health(*wanted: str) -> None:
        async with asyncio.timeout(30):
            while [*(shown := (await manager.health("a", name))[0]).values()][1:] != [*wanted]:
                await asyncio.sleep(0.05)
        assert shown["resourceID"] == "dra.devhost/claim=cu-s0"

    async with world.run(config, until=X):
        name = reserved(world, "u", X, "d", pods="a")
        await manager.prepare("a", name)
        await until_health("Healthy")
        device.unlink()
        await until_health("Unhealthy", "not found any more")
        await manager.kill()
        await manager.start(running=["a"])
        await until_health("Unhealthy", "not found any more")
        device.touch()
        await until_health("Healthy")
    await until_health("Unknown")
