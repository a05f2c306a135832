"""Nodes that are withheld, and until when."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList, Stream
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.backends.resource_lock import LockState, ResourceLocks
from devhost.custody import custody as custody_module
from devhost.custody import record_files
from devhost.custody.custody import Custody
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.custody.state_dir import directory_lock
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.device_node import Hardware
from devhost.model.records import Steps
from devhost.model.resource_state import HeldBy
from tests.support import devices
from tests.support.devices import missing, reasons, snapshot
from tests.support.offered import offered

A, B = "example.com/a", "example.com/b"


class FakeHolders(Holders):
    def __init__(self, *pods: str) -> None:
        super().__init__(FakeBackend().pods, "node-1")
        self.pods = list(pods)

    def confirmed_free(self, *_: object, **__: object) -> bool:
        return not self.pods

    def pods_of_device(self, *_: object, **__: object) -> frozenset[str]:
        return frozenset(self.pods)


class FakeList(Holders):
    def __init__(self, by_name: Mapping[AdvertisedName, HeldBy]) -> None:
        super().__init__(FakeBackend().pods, "node-1")
        self._by_name = by_name

    @property
    def by_name(self) -> Mapping[AdvertisedName, HeldBy]:
        return self._by_name

    def plugin_pods(self, _resource: str) -> frozenset[str]:
        return frozenset().union(*(pods for ids in self._by_name.values() for pods in ids.values()))


class FakeLocks(ResourceLocks):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.locked, self.served = set[str](), set[str]()

    def lock_of(self, resource: str) -> LockState:
        return "other" if resource in self.locked else "ours"

    def has_served(self, resource: str) -> bool:
        return resource in self.served


class FakeBackend(DevicePluginBackend):
    def __init__(self, leave_after: float = 0.0) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere/pr.sock"), leave_after)


def resource(name: str, **keys: object) -> Resource:
    return Resource.model_validate({"name": name, "sources": ["/dev/x*"], **keys})


def device(name: str, inode: int = 1, path: str = "/dev/x", number: int = 64) -> HostDevice:
    return devices.device(name, devices.node(path, (4, number), inode=inode, changed=inode))


class CustodyFixture(Custody):
    """The claims of a process with two resources, and with their file."""

    def __init__(
        self, state: Path | None = None, holders: Holders | None = None, leave_after: float = 0.0
    ) -> None:
        self.backend, self.locks = FakeBackend(leave_after), FakeLocks()
        self.backend.locks = self.locks
        self.file = RecordFiles(state, self.locks.lock_of)
        super().__init__(holders or Holders(self.backend.pods, "node-1"), self.backend, self.file)
        for name in (A, B):
            self.add(name, DeviceList(0.0), lambda: None)

    @property
    def recorded(self) -> set[str]:
        return {f"{handout.id} {handout.steps}" for handout in self.file.table}

    async def give(self, declared: Resource, *offers: HostDevice, steps: Steps = "none") -> None:
        by_id = {device.id: device for device in offers}
        await self.hand_out(declared, by_id, offered(*by_id), steps=steps)


def published(custody: Custody, declared: Resource, *offers: HostDevice) -> list[str | None]:
    judged = custody.judge(declared, snapshot(*offers))
    custody.set_listed(declared, judged)
    return list(reasons(judged).values())


async def allocated(custody: CustodyFixture, declared: Resource, offer: HostDevice) -> bool:
    """Publish a device, allocate it if it is healthy, and return whether that was so."""
    if published(custody, declared, offer) == [None]:
        await custody.give(declared, offer)
        return True
    return False


def send(device_list: DeviceList, stream: Stream, offer: HostDevice) -> None:
    device_list.update({offer.id: AdvertisedDevice(offer.healthy)})
    now = asyncio.get_running_loop().time()
    device_list.streams.list_sent(stream, device_list.entries)
    device_list.streams.list_received(stream, device_list.entries, now)


@pytest.mark.parametrize(
    ("later", "again", "free"),
    [
        pytest.param(resource(A), device("a"), True, id="the same"),
        pytest.param(resource(B), device("a"), False, id="another resource"),
        pytest.param(resource(A), device("b"), False, id="another ID"),
        pytest.param(resource(A, replicas=2), device("a"), False, id="shares of it"),
        pytest.param(resource(B), device("a", path="/dev/y"), False, id="under another path"),
        pytest.param(resource(B), device("a", inode=2), False, id="a second node of its number"),
        pytest.param(resource(B), device("a", number=65), True, id="another number"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_claims_offer_what_was_allocated_under_one_name(
    tmp_path: Path, later: Resource, again: HostDevice, free: bool, restarted: bool
) -> None:
    first = CustodyFixture(tmp_path)
    assert await allocated(first, resource(A), device("a"))
    second = first
    if restarted:
        second = CustodyFixture(tmp_path)
        assert await second.reserved() == {A: {"/dev/x"}}
    assert await allocated(second, later, again) is free


async def test_claims_withhold_hardware_without_a_node_under_another_name() -> None:
    """The owned thing is a place in the kernel, such as that of a network interface."""
    at = Hardware(
        "/sys/0", "pci 0", "/sys/0/net/n", "/sys/0/net 0", "/sys/0/net 2", None, "net", "/sys/0"
    )
    interface, custody = devices.device("n", devices.token("n", at)), CustodyFixture()
    assert await allocated(custody, resource(A), interface)
    assert not await allocated(custody, resource(B), interface)
    assert await allocated(custody, resource(A), interface)


async def test_claims_withhold_what_was_not_allocated_until_its_id_left_the_list() -> None:
    """No pod has it; once its former name has left the kubelet's list, it is anybody's."""
    custody, device_list, looks = CustodyFixture(), DeviceList(0.0), asyncio.Event()
    custody.add(A, device_list, lambda: None)
    custody.add(B, DeviceList(0.0), looks.set)
    published(custody, resource(A), device("a"))
    device_list.update({"a": AdvertisedDevice(True)})
    gone = missing(device("a"), 1.0, "left to another one", replaced=True)
    published(custody, resource(A), gone)
    waits = f"withheld: still in the kubelet's list as {A} a"
    assert published(custody, resource(B), device("b")) == [waits]
    for replicas in (1, 2, 2):  # however often it is looked at, and though it is shared then
        seen = published(custody, resource(A, replicas=replicas), gone, device("new-a"))
        assert seen == ["left to another one", waits]
    assert not looks.is_set()
    device_list.update({})
    device_list.remove_unlisted(1.0)
    assert published(custody, resource(A)) == []
    assert looks.is_set()
    assert published(custody, resource(B), device("b")) == [None]
    assert not any(handout.nodes for handout in custody.file.table)


async def test_claims_of_one_node_by_two_instances_refuse_the_second(tmp_path: Path) -> None:
    """Both offer it, because neither has a record when it learns of it; the second looks again."""
    first, second, looks = CustodyFixture(tmp_path), CustodyFixture(tmp_path), asyncio.Event()
    second.add(B, DeviceList(0.0), looks.set)
    assert published(first, resource(A), device("a")) == [None]
    assert published(second, resource(B), device("b")) == [None]
    await first.give(resource(A), device("a"))
    with pytest.raises(AllocationError, match=f"device b: it was handed out as {A} a"):
        await second.give(resource(B), device("b"))
    assert looks.is_set()
    assert published(second, resource(B), device("b")) != [None]
    with pytest.raises(AllocationError, match=f"device b: it was handed out as {A} a"):
        await second.give(resource(B), device("b"))


async def test_claims_write_once_for_two_allocates_of_a_device(tmp_path: Path) -> None:
    custody = CustodyFixture(tmp_path)
    assert await allocated(custody, resource(A), device("a"))
    written = (tmp_path / "records/example.com_a.json").stat().st_ino
    assert await allocated(custody, resource(A), device("a"))
    assert (tmp_path / "records/example.com_a.json").stat().st_ino == written


@pytest.mark.parametrize("former", ["allow", "deny"])
@pytest.mark.parametrize("later", ["allow", "deny"])
@pytest.mark.parametrize("declared", [True, False])
async def test_claims_may_overlap(tmp_path: Path, former: str, later: str, declared: bool) -> None:
    """One of two declared resources has to allow it; both have to if one is not declared."""
    custody = CustodyFixture(tmp_path)
    first, second = resource(A, overlap=former), resource(B, overlap=later)
    custody.reconfigure([first, second])
    assert await allocated(custody, first, device("a"))
    custody.reconfigure([first, second] if declared else [second])
    consents = [former, later].count("allow")
    assert await allocated(custody, second, device("b")) is (consents >= (1 if declared else 2))


async def test_claims_with_a_slow_state_directory_write_nodes_later(tmp_path: Path) -> None:
    """An Allocate does not fail for that, nor wait long."""
    custody = CustodyFixture(tmp_path)
    with directory_lock(tmp_path):
        await custody.give(resource(A), device("a"))
    assert await custody.file.sync(60) is None
    assert A in (tmp_path / "records/example.com_a.json").read_text()


async def test_claims_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a former pod has to be replaced."""
    monkeypatch.setattr(custody_module, "_STEPS_S", 60.0)
    custody = CustodyFixture(tmp_path)
    await custody.give(resource(A), device("a"), steps="pending")
    (handout,) = custody.file.table
    assert await custody.file.give(lambda: [handout.with_steps("done")], 60) is None
    with directory_lock(tmp_path):
        allocate = asyncio.ensure_future(custody.give(resource(A), device("a"), steps="pending"))
        # Longer than an Allocate that does not fail waits.
        assert not (await asyncio.wait({allocate}, timeout=0.3))[0]
    await allocate
    assert custody.recorded == {"a pending"}


async def booted(state: Path, monkeypatch: pytest.MonkeyPatch) -> CustodyFixture:
    """Return the claims after a boot, before which a resource was given a device."""
    assert await allocated(CustodyFixture(state), resource(A), device("a"))
    monkeypatch.setattr(record_files, "boot_id", lambda: "another")
    after = CustodyFixture(state)
    await after.reserved()
    return after


async def test_claims_know_paths_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are others then, and the kubelet's answers name paths."""
    after = await booted(tmp_path, monkeypatch)
    assert published(after, resource(B), device("b", number=77)) != [None]
    assert published(after, resource(B), device("b", path="/dev/z")) == [None]
    # Found again under its own name: the record has the new number from now on.
    assert published(after, resource(A), device("a", number=77)) == [None]
    assert published(after, resource(B), device("b", number=77, path="/dev/z")) != [None]
    assert published(after, resource(B), device("b", path="/dev/x")) == [None]
    await after.reserved()
    again = CustodyFixture(tmp_path)
    await again.reserved()
    assert published(again, resource(B), device("b", number=77, path="/dev/z")) != [None]


async def test_claims_keep_a_path_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod that had it may get what comes to be at its path."""
    after = await booted(tmp_path, monkeypatch)
    assert published(after, resource(A), device("a", number=77, path="/dev/y")) == [None]
    assert published(after, resource(B), device("b", number=78)) != [None]


async def test_claims_free_a_node_that_no_pod_holds_and_have_others_scanned() -> None:
    holders, looks = FakeHolders("default/pod"), asyncio.Event()
    custody = CustodyFixture(None, holders)
    custody.add(B, DeviceList(0.0), looks.set)
    published(custody, resource(A), device("a"))
    await custody.give(resource(A), device("a"), steps="pending")
    published(custody, resource(A))
    custody.end_free()
    held = "withheld: held as example.com/a a by default/pod"
    assert published(custody, resource(B), device("b")) == [held]
    assert custody.recorded == {"a pending"}
    assert not looks.is_set()
    holders.pods.clear()
    custody.end_free()
    assert looks.is_set()
    assert not custody.recorded
    assert await allocated(custody, resource(B), device("b"))


async def test_claims_that_have_ended_keep_the_steps_of_an_id_that_is_listed() -> None:
    """An init container holds it, which pod-resources does not show, and may start again."""
    custody, device_list = CustodyFixture(None, FakeHolders()), DeviceList(0.0)
    custody.add(A, device_list, lambda: None)
    device_list.update({"a": AdvertisedDevice(True)})
    published(custody, resource(A), device("a"))
    await custody.give(resource(A), device("a"), steps="pending")
    custody.end_free()
    (handout,) = custody.file.table
    assert (handout.steps, handout.nodes) == ("pending", ())
    published(custody, resource(A))
    device_list.update({})
    custody.end_free()
    assert not custody.recorded


async def test_claims_record_the_nodes_again_of_an_id_that_only_has_steps() -> None:
    """A pod that was not shown is shown now; what is known of its steps stays."""
    name, pods = AdvertisedName(A, "a", shared=False), frozenset({"default/pod"})
    custody = CustodyFixture(None, FakeList({name: {OfferedId("a", "a"): pods}}))
    published(custody, resource(A), device("a"))
    await custody.give(resource(A), device("a"), steps="pending")
    (whole,) = custody.file.table
    custody.file.set({whole.key: whole.model_copy(update={"nodes": ()})})
    await custody.reserved()
    assert list(custody.file.table) == [whole]


async def test_claims_withhold_a_node_that_another_device_of_the_resource_has_now() -> None:
    x, y = (devices.node(f"/dev/{name}", (4, number)) for name, number in (("x", 1), ("y", 2)))
    former, custody = devices.device("a", x, y), CustodyFixture(None)
    published(custody, resource(A), former)
    await custody.give(resource(A), former)
    lacking = missing(former, 0.0, remaining={"/dev/y"})
    _, reason = published(custody, resource(A), lacking, devices.device("b", x))
    assert reason is not None
    assert reason.startswith(f"withheld: it was handed out as {A} a")


async def test_claims_free_a_node_on_offer_that_no_pod_holds() -> None:
    """Another Allocate records it again; so the records are as many as held nodes."""
    holders = FakeHolders("default/pod")
    custody = CustodyFixture(None, holders)
    assert await allocated(custody, resource(A), device("a"))
    custody.end_free()
    assert custody.recorded
    holders.pods.clear()
    custody.end_free()
    assert not any(handout.nodes for handout in custody.file.table)
    assert await allocated(custody, resource(A), device("a"))
    assert custody.recorded


@pytest.mark.parametrize(("held", "waits"), [(A, True), ("vendor.com/gpu", False)])
async def test_claims_wait_for_pods_without_a_record(held: str, waits: bool) -> None:
    """Devices that another device plugin gave to pods do not count."""
    name = AdvertisedName(held, "gone", shared=False)
    pods = {name: {OfferedId("gone", "gone"): frozenset({"default/pod"})}}
    custody = CustodyFixture(None, FakeList(pods))
    custody.locks.served.add(A)
    await custody.reserved()
    (reason,) = published(custody, resource(B), device("b"))
    assert (reason is not None) is waits
    assert published(custody, resource(B, overlap="allow"), device("b")) == [None]


async def test_claims_withhold_a_node_that_was_exchanged() -> None:
    """Its former device is listed with another node: what a pod was given is this one."""
    custody, device_list = CustodyFixture(), DeviceList(0.0)
    custody.add(A, device_list, lambda: None)
    assert await allocated(custody, resource(A), device("a"))
    device_list.update({"a": AdvertisedDevice(True)})
    published(custody, resource(A), device("a", number=65, path="/dev/y"))
    (reason,) = published(custody, resource(B), device("b"))
    waits = f"withheld: it was handed out as {A} a: waiting until no pod holds that"
    assert reason == f"{waits} (pod-resources unavailable: not asked yet)"


async def test_claims_wait_as_long_as_an_id_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resource is gone, but another instance's Allocate may still run."""
    custody = CustodyFixture(holders=FakeHolders(), leave_after=10.0)
    now = asyncio.get_running_loop().time()
    assert await allocated(custody, resource(A), device("a"))
    looks = asyncio.Event()
    custody.add(B, DeviceList(0.0), looks.set)
    assert published(custody, resource(B), device("b")) != [None]
    custody.remove(A)
    assert looks.is_set()
    for after, free in ((0.0, False), (9.0, False), (10.1, True)):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda at=now + after: at)
        custody.end_free()
        assert (published(custody, resource(B), device("b")) == [None]) is free


@pytest.mark.parametrize("held", [True, False])
async def test_claims_of_exchanged_nodes_wait_for_pods_alone(held: bool) -> None:
    """A device waits for the other's node only while a pod may have that."""
    custody, declared = CustodyFixture(holders=FakeHolders()), resource(A)
    first = [device("a"), device("b", number=65, path="/dev/y")]
    assert published(custody, declared, *first) == [None, None]
    if held:
        await custody.give(declared, *first)
    exchanged = [device("a", number=65, path="/dev/y"), device("b")]
    seen = published(custody, declared, *exchanged)
    if held:
        handed_out = "withheld: it was handed out as example.com/a"
        assert [str(reason).startswith(handed_out) for reason in seen] == [True, True]
        custody.end_free()  # no pod has them
        seen = published(custody, declared, *exchanged)
    assert seen == [None, None]


async def test_claims_free_the_node_of_a_missing_device_that_stays_listed() -> None:
    """Its node has another name now, in another resource: free once kubelet has it unhealthy."""
    device_list, custody = DeviceList(0.0), CustodyFixture(holders=FakeHolders())
    custody.add(A, device_list, lambda: None)
    stream = device_list.streams.open(lambda: None)
    was, renamed = device("a"), device("b", path="/dev/y")
    published(custody, resource(A), was)
    await custody.give(resource(A), was, steps="pending")
    send(device_list, stream, was)
    gone = missing(was, 0.0)
    published(custody, resource(A), gone)
    custody.end_free()
    assert published(custody, resource(B), renamed) != [None]
    send(device_list, stream, gone)
    custody.end_free()
    assert published(custody, resource(B), renamed) == [None]
    assert "a" in device_list
    assert not any(handout.nodes for handout in custody.file.table)
    assert custody.recorded == {"a pending"}, "its container may start again"


async def test_claims_take_two_nodes_of_one_number_in_one_resource_for_two_devices() -> None:
    """Both are there, so the file means that; under another resource they are that number."""
    custody, declared = CustodyFixture(), resource(A)
    twins = [device("a"), device("b", path="/dev/y")]
    assert published(custody, declared, *twins) == [None, None]
    await custody.give(declared, twins[0])
    assert published(custody, declared, *twins) == [None, None]
    await custody.give(declared, twins[1])
    assert published(custody, resource(B), device("c", path="/dev/z")) != [None]
    alone = [missing(twins[0], 1.0), twins[1]]
    assert published(custody, declared, *alone) != ["gone", None]


async def test_claims_withhold_what_another_instance_serves() -> None:
    """Its kubelet's list may have the former name, which this process does not know."""
    custody = CustodyFixture(holders=FakeHolders())
    assert await allocated(custody, resource(A), device("a"))
    published(custody, resource(A))
    custody.locks.locked.add(A)
    with pytest.raises(AllocationError, match="another instance of devhost serves it"):
        await custody.give(resource(A), device("a"))
    custody.end_free()
    why = f"withheld: another instance of devhost serves {A}, which had it as {A} a"
    assert published(custody, resource(B), device("b")) == [why]
    custody.locks.locked.clear()
    custody.end_free()
    assert published(custody, resource(B), device("b")) == [None]


async def test_claims_wait_for_one_device_without_a_record_in_whatever_order_it_is_listed() -> None:
    """The reason of all devices would change with each list of kubelet."""
    held = [AdvertisedName("example.com/gone", key, shared=False) for key in "xy"]
    seen = set[str | None]()
    for names in (held, held[::-1]):
        pods = {name: {OfferedId(name.device, name.device): frozenset({"p"})} for name in names}
        custody = CustodyFixture(holders=FakeList(pods))
        custody.locks.served.add("example.com/gone")
        await custody.reserved()
        seen.update(published(custody, resource(A), device("a")))
    (reason,) = seen
    assert "example.com/gone x is held by p, and no record says" in str(reason)


async def test_publication_costs_what_its_own_devices_cost() -> None:
    """A node may have many names, and pods may have many of them."""

    async def count_calls(names: int) -> int:
        custody, calls = CustodyFixture(), 0
        named = [device(f"d{number}", path=f"/dev/x{number}") for number in range(names)]
        published(custody, resource(A), *named)
        for holder in named[::2]:
            await custody.give(resource(A), holder)

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        assert not any(published(custody, resource(A), *named))
        published(custody, resource(B), *named)
        sys.setprofile(None)
        return calls

    assert await count_calls(400) < 2.5 * await count_calls(200)
