"""Which nodes are withheld, and until when."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devhost.backends.backend import LockState
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList, Stream
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.config import Resource
from devhost.model.device import Hardware, HostDevice
from devhost.model.records import Steps
from devhost.model.resource_state import HeldBy
from devhost.node import custody as custody_module
from devhost.node import record_files
from devhost.node.custody import Custody
from devhost.node.holders import Holders
from devhost.node.record_files import RecordFiles
from devhost.node.state_dir import directory_lock
from tests.support import devices
from tests.support.devices import missing, reasons, snapshot
from tests.support.offered import offered

A, B = "example.com/a", "example.com/b"


class FakeHolders(Holders):
    """Says of every device which pods hold it."""

    def __init__(self, *pods: str) -> None:
        super().__init__(FakeBackend().pods, "node-1")
        self.pods = list(pods)

    def confirmed_free(self, *_: object, **__: object) -> bool:
        return not self.pods

    def pods_of_device(self, *_: object, **__: object) -> frozenset[str]:
        return frozenset(self.pods)


class FakeList(Holders):
    """Says which pods hold which devices."""

    def __init__(self, by_name: Mapping[AdvertisedName, HeldBy]) -> None:
        super().__init__(FakeBackend().pods, "node-1")
        self._by_name = by_name

    @property
    def by_name(self) -> Mapping[AdvertisedName, HeldBy]:
        return self._by_name

    def plugin_pods(self, _resource: str) -> frozenset[str]:
        return frozenset().union(*(pods for ids in self._by_name.values() for pods in ids.values()))


class FakeBackend(DevicePluginBackend):
    """Says which resources another instance serves, and which devhost has served."""

    def __init__(self, leave_after: float = 0.0) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere/pr.sock"), leave_after)
        self.locked: set[str] = set()
        self.served: set[str] = set()

    def locked_by_other(self, resource: str) -> bool:
        return resource in self.locked

    def lock_of(self, resource: str) -> LockState:
        return "other" if resource in self.locked else "ours"

    def has_served(self, resource: str) -> bool:
        return resource in self.served


def resource(name: str, **keys: object) -> Resource:
    return Resource.model_validate({"name": name, "sources": ["/dev/x*"], **keys})


def device(name: str, inode: int = 1, path: str = "/dev/x", number: int = 64) -> HostDevice:
    return devices.device(name, devices.node(path, (4, number), inode=inode, changed=inode))


class CustodyFixture(Custody):
    """The claims of a process with two resources, and with their file."""

    def __init__(
        self,
        state: Path | None = None,
        holders: Holders | None = None,
        *,
        leave_after: float = 0.0,
    ) -> None:
        self.backend = FakeBackend(leave_after)
        self.file = RecordFiles(state, self.backend.lock_of)
        super().__init__(holders or Holders(self.backend.pods, "node-1"), self.backend, self.file)
        for name in (A, B):
            self.add(name, DeviceList(0.0), lambda: None)

    @property
    def recorded(self) -> set[str]:
        return {f"{handout.id} {handout.steps}" for handout in self.file.table}

    async def give(
        self, declared: Resource, *given: HostDevice, steps: Steps = "none", waited: float = 0.0
    ) -> None:
        by_id = {one.id: one for one in given}
        await self.hand_out(declared, by_id, offered(*by_id), steps=steps, waited=waited)


def published(who: Custody, declared: Resource, *found: HostDevice) -> list[str | None]:
    """Publish devices, and return why they are unhealthy."""
    judged = who.judge(declared, snapshot(*found))
    who.set_listed(declared, judged)
    return list(reasons(judged).values())


async def allocated(who: CustodyFixture, declared: Resource, one: HostDevice) -> bool:
    """Publish a device, allocate it if it is healthy, and return whether that was so."""
    if published(who, declared, one) == [None]:
        await who.give(declared, one)
        return True
    return False


def send(device_list: DeviceList, stream: Stream, one: HostDevice) -> None:
    """Let kubelet have a list with one device."""
    device_list.update({one.id: AdvertisedDevice(one.healthy)})
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
    """What is owned is a place in the kernel, such as that of a network interface."""
    at = Hardware(
        "/sys/0", "pci 0", "/sys/0/net/n", "/sys/0/net 0", "/sys/0/net 2", None, "net", "/sys/0"
    )
    found, who = devices.device("n", devices.token("n", at)), CustodyFixture()
    assert await allocated(who, resource(A), found)
    assert not await allocated(who, resource(B), found)
    assert await allocated(who, resource(A), found)


async def test_claims_withhold_what_was_not_allocated_until_its_id_left_the_list() -> None:
    """No pod has it; once its former name has left the kubelet's list, it is anybody's."""
    who, device_list, looks = CustodyFixture(), DeviceList(0.0), asyncio.Event()
    who.add(A, device_list, lambda: None)
    who.add(B, DeviceList(0.0), looks.set)
    published(who, resource(A), device("a"))
    device_list.update({"a": AdvertisedDevice(True)})
    gone = missing(device("a"), 1.0, "left to another one", replaced=True)
    published(who, resource(A), gone)
    waits = f"withheld: still in the kubelet's list as {A} a"
    assert published(who, resource(B), device("b")) == [waits]
    for replicas in (1, 2, 2):  # however often it is looked at, and though it is shared then
        seen = published(who, resource(A, replicas=replicas), gone, device("new-a"))
        assert seen == ["left to another one", waits]
    assert not looks.is_set()
    device_list.update({})
    device_list.remove_unlisted(1.0)
    assert published(who, resource(A)) == []
    assert looks.is_set()
    assert published(who, resource(B), device("b")) == [None]
    assert not any(handout.nodes for handout in who.file.table)


async def test_claims_of_two_instances_that_allocate_one_node_refuse_the_second(
    tmp_path: Path,
) -> None:
    """Both offer it, because neither has a record when it learns of it; the second looks again."""
    one, two, looks = CustodyFixture(tmp_path), CustodyFixture(tmp_path), asyncio.Event()
    two.add(B, DeviceList(0.0), looks.set)
    assert published(one, resource(A), device("a")) == [None]
    assert published(two, resource(B), device("b")) == [None]
    await one.give(resource(A), device("a"))
    with pytest.raises(AllocationError, match=f"device b: it was handed out as {A} a"):
        await two.give(resource(B), device("b"))
    assert looks.is_set()
    assert published(two, resource(B), device("b")) != [None]
    with pytest.raises(AllocationError, match=f"device b: it was handed out as {A} a"):
        await two.give(resource(B), device("b"))


async def test_claims_write_once_for_two_allocates_of_a_device(tmp_path: Path) -> None:
    who = CustodyFixture(tmp_path)
    assert await allocated(who, resource(A), device("a"))
    written = (tmp_path / "records/example.com_a.json").stat().st_ino
    assert await allocated(who, resource(A), device("a"))
    assert (tmp_path / "records/example.com_a.json").stat().st_ino == written


@pytest.mark.parametrize("former", ["allow", "deny"])
@pytest.mark.parametrize("later", ["allow", "deny"])
@pytest.mark.parametrize("declared", [True, False])
async def test_claims_share_nodes_by_overlap(
    tmp_path: Path, former: str, later: str, declared: bool
) -> None:
    """Where both are declared one of them is enough, as everywhere; else both have to say so."""
    who = CustodyFixture(tmp_path)
    one, two = resource(A, overlap=former), resource(B, overlap=later)
    who.reconfigure([one, two])
    assert await allocated(who, one, device("a"))
    who.reconfigure([one, two] if declared else [two])
    said = [former, later].count("allow")
    assert await allocated(who, two, device("b")) is (said >= (1 if declared else 2))


async def test_claims_with_a_slow_state_directory_write_nodes_later(tmp_path: Path) -> None:
    """An Allocate does not fail for that, nor wait long, together with what it has waited."""
    who = CustodyFixture(tmp_path)
    with directory_lock(tmp_path):
        await who.give(resource(A), device("a"), waited=60.0)
    assert await who.file.sync(60) is None
    assert A in (tmp_path / "records/example.com_a.json").read_text()


async def test_claims_wait_longer_for_a_slow_disk_where_a_pod_would_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of a former pod has to be replaced."""
    monkeypatch.setattr(custody_module, "_STEPS_S", 60.0)
    who = CustodyFixture(tmp_path)
    await who.give(resource(A), device("a"), steps="pending")
    (handout,) = who.file.table
    assert await who.file.give(lambda: [handout.with_steps("done")], 60) is None
    with directory_lock(tmp_path):
        allocate = asyncio.ensure_future(who.give(resource(A), device("a"), steps="pending"))
        # Longer than an Allocate that does not fail waits.
        assert not (await asyncio.wait({allocate}, timeout=0.3))[0]
    await allocate
    assert who.recorded == {"a pending"}


async def booted(state: Path, monkeypatch: pytest.MonkeyPatch) -> CustodyFixture:
    """Return the claims after a boot, before which a resource was given a device."""
    assert await allocated(CustodyFixture(state), resource(A), device("a"))
    monkeypatch.setattr(record_files, "boot_id", lambda: "another")
    after = CustodyFixture(state)
    await after.reserved()
    return after


async def test_claims_after_a_boot_know_a_node_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_claims_after_a_boot_keep_the_path_of_what_is_found_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod that had it may get what comes to be at its path."""
    after = await booted(tmp_path, monkeypatch)
    assert published(after, resource(A), device("a", number=77, path="/dev/y")) == [None]
    assert published(after, resource(B), device("b", number=78)) != [None]


async def test_claims_free_a_node_that_no_pod_holds_and_have_others_scanned() -> None:
    """And not before it has left the list."""
    told, looks = FakeHolders("default/pod"), asyncio.Event()
    who = CustodyFixture(None, told)
    who.add(B, DeviceList(0.0), looks.set)
    published(who, resource(A), device("a"))
    await who.give(resource(A), device("a"), steps="pending")
    published(who, resource(A))
    who.end_free()
    held = "withheld: held as example.com/a a by default/pod"
    assert published(who, resource(B), device("b")) == [held]
    assert who.recorded == {"a pending"}
    assert not looks.is_set()
    told.pods.clear()
    who.end_free()
    assert looks.is_set()
    assert not who.recorded
    assert await allocated(who, resource(B), device("b"))


async def test_claims_that_have_ended_keep_the_steps_of_an_id_that_is_listed() -> None:
    """An init container holds it, which pod-resources does not show, and may start again."""
    who, device_list = CustodyFixture(None, FakeHolders()), DeviceList(0.0)
    who.add(A, device_list, lambda: None)
    device_list.update({"a": AdvertisedDevice(True)})
    published(who, resource(A), device("a"))
    await who.give(resource(A), device("a"), steps="pending")
    who.end_free()
    (handout,) = who.file.table
    assert (handout.steps, handout.nodes) == ("pending", ())
    published(who, resource(A))
    device_list.update({})
    who.end_free()
    assert not who.recorded


async def test_claims_record_the_nodes_again_of_an_id_that_only_has_steps() -> None:
    """A pod that was not shown is shown now; what is known of its steps stays."""
    name, pods = AdvertisedName(A, "a", shared=False), frozenset({"default/pod"})
    who = CustodyFixture(None, FakeList({name: {OfferedId("a", "a"): pods}}))
    published(who, resource(A), device("a"))
    await who.give(resource(A), device("a"), steps="pending")
    (whole,) = who.file.table
    who.file.set({whole.key: whole.model_copy(update={"nodes": ()})})
    await who.reserved()
    assert list(who.file.table) == [whole]


async def test_claims_withhold_a_node_that_another_device_of_the_resource_has_now() -> None:
    """Though the device that a pod has is there, with its other node."""
    x, y = (devices.node(f"/dev/{name}", (4, number)) for name, number in (("x", 1), ("y", 2)))
    former, who = devices.device("a", x, y), CustodyFixture(None)
    published(who, resource(A), former)
    await who.give(resource(A), former)
    lacking = missing(former, 0.0, remaining={"/dev/y"})
    _, reason = published(who, resource(A), lacking, devices.device("b", x))
    assert reason is not None
    assert reason.startswith(f"withheld: it was handed out as {A} a")


async def test_claims_free_a_node_on_offer_that_no_pod_holds() -> None:
    """It is recorded again when it is allocated again; so the records are as many as held nodes."""
    told = FakeHolders("default/pod")
    who = CustodyFixture(None, told)
    assert await allocated(who, resource(A), device("a"))
    who.end_free()
    assert who.recorded
    told.pods.clear()
    who.end_free()
    assert not any(handout.nodes for handout in who.file.table)
    assert await allocated(who, resource(A), device("a"))
    assert who.recorded


@pytest.mark.parametrize(("held", "waits"), [(A, True), ("vendor.com/gpu", False)])
async def test_claims_withhold_nodes_while_pods_hold_what_is_not_recorded_of_devhost_alone(
    held: str, waits: bool
) -> None:
    """What another device plugin gave to pods is none of ours."""
    name = AdvertisedName(held, "gone", shared=False)
    pods = {name: {OfferedId("gone", "gone"): frozenset({"default/pod"})}}
    who = CustodyFixture(None, FakeList(pods))
    who.backend.served.add(A)
    await who.reserved()
    (reason,) = published(who, resource(B), device("b"))
    assert (reason is not None) is waits
    assert published(who, resource(B, overlap="allow"), device("b")) == [None]


async def test_claims_withhold_a_node_that_was_exchanged() -> None:
    """Its former device is listed with another node: what a pod was given is this one."""
    who, device_list = CustodyFixture(), DeviceList(0.0)
    who.add(A, device_list, lambda: None)
    assert await allocated(who, resource(A), device("a"))
    device_list.update({"a": AdvertisedDevice(True)})
    published(who, resource(A), device("a", number=65, path="/dev/y"))
    (reason,) = published(who, resource(B), device("b"))
    waits = f"withheld: it was handed out as {A} a: waiting until no pod holds that"
    assert reason == f"{waits} (pod-resources unavailable: not asked yet)"


async def test_claims_wait_as_long_as_an_id_has_to_before_a_node_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a resource that is gone: another instance's Allocate may still run."""
    who, now = (
        CustodyFixture(holders=FakeHolders(), leave_after=10.0),
        asyncio.get_running_loop().time(),
    )
    assert await allocated(who, resource(A), device("a"))
    looks = asyncio.Event()
    who.add(B, DeviceList(0.0), looks.set)
    assert published(who, resource(B), device("b")) != [None]
    who.remove(A)
    assert looks.is_set()
    for after, free in ((0.0, False), (9.0, False), (10.1, True)):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda at=now + after: at)
        who.end_free()
        assert (published(who, resource(B), device("b")) == [None]) is free


@pytest.mark.parametrize("held", [True, False])
async def test_claims_of_two_devices_that_exchange_their_nodes_wait_for_pods_alone(
    held: bool,
) -> None:
    """Neither waits for the other, unless a pod may have it; then each waits for the other's."""
    who, declared = CustodyFixture(holders=FakeHolders()), resource(A)
    first = [device("a"), device("b", number=65, path="/dev/y")]
    assert published(who, declared, *first) == [None, None]
    if held:
        await who.give(declared, *first)
    exchanged = [device("a", number=65, path="/dev/y"), device("b")]
    seen = published(who, declared, *exchanged)
    if held:
        handed_out = "withheld: it was handed out as example.com/a"
        assert [str(one).startswith(handed_out) for one in seen] == [True, True]
        who.end_free()  # no pod has them
        seen = published(who, declared, *exchanged)
    assert seen == [None, None]


async def test_claims_free_the_node_of_a_missing_device_that_stays_listed() -> None:
    """Its node has another name now, in another resource: free once kubelet has it unhealthy."""
    device_list, who = DeviceList(0.0), CustodyFixture(holders=FakeHolders())
    who.add(A, device_list, lambda: None)
    stream = device_list.streams.open(lambda: None)
    was, other = device("a"), device("b", path="/dev/y")
    published(who, resource(A), was)
    await who.give(resource(A), was, steps="pending")
    send(device_list, stream, was)
    gone = missing(was, 0.0)
    published(who, resource(A), gone)
    who.end_free()
    assert published(who, resource(B), other) != [None]
    send(device_list, stream, gone)
    who.end_free()
    assert published(who, resource(B), other) == [None]
    assert "a" in device_list
    assert not any(handout.nodes for handout in who.file.table)
    assert who.recorded == {"a pending"}, "its container may start again"


async def test_claims_take_two_nodes_of_one_number_in_one_resource_for_two_devices() -> None:
    """Both are there, so the file means that; under another resource they are that number."""
    who, declared = CustodyFixture(), resource(A)
    twins = [device("a"), device("b", path="/dev/y")]
    assert published(who, declared, *twins) == [None, None]
    await who.give(declared, twins[0])
    assert published(who, declared, *twins) == [None, None]
    await who.give(declared, twins[1])
    assert published(who, resource(B), device("c", path="/dev/z")) != [None]
    alone = [missing(twins[0], 1.0), twins[1]]
    assert published(who, declared, *alone) != ["gone", None]


async def test_claims_withhold_what_another_instance_serves() -> None:
    """Its kubelet's list may have the former name, which this process does not know."""
    who = CustodyFixture(holders=FakeHolders())
    assert await allocated(who, resource(A), device("a"))
    published(who, resource(A))
    who.backend.locked.add(A)
    with pytest.raises(AllocationError, match="another instance of devhost serves it"):
        await who.give(resource(A), device("a"))
    who.end_free()
    why = f"withheld: another instance of devhost serves {A}, which had it as {A} a"
    assert published(who, resource(B), device("b")) == [why]
    who.backend.locked.clear()
    who.end_free()
    assert published(who, resource(B), device("b")) == [None]


async def test_claims_wait_for_one_device_without_a_record_in_whatever_order_it_is_listed() -> None:
    """Or the reason would be another one, for all devices, with each list of kubelet."""
    held = [AdvertisedName("example.com/gone", one, shared=False) for one in "xy"]
    seen = set[str | None]()
    for names in (held, held[::-1]):
        pods = {name: {OfferedId(name.device, name.device): frozenset({"p"})} for name in names}
        who = CustodyFixture(holders=FakeList(pods))
        who.backend.served.add("example.com/gone")
        await who.reserved()
        seen.update(published(who, resource(A), device("a")))
    (reason,) = seen
    assert "example.com/gone x is held by p, and no record says" in str(reason)


async def test_publication_costs_what_its_own_devices_cost() -> None:
    """However many names a node has, and however many of them pods were given."""

    async def count_calls(names: int) -> int:
        who, calls = CustodyFixture(), 0
        named = [device(f"d{number}", path=f"/dev/x{number}") for number in range(names)]
        published(who, resource(A), *named)
        for one in named[::2]:
            await who.give(resource(A), one)

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        assert not any(published(who, resource(A), *named))
        published(who, resource(B), *named)
        sys.setprofile(None)
        return calls

    assert await count_calls(400) < 2.5 * await count_calls(200)
