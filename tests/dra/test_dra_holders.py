"""The pods that hold devices of claims: by kubelet's list, and when nobody tells of an end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from devhost.model.advertised import OfferedId
from devhost.model.resource_state import State
from tests.dra.test_dra_host import SERIAL, SERIALS, SHARED, TOKEN, TOKENS
from tests.dra.world import World, eventually
from tests.support.api_server import StatusError
from tests.support.dra_kubelet import CLAIMS


@contextlib.asynccontextmanager
async def a_pod(world: World, config: str, resource: str, device: str) -> AsyncIterator[str]:
    """Run the host with a pod that holds a device by a claim ``u``."""
    async with world.serve(config, resource):
        name = await world.prepare("u", resource, device)
        world.lists.hold("reader", resource, device)
        await world.until_holders(resource)
        yield name


async def test_status_names_the_pods_of_claims(world: World) -> None:
    world.lists.hold("stranger", TOKEN, "1", driver_name="another")
    async with a_pod(world, TOKENS, TOKEN, "0"):
        assert world.holders(TOKEN) == {"0": ["default/reader"]}


async def test_status_names_the_pods_of_shares(world: World) -> None:
    async with world.serve(SHARED, TOKEN):
        for uid in "ab":
            await world.prepare(uid, TOKEN, "0", shareID=uid)
        world.lists.hold("second", TOKEN, "0", share_id="b")
        await world.until_holders(TOKEN)
        assert world.holders(TOKEN) == {"0::1": ["default/second"]}


async def test_held_node_is_not_offered_under_another_id(world: World) -> None:
    async with a_pod(world, SERIALS, SERIAL, "fake-null") as name:
        world.reload(SERIALS.replace("fake-$", "new-$"))
        await world.until_published("new-zero")
        served = world.served(SERIAL)
        reason = served.devices.offered.devices["new-null"].reason
        assert reason == f"withheld: held as {SERIAL} fake-null by default/reader"
        world.lists.pods.clear()
        await world.kubelet.unprepare(name, "u")
        await world.until_published("new-null", "new-zero")


async def test_claim_keeps_its_device_while_steps_run(world: World) -> None:
    go = world.devices / "go"
    async with world.serve(f"{SERIALS.rstrip()}\n    preStart: [{{waitFor: {go}}}]\n", SERIAL):
        name = world.claim("u", SERIAL, "fake-null")
        prepared = asyncio.create_task(world.kubelet.prepare(name, "u"))
        claims, table = world.host.parts.custody, world.host.parts.records.table
        await eventually(lambda: len(table))
        since, holders = asyncio.get_running_loop().time(), world.host.parts.holders
        await eventually(
            lambda: holders.confirmed_free(OfferedId("fake-null", "fake-null").name(SERIAL), since)
        )
        claims.end_free()
        go.touch()
        assert not (await prepared).error
        assert [handout.nodes for handout in table] != [()]


async def test_a_resource_drains_while_a_pod_holds(world: World) -> None:
    async with a_pod(world, TOKENS, TOKEN, "0") as name:
        world.reload("{version: v1, resources: []}")
        await world.until(TOKEN, State.DRAINING, "held by default/reader")
        world.lists.pods.clear()
        await world.kubelet.unprepare(name, "u")
        await eventually(lambda: not world.has(TOKEN))


async def test_device_of_the_other_backend_is_in_no_second_pod(world: World) -> None:
    async with a_pod(world, SERIALS, SERIAL, "fake-null"):
        pass
    async with world.run(SERIALS.replace("backend: dra", "backend: devicePlugin")):
        await eventually(lambda: "held as" in str(reasons(world)["fake-null"]))
        assert reasons(world)["fake-zero"] is None
    (path,) = (world.state / "claims").glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    path.unlink()
    kept = {key: device[key] for key in ("resource", "id", "nodes", "overlap")}
    (world.state / "records").mkdir(exist_ok=True)
    records = world.state / "records" / "example.com_serial.json"
    content = {"resource": SERIAL, "records": [{**kept, "device": device["id"]}]}
    records.write_text(json.dumps(content))
    world.lists.pods.clear()
    world.lists.by_plugin["q1"] = SERIAL, "fake-null"
    async with world.serve(SERIALS):
        await world.until(SERIAL, State.WAITING, "held by default/q1 by the device plugin")
        await eventually(lambda: "held as" in str(reasons(world)["fake-null"]))
        await world.until_published()  # the scheduler would not count q1
        late = world.claim("v", SERIAL, "fake-null")
        refused = (await world.kubelet.prepare(late, "v")).error
        assert refused == f"{SERIAL}: held by default/q1 by the device plugin"
        world.lists.by_plugin.clear()
        await world.until_published("fake-null", "fake-zero")


def reasons(world: World) -> dict[str, str | None]:
    """Return why each device is unhealthy; of no device before there are any."""
    devices = world.served(SERIAL).devices.offered.devices if world.has(SERIAL) else {}
    return {"fake-null": None, **{device.id: device.reason for device in devices.values()}}


@pytest.mark.parametrize("driver", ["devhost", "renamed"])
async def test_claim_that_has_gone_ends_with_its_pods(world: World, driver: str) -> None:
    async with a_pod(world, TOKENS, TOKEN, "0") as name:
        pass
    world.api.remove(f"{CLAIMS}/{name}")
    async with world.run(TOKENS, driver):
        await world.kubelet.register()
        await world.until_holders(TOKEN)
        assert [record["claim"] for record in world.records()] == ["u"], "a pod has it"
        world.lists.pods.clear()
        await eventually(lambda: not world.records(), world.records)
        await eventually(lambda: not world.cdi_files(), world.cdi_files)


async def test_claim_without_devices_ends_when_another_claim_has_them(world: World) -> None:
    async with a_pod(world, TOKENS, TOKEN, "0") as name:
        world.lists.pods.clear()
        world.api.objects[f"{CLAIMS}/{name}"]["status"] = {}
        late = world.claim("v", TOKEN, "0")
        assert "held by claim" in (await world.kubelet.prepare(late, "v")).error
        await eventually(lambda: not world.records(), world.records)
        assert not (await world.kubelet.prepare(late, "v")).error


async def test_share_of_a_claim_that_has_gone_ends_alone(world: World) -> None:
    async with world.serve(SHARED, TOKEN):
        names = {uid: world.claim(uid, TOKEN, "0", shareID=uid) for uid in "abc"}
        for uid, name in names.items():
            assert not (await world.kubelet.prepare(name, uid)).error
        world.lists.hold("first", TOKEN, "0", share_id="a")
        world.lists.hold("third", TOKEN, "0", share_id="c")
        await world.until_holders(TOKEN)
    world.api.remove(f"{CLAIMS}/{names['a']}")
    world.api.remove(f"{CLAIMS}/{names['b']}")
    async with world.run(SHARED):
        await eventually(lambda: [record["claim"] for record in world.records()] == ["a", "c"])


async def test_claim_outlives_an_error_of_the_api_server(world: World) -> None:
    async with a_pod(world, TOKENS, TOKEN, "0"):
        pass
    world.lists.pods.clear()
    requests = []

    def fault(_verb: str, path: str) -> None:
        if path.startswith(CLAIMS):
            requests.append(path)
            raise StatusError(500, "etcd")

    world.api.fault = fault
    async with world.serve(TOKENS, TOKEN):
        await eventually(lambda: requests)
        records, since = world.dra.claims.records.table, asyncio.get_running_loop().time()
        assert records is not None
        free = OfferedId("0", "0")
        await eventually(lambda: records.confirmed_free(TOKEN, free, since))
        requests.clear()
        for _ in range(2):  # it has looked at what it knows before it asks again
            world.dra.claims.conflict.set()
            await eventually(lambda: requests)
            requests.clear()
    assert [record["claim"] for record in world.records()] == ["u"]
