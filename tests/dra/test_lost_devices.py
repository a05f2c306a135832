"""A device that is lost: it stays in the slice with a taint, and the pods that have it are evicted."""

from dataclasses import replace
from typing import Any, Final

import pytest

from devhost.backends.dra.pool import (
    SLICE_MAX,
    PoolDevice,
    PoolKey,
    device_entries,
    pool_devices,
    writes,
)
from devhost.backends.dra.taints import PoolTaints
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Missing, Snapshot, Verdict
from devhost.model.device_node import Node
from devhost.model.records import ClaimedDevice
from tests.dra.test_dra_host import SERIAL, a_link_to_null, lead_to_zero
from tests.dra.world import World, eventually

T: Final = "example.com/t"
MISSING, EVICTED = "devhost/missing=not-found:NoSchedule", "devhost/missing=not-found:NoExecute"
KEY: Final = PoolKey("devhost", "node-1", "uid", f"node-1/{T}")


def config_of(world: World, **keys: str) -> str:
    rest = "".join(f", {key}: {value}" for key, value in keys.items())
    return f"""
version: v1
resources:
  - {{name: {T}, backend: dra, sources: [directory: {{path: {world.devices}}}], allocate: {{env: {{A: "${{id}}"}}}}{rest}}}
"""


async def test_lost_device_evicts_pods_and_stays_until_the_claim_ends(world: World) -> None:
    for name in "abc":
        (world.devices / name).touch()
    keys = {"evict": "true", "evictAfter": "100ms"}
    async with world.serve(config_of(world, **keys), T):
        name = await world.prepare("u", T, "a")
        await world.until_published("a", "b", "c")
        (world.devices / "a").unlink()
        (world.devices / "b").unlink()
        await world.until_tainted(a=EVICTED, b=MISSING)  # no claim has the other one
        world.reload(config_of(world, **keys, removeMissingAfter="0s"))
        await world.until_tainted(a=EVICTED)
        assert world.published() == ["c"]
        assert not await world.kubelet.unprepare(name, "u")
        await world.until_tainted()
        (world.devices / "a").touch()
        await world.until_published("a", "c")


async def test_device_that_comes_back_in_time_evicts_nobody(world: World) -> None:
    (world.devices / "a").touch()
    async with world.serve(config_of(world, evict="true", evictAfter="1h"), T):
        await world.prepare("u", T, "a")
        (world.devices / "a").unlink()
        await world.until_tainted(a=MISSING)
        (world.devices / "a").touch()
        await world.until_tainted()


@pytest.mark.parametrize(
    "edit",
    [("evictAfter", 'id: "new-${name}", evictAfter'), ("devices}", "devices, exclude: [a]}")],
    ids=["another ID", "excluded"],
)
async def test_device_removed_by_an_edit_evicts_nobody(world: World, edit: tuple[str, str]) -> None:
    (world.devices / "a").touch()
    config = config_of(world, evict="true", evictAfter="0s")
    async with world.serve(config, T):
        name = await world.prepare("u", T, "a")
        world.reload(config.replace(*edit))
        await eventually(lambda: world.taints().get("a"), world.taints)
        assert world.taints()["a"] == "devhost/unhealthy=not-offered:NoSchedule"
        assert not await world.kubelet.unprepare(name, "u")
        await eventually(lambda: "a" not in world.taints(), world.taints)


async def test_device_that_comes_back_with_another_number_evicts_its_pods(world: World) -> None:
    """Containers that run have the former node; those of a new sandbox have the present one."""
    link, config = a_link_to_null(world)
    config = config.replace("backend: dra", "backend: dra\n    evict: true\n    evictAfter: 0s")
    async with world.serve(config, SERIAL):
        name = await world.prepare("u", SERIAL, "tty0")
        lead_to_zero(link)
        await world.until_tainted(tty0="devhost/unhealthy=renumbered:NoExecute")
        await world.kubelet.prepare(name, "u")
        await eventually(lambda: "NoExecute" not in str(world.taints()), world.taints)


async def test_device_of_two_claims_evicts_until_both_have_the_node(world: World) -> None:
    link, config = a_link_to_null(world)
    keys = "evict: true, evictAfter: 0s, replicas: 2, maxPerContainer: 1"
    config = config.replace("backend: dra", "backend: dra\n    " + keys.replace(", ", "\n    "))
    async with world.serve(config, SERIAL):
        names = {uid: world.claim(uid, SERIAL, "tty0", shareID=uid) for uid in "uv"}
        for uid, name in names.items():
            assert not (await world.kubelet.prepare(name, uid)).error
        lead_to_zero(link)
        renumbered = {"tty0": "devhost/unhealthy=renumbered:NoExecute"}
        await world.until_tainted(**renumbered)
        await eventually(lambda: all(record["devices"][0]["moved"] for record in world.records()))
        assert not (await world.kubelet.prepare(names["v"], "v")).error
        assert world.offer(SERIAL).taints.by_name["tty0"].cause == "renumbered"
        assert not (await world.kubelet.prepare(names["u"], "u")).error
        await eventually(lambda: "NoExecute" not in str(world.taints()), world.taints)


async def test_restart_with_a_lost_device_evicts_nobody(world: World) -> None:
    (world.devices / "a").touch()
    config = config_of(world, evict="true", evictAfter="0s")
    async with world.serve(config, T):
        await world.prepare("u", T, "a")
    (world.devices / "a").unlink()
    async with world.serve(config):
        await world.until_tainted(a="devhost/unhealthy=not-offered:NoSchedule")


def pool_of(*devices: HostDevice, **keys: Any) -> tuple[Resource, list[PoolDevice]]:
    resource = Resource.model_validate({"name": T, "sources": [{"dev": "kvm"}], **keys})
    return resource, pool_devices(resource, Snapshot({device.id: device for device in devices}))


def host_device(device_id: str, **keys: Any) -> HostDevice:
    return replace(HostDevice(device_id, (Node("", None, 0, device_id, {"port": "1"}),)), **keys)


def claimed(name: str) -> dict[str, ClaimedDevice]:
    device = ClaimedDevice(resource=T, id=name, request="r", pool=KEY.name, device=name, scope=0)
    return {name: device}


@pytest.mark.parametrize(
    ("cause", "kind", "is_lost"),
    [
        (Cause.CHECK_FAILED, "unhealthy", True),
        (Cause.SOURCE_FAILED, "unhealthy", False),
        (Cause.WITHHELD, "unhealthy", False),
        (Cause.NOT_FOUND, "missing", True),
    ],
)
def test_taint_says_what_is_wrong_with_a_device(cause: Cause, kind: str, *, is_lost: bool) -> None:
    absence = Missing(0.0) if kind == "missing" else None
    resource, pool = pool_of(host_device("a", verdict=Verdict(cause, "text"), absence=absence))
    taints = PoolTaints()
    taints.update(resource, pool, claimed("a"), 0.0)
    assert taints.by_name["a"].is_lost is is_lost
    assert taints.entries("d")["a"] == {
        "key": f"d/{kind}",
        "value": cause.value.replace(" ", "-"),
        "effect": "NoSchedule",
    }


def test_device_that_a_claim_has_stays_with_the_attributes_of_the_others() -> None:
    """A selector fails for all pods where a device lacks an attribute."""
    resource, pool = pool_of(host_device("b", numa_nodes=(1,)), replicas=4, maxPerContainer=1)
    first, second = device_entries(resource, pool, {"a": {"key": "d/missing"}}, {"a": "a::0"})
    assert (first["name"], second["name"]) == ("b", "a")
    assert first["attributes"].keys() == second["attributes"].keys()
    assert first["capacity"] == second["capacity"]
    assert "taints" not in first
    assert second["taints"] == [{"key": "d/missing"}]


def test_time_of_a_taint_is_kept_until_it_has_another_effect() -> None:
    """Else a pod that tolerates it for some time would be left longer at each write."""
    devices: list[dict[str, Any]] = [{"name": f"d{number}"} for number in range(SLICE_MAX)]
    taint = {"key": "d/missing", "value": "not-found", "effect": "NoSchedule"}
    present: dict[str, Any] = {}

    def write(now: str) -> list[Any]:
        for verb, name, body in writes(KEY, devices, present, now):
            assert verb in ("POST", "PUT")
            assert body is not None
            version = body["metadata"].get("resourceVersion", "")
            present[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        (content,) = present.values()
        return [
            device.get("taints", [{}])[0].get("timeAdded") for device in content["spec"]["devices"]
        ]

    write("1")
    devices[3] = {**devices[3], "taints": [taint]}
    assert write("2")[3] == "2"
    devices[4] = {**devices[4], "taints": [taint]}
    assert write("3")[3:5] == ["2", "3"]
    devices[3] = {**devices[3], "taints": [{**taint, "effect": "NoExecute"}]}
    assert write("4")[3:5] == ["4", "3"]
    assert not writes(KEY, devices, present, "5")


def test_device_is_lost_anew_after_each_time_that_it_was_there() -> None:
    lost = {"verdict": Verdict(Cause.NOT_FOUND, "text"), "absence": Missing(0.0)}
    resource, lost_pool = pool_of(
        host_device("a", **lost), host_device("b", **lost), evict=True, evictAfter="10s"
    )
    _, first = pool_of(host_device("a", **lost), host_device("b"))
    taints = PoolTaints()
    for pool, now in ((lost_pool, 0.0), (first, 5.0), (lost_pool, 12.0)):
        taints.update(resource, pool, claimed("a") | claimed("b"), now)
    assert taints.evicted == {"a"}
    assert taints.next_at == 22.0
    taints.update(resource, lost_pool, claimed("a") | claimed("b"), 22.0)
    assert taints.evicted == {"a", "b"}
    assert taints.next_at is None
