"""devhost under the DRA manager of a real kubelet, for what happens to either of them."""

import json
import shutil
from collections.abc import AsyncIterator

import pytest

from devhost.backends.dra.slices import PATH
from devhost.fake_kubelet.api_server import StatusError
from devhost.fake_kubelet.dra_kubelet import CLAIMS
from devhost.model.resource_state import State
from tests.dra.manager import DraManager
from tests.dra.test_dra_host import SERIAL, SERIALS, TOKEN, TOKENS
from tests.dra.world import World, eventually
from tests.support import dra_build
from tests.support.realkubelet import UNSET

pytestmark = pytest.mark.program("dra")
VERSIONS = [
    pytest.param(minor, marks=pytest.mark.real_kubelet) for minor in dra_build.versions()
] or [pytest.param("", marks=pytest.mark.skip(reason=UNSET))]


@pytest.fixture(params=VERSIONS)
async def manager(request: pytest.FixtureRequest, world: World) -> AsyncIterator[DraManager]:
    async with DraManager(dra_build.build(request.param), world).running() as manager:
        yield manager


def reserved(
    world: World, uid: str, resource: str, *devices: str, pods: list[str], name: str = ""
) -> str:
    """Make a claim that is reserved for pods."""
    name = world.claim(uid, resource, *devices, name=name)
    content = world.api.objects[f"{CLAIMS}/{name}"]
    reserved_for = [{"resource": "pods", "name": pod, "uid": f"pod-{pod}"} for pod in pods]
    world.api.put(
        f"{CLAIMS}/{name}",
        {**content, "status": {**content["status"], "reservedFor": reserved_for}},
    )
    return name


async def test_a_pod_by_extended_name_and_one_by_its_own_claim(
    world: World, manager: DraManager
) -> None:
    async with world.run(SERIALS):
        await world.until(SERIAL, State.REGISTERED)
        first = reserved(world, "u1", SERIAL, "fake-null", "fake-zero", pods=["a"])
        names = await manager.prepare("a", first, SERIAL)
        kind = "dra.devhost/claim"
        assert sorted(names) == [f"{kind}=cu1-0", f"{kind}=cu1-1", f"{kind}=cu1-s0"]
        assert {name.partition("=")[2] for name in names} == world.spec().keys()
        assert not await manager.unprepare("a", first)
        assert not world.records()
        second = reserved(world, "u2", SERIAL, "fake-zero", pods=["b"])
        assert f"{kind}=cu2-0" in await manager.prepare("b", second)


async def test_kubelet_is_killed(world: World, manager: DraManager) -> None:
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "u", TOKEN, "0", pods=["a"])
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
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "u", TOKEN, "0", pods=["a"])
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


async def test_a_claim_of_two_pods_is_prepared_once(world: World, manager: DraManager) -> None:
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "u", TOKEN, "0", pods=["a", "b"])
        assert await manager.prepare("a", name) == await manager.prepare("b", name)
        assert not await manager.unprepare("a", name)
        assert world.records()
        assert not await manager.unprepare("b", name)
        assert not world.records()


async def test_a_claim_is_deleted_and_its_name_used_again(
    world: World, manager: DraManager
) -> None:
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "old", TOKEN, "0", pods=["a"])
        await manager.prepare("a", name)
    world.api.remove(f"{CLAIMS}/{name}")
    reserved(world, "new", TOKEN, "1", pods=["b"], name=name)
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        assert not await manager.unprepare("a", name)
        assert not world.records()
        assert await manager.prepare("b", name) == ["dra.devhost/claim=cnew-s0"]
        assert [record["claim"] for record in world.records()] == ["new"]


async def test_the_api_server_is_away(world: World, manager: DraManager) -> None:
    def away(_verb: str, _path: str) -> None:
        raise StatusError(503, "away")

    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "u", TOKEN, "0", pods=["a"])
        await manager.prepare("a", name)
        world.api.fault = away
        world.api.break_watches()
        await world.until(TOKEN, State.WAITING, "503 away")
        assert len(world.slices()) == 1
        assert not await manager.unprepare("a", name)
        world.api.fault = lambda _verb, _path: None
        await world.until(TOKEN, State.REGISTERED)


async def test_a_checkpoint_of_either_version_is_read(world: World, manager: DraManager) -> None:
    """A rollback of devhost keeps what it does not know, and kubelet asks again."""
    async with world.run(TOKENS):
        await world.until(TOKEN, State.REGISTERED)
        name = reserved(world, "u", TOKEN, "0", pods=["a"])
        await manager.prepare("a", name)
        await manager.kill()
    (path,) = (world.state / "claims").glob("*.json")
    newer, other = {"of": "a newer version"}, path.with_name("devhost_other.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **newer}))
    other.write_text(json.dumps(newer))
    async with world.run(TOKENS):
        await manager.start(running=["a"])
        await world.until(TOKEN, State.REGISTERED)
        assert not await manager.unprepare("a", name)
        assert not path.exists()
        assert json.loads(other.read_text()) == newer
