"""To publish a part is to publish the whole, of which the rest is as it was."""

import asyncio
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner, ScanResult
from devhost.host.holders import Holders
from devhost.host.ownership.owners import Owners
from devhost.host.resource.publisher import Publisher
from devhost.hostfs.files import HostFiles
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.instances import Instances
from devhost.loading.loader import load_bytes
from devhost.model.device import FileKind, FileState, HostDevice, Node, Snapshot

IDS = "abcd"


def scanner(replicas: int) -> Scanner:
    raw = f"version: v1\nresources: [{{name: a.b/c, sources: [static: 1], replicas: {replicas}}}]"
    config = load_bytes(raw.encode(), "c.yaml").config
    assert config is not None
    policy = Policy((), allow_exec=False, enforced=False)
    return Scanner.of(config.resources[0], HostFiles(), policy, "node", hold_s=0.0)


class Published:
    """A publisher among others, and what it has led to."""

    def __init__(self, replicas: int) -> None:
        self.device_list = DeviceList(leave_after=1000.0)
        self.owners = Owners(
            Holders(None), Instances(Path("/nowhere")), None, assume_free=False, leave_after=1000.0
        )
        self.publisher = Publisher(scanner(replicas), self.device_list, self.owners, [])
        self.resource = self.publisher.scanner.resource

    async def elsewhere(self, ids: set[str]) -> None:
        """Another resource has had these nodes."""
        other = replace(self.resource, name="other")
        await self.owners.keep(other, [device(one, "well") for one in ids])

    @property
    def result(self) -> object:
        snapshot, found = self.publisher.snapshot, self.publisher.found
        entries, leaving = dict(self.device_list.entries), set(self.device_list.leaving)
        return (dict(snapshot.devices), found, entries, leaving)

    def told(self) -> None:
        """The kubelet has the list."""
        stream = self.device_list.open_stream()
        self.device_list.end_send(stream, self.device_list.begin_send(stream), 0.0)
        self.device_list.close_stream(stream)


def path(name: str) -> str:
    return f"/dev/{name}"


def device(name: str, state: str) -> HostDevice:
    seen = FileState(path(name), FileKind.CHAR, (1, ord(name)), (1, ord(name), 1))
    found = HostDevice(name, (Node(path(name), seen, 0, name),))
    if state == "aligned":
        return replace(found, numa_nodes=(1,))
    if state == "sick":
        return replace(found, reason="it is sick")
    if state == "missing":
        return replace(found, reason="not found any more", missing_since=1.0)
    return found


states = st.sampled_from(["well", "well", "sick", "missing", "aligned", "gone"])
changes = st.lists(st.dictionaries(st.sampled_from(IDS), states, min_size=1), max_size=6)


@given(st.sampled_from([1, 3]), changes, st.sets(st.sampled_from(IDS), max_size=1), st.booleans())
def test_a_part_is_the_whole(
    replicas: int, changes: list[dict[str, str]], elsewhere: set[str], told: bool
) -> None:
    async def publish() -> None:
        whole, part = Published(replicas), Published(replicas)
        for one in (whole, part):
            await one.elsewhere(elsewhere)
            one.publisher.publish(one.publisher.scanner, Snapshot())
        for change in changes:
            if told:
                whole.told()
                part.told()
            before = part.publisher.found
            devices = {one: device(one, how) for one, how in change.items() if how != "gone"}
            gone = frozenset(change.keys() & before.devices.keys() - devices.keys())
            kept = {key: one for key, one in before.devices.items() if key not in gone}
            after = Snapshot({**kept, **devices})
            await whole.owners.keep(whole.resource, after.devices.values())
            await part.owners.keep(part.resource, devices.values())
            whole.publisher.publish(whole.publisher.scanner, after)
            assert part.publisher.publish_change(ScanResult(before, after, devices, gone))
            assert part.result == whole.result

    asyncio.run(publish())


async def test_a_part_of_something_else_is_left_alone() -> None:
    """Nothing is published by what was found before the last look."""
    at = Published(1)
    before = Snapshot()
    after = Snapshot({"a": device("a", "well")})
    assert not at.publisher.publish_change(
        ScanResult(before, after, dict(after.devices), frozenset())
    )
    assert not at.device_list.entries


async def test_what_pods_hold_has_to_fit_into_the_list_too() -> None:
    """The kubelet would end the stream of a longer one, and the resource would no longer be served."""
    one = Published(1)
    held = frozenset(f"{number:063}" for number in range(100_000))
    one.device_list.ids_held_by_pods = lambda: held
    snapshot = Snapshot({"a": device("a", "well")})
    for _ in range(2):
        one.publisher.publish(one.publisher.scanner, snapshot)
    assert one.device_list.room >= 0
    assert "a" in one.device_list.entries
    assert "a" not in one.device_list.leaving
    assert one.device_list.leaving == one.device_list.entries.keys() & held
    assert 10_000 < len(one.device_list.leaving) < len(held)
