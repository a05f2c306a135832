"""Pools, without any IO: names, attributes, and writes that bring what was found to what is wanted."""

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.backends.dra.api_client import ApiError, reading_answer
from devhost.backends.dra.claim_content import scopes
from devhost.backends.dra.pool import (
    SLICE_MAX,
    PoolKey,
    PoolWrite,
    device_entries,
    device_name,
    named_slice,
    pool_devices,
    pool_name,
    writes,
)
from devhost.backends.share_ids import offered_ids
from devhost.errors import AllocationError
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.device_node import Node

Json = dict[str, Any]
SERIAL: Final = "example.com/serial"
NOW: Final = "2026-01-01T00:00:00Z"
KEY: Final = PoolKey("devhost", "node-1", "uid", "node-1/example.com/serial")
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN: Final = re.compile(rf"{LABEL.pattern}(\.{LABEL.pattern})*")
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=70)


def device(device_id: str, **variables: str) -> HostDevice:
    return HostDevice(device_id, (Node("", None, 0, device_id, variables),))


def snapshot(*devices: HostDevice) -> Snapshot:
    return Snapshot({device.id: device for device in devices})


def resource(**keys: Any) -> Resource:
    return Resource.model_validate({"name": SERIAL, "sources": [{"dev": "kvm"}], **keys})


def entries_of(*devices: HostDevice, **keys: Any) -> dict[str, Mapping[str, Any]]:
    pool = pool_devices(resource(**keys), snapshot(*devices))
    entries = device_entries(resource(**keys), pool, {}, {})
    return {entry["name"]: entry for entry in entries}


@given(ids)
def test_a_device_has_a_name_that_the_api_takes(advertised_id: str) -> None:
    name = device_name(advertised_id)
    assert LABEL.fullmatch(name)
    assert len(name) <= 63
    assert device_name(advertised_id) == name


@given(st.sets(st.one_of(ids, st.sampled_from(["a", "A", "a-", "a_", "á", "a" * 64, "a" * 65]))))
def test_two_devices_never_share_a_name(advertised_ids: set[str]) -> None:
    assert len({device_name(token) for token in advertised_ids}) == len(advertised_ids)


@pytest.mark.parametrize("advertised_id", ["fake-0", "0", "a" * 63])
def test_an_id_that_is_a_label_is_the_name(advertised_id: str) -> None:
    assert device_name(advertised_id) == advertised_id


@given(
    st.from_regex(SUBDOMAIN, fullmatch=True).filter(lambda name: len(name) < 237)
    | st.sampled_from(["n" * size for size in (180, 236)]),
    st.from_regex(r"[a-z]{1,9}\.com/[A-Za-z0-9]([A-Za-z0-9._-]{0,50}[A-Za-z0-9])?", fullmatch=True),
)
def test_names_pass_the_api_and_the_policy_of_the_chart(node: str, resource: str) -> None:
    pool = pool_name(node, resource)
    (name,) = PoolKey("devhost", node, "uid", pool).slices(listed(1), 1)
    assert pool.startswith(f"{node}/")
    assert all(SUBDOMAIN.fullmatch(part) for part in (*pool.split("/"), name))
    assert name[17:] == node
    assert max(len(pool), len(name)) <= 253


def test_pools_of_names_that_differ_in_case_differ() -> None:
    assert pool_name("n", SERIAL) == f"n/{SERIAL}"
    for node in ("n", "n" * 236):
        similar = [f"example.com/{name}" for name in ("a.b", "a-b", "A-b", "a_b")]
        assert len({pool_name(node, resource) for resource in similar}) == 4


def test_all_devices_have_the_same_attributes() -> None:
    first, second = device("a", port="1", **{"usb.serial": "X"}), device("b", index="long" * 17)
    entries = entries_of(first, second)
    assert [entry["name"] for entry in entries.values()] == ["a", "b"]
    assert entries["a"]["attributes"] == {
        "resource": {"string": SERIAL},
        "id": {"string": "a"},
        "port": {"string": "1"},
        "usbSerial": {"string": "X"},
    }
    assert entries["b"]["attributes"]["usbSerial"] == {"string": ""}


@given(st.lists(st.dictionaries(ids, ids, max_size=40), min_size=1, max_size=3))
def test_attributes_stay_within_the_limits_of_the_api(named: list[dict[str, str]]) -> None:
    devices = [
        HostDevice(str(place), (Node("", None, 0, "", values),))
        for place, values in enumerate(named)
    ]
    entries = [*entries_of(*devices).values()]
    assert len({frozenset(entry["attributes"]) for entry in entries}) == 1
    for entry in entries:
        assert len(entry["attributes"]) <= 32
        for name, value in entry["attributes"].items():
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name)
            assert len(value["string"].encode()) <= 64


def test_a_numa_node_is_shown_for_all_devices_or_none() -> None:
    near = replace(device("a"), numa_nodes=(1,))
    key = "resource.kubernetes.io/numaNode"
    assert entries_of(near)["a"]["attributes"][key] == {"int": 1}
    assert key not in entries_of(near, device("b"))["a"]["attributes"]


def test_shares_for_different_containers_are_a_capacity() -> None:
    entry = entries_of(device("a"), replicas=110, maxPerContainer=1)["a"]
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    assert entry["attributes"]["id"] == {"string": "a"}
    assert entry["allowMultipleAllocations"] is True
    assert entry["capacity"] == {"shares": {"value": "110", "requestPolicy": policy}}
    assert "capacity" not in entries_of(device("a"), maxPerContainer=1)["a"]
    many = entries_of(device("a"), replicas=2000, maxPerContainer=1)["a"]
    assert many["capacity"]["shares"]["value"] == "2k", "as the API server writes it"


prefers = st.sampled_from(["none", "spread", "packed", "numa"])


@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([None, 1, 2]), prefers)
def test_shares_are_offered_in_order(
    count: int, replicas: int, most: int | None, prefer: str
) -> None:
    devices, keys = [device(str(place)) for place in range(count)], {"maxPerContainer": most}
    keys = {key: value for key, value in keys.items() if value is not None}
    wanted = resource(replicas=replicas, prefer=prefer, **keys)
    pool = pool_devices(wanted, snapshot(*devices))
    offered = [(entry.device, offered.id) for entry in pool for offered in entry.ids]
    assert sorted(offered_id for _, offered_id in offered) == sorted(
        offered.id for device in devices for offered in offered_ids(device.id, replicas)
    )
    if most == 1 or prefer == "packed":
        numbers = [int(device.id) for device, _ in offered]
        assert numbers == sorted(numbers)
    else:
        shares = [offered_id.rpartition("::")[2] for _, offered_id in offered]
        assert shares == sorted(shares) or replicas == 1
    entries = device_entries(wanted, pool, {}, {})
    assert [entry["name"] for entry in entries] == [device.name for device in pool]
    assert len(entries) == len(pool) == (count if most == 1 else count * replicas)
    cluster = Cluster()
    for write in writes(KEY, entries, {}, NOW):
        cluster.write(write)
    assert cluster.devices() == entries


class Cluster:
    """The slices as the API server has them; after each write it counts complete generations."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self._version = 0

    def write(self, write: PoolWrite) -> None:
        self._version += 1
        if write.verb == "DELETE":
            del self.slices[write.name]
        else:
            assert write.body is not None
            assert (write.verb == "PUT") is (write.name in self.slices)
            former = self.slices.get(write.name)
            version = write.body["metadata"].get("resourceVersion")
            assert version == (former and former["metadata"]["resourceVersion"])
            metadata = {**write.body["metadata"], "resourceVersion": str(self._version)}
            self.slices[write.name] = {**write.body, "metadata": metadata}
        assert len(self.complete()) <= 1

    def complete(self) -> list[int]:
        pools = [entry["spec"]["pool"] for entry in self.slices.values()]
        counts = Counter(pool["generation"] for pool in pools)
        return [at for at, count in counts.items() if needed(pools, at) == {count}]

    def devices(self) -> list[object]:
        return [device for _, s in sorted(self.slices.items()) for device in s["spec"]["devices"]]


def needed(pools: Sequence[Json], generation: int) -> set[int]:
    return {pool["resourceSliceCount"] for pool in pools if pool["generation"] == generation}


def listed(count: int, first: int = 0) -> Sequence[Json]:
    return [{"name": f"d{number}"} for number in range(first, first + count)]


names = st.sampled_from(
    (
        *("metadata", "spec", "pool", "name", "generation", "resourceVersion", "devices", "status"),
        *("taints", "key", "effect", "timeAdded"),
        *("annotations", "allocation", "results", "config", "driver", "request", "device", "uid"),
    )
)
sizes = st.sampled_from([0, 1, 2, SLICE_MAX, SLICE_MAX + 1, 3 * SLICE_MAX])
steps = st.lists(st.tuples(sizes, st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=5)


@given(steps)
def test_writes_lead_to_what_is_wanted_from_wherever_they_were_interrupted(
    wanted: list[tuple[int, int, int]],
) -> None:
    cluster = Cluster()
    for size, first, done in wanted:
        for write in writes(KEY, listed(size, first), cluster.slices, NOW)[:done]:
            cluster.write(write)
    final = listed(*wanted[-1][:2])
    for write in writes(KEY, final, cluster.slices, NOW):
        cluster.write(write)
    assert cluster.devices() == final
    assert len(cluster.complete()) == bool(final), "else no pod is given a device"
    assert not writes(KEY, final, cluster.slices, NOW), "equal input needs no write"


@given(sizes, st.integers(0, 70))
def test_an_edit_of_one_device_is_one_write(size: int, place: int) -> None:
    cluster = Cluster()
    for write in writes(KEY, listed(size), cluster.slices, NOW):
        cluster.write(write)
    changed = [*listed(size)]
    if changed:
        changed[place % size] = {"name": "other"}
    needed = writes(KEY, changed, cluster.slices, NOW)
    assert [write.verb for write in needed] == ["PUT"] * bool(changed)
    assert all(
        write.body is not None and write.body["spec"]["pool"]["generation"] == 1 for write in needed
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(names, values))
def test_what_the_api_server_answers_is_read_or_is_an_error_of_its_own(answer: Json) -> None:
    with contextlib.suppress(ApiError, AllocationError), reading_answer():
        name, content = named_slice(answer)
        assert isinstance(name, str)
        writes(KEY, [{"name": "a", "taints": [{"key": "k", "effect": "e"}]}], {name: content}, NOW)
    with contextlib.suppress(ApiError, AllocationError), reading_answer():
        scopes(answer, "devhost")


def test_a_slice_belongs_to_the_node() -> None:
    (write,) = writes(KEY, listed(1), {}, NOW)
    assert write.body is not None
    assert re.fullmatch(r"00000-[0-9a-f]{10}-node-1", write.name)
    (owner,) = write.body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-1", "uid")
    assert write.body["spec"]["nodeName"] == "node-1"
