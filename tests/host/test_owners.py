"""Which nodes are withheld, and until when."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.host.holders import Holders
from devhost.host.ownership import owner_index as module
from devhost.host.ownership.owner_file import Owner
from devhost.host.ownership.owners import Owners, owner_of
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.kubelet.instances import Instances
from devhost.kubelet.podresources import HeldBy, PodResources
from devhost.loading.shapes import shaped
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, HostDevice, Node, Snapshot

A, B = "example.com/a", "example.com/b"


class Told(PodResources):
    """Answers what the test says."""

    def __init__(self) -> None:
        super().__init__(Path("kubelet.sock"))
        self.held: Mapping[str, HeldBy] = {}

    async def kubelet(self) -> object:
        return 1

    async def holders(self) -> Mapping[str, HeldBy]:
        return self.held


def resource(name: str, **keys: object) -> Resource:
    return shaped(Resource, {"name": name, "sources": ["/dev/x*"], **keys})


def device(name: str, inode: int = 1, path: str = "/dev/x", number: int = 64) -> HostDevice:
    state = FileState(path, FileKind.CHAR, (4, number), (5, inode, inode))
    return HostDevice(name, (Node(path, state, 0, name),))


def owners(state: Path | None = None, told: Told | None = None, **more: bool) -> Owners:
    return Owners(
        Holders(told),
        Instances(Path("/nowhere")),
        state,
        assume_free=more.get("assume_free", False),
        leave_after=0.0,
    )


async def healthy(who: Owners, declared: Resource, one: HostDevice) -> bool:
    """Offer a device, and say whether that may be."""
    await who.keep(declared, [one])
    snapshot = who.judged(declared, Snapshot({one.id: one}))
    if snapshot.devices[one.id].healthy:
        who.offered(declared.name, {owner_of(declared, one)})
        return True
    return False


@pytest.mark.parametrize(
    ("later", "again", "free"),
    [
        pytest.param(resource(A), device("a"), True, id="the same"),
        pytest.param(resource(B), device("a"), False, id="another resource"),
        pytest.param(resource(A), device("b"), False, id="another ID"),
        pytest.param(resource(A, replicas=2), device("a"), False, id="shares of it"),
        pytest.param(resource(B), device("a", path="/dev/y"), False, id="under another path"),
        pytest.param(resource(B), device("a", inode=2), True, id="another node at its path"),
        pytest.param(resource(B), device("a", number=65), True, id="another number"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_node_is_offered_under_one_name(
    tmp_path: Path, later: Resource, again: HostDevice, free: bool, restarted: bool
) -> None:
    first = owners(tmp_path)
    assert await healthy(first, resource(A), device("a"))
    second = owners(tmp_path) if restarted else first
    assert await healthy(second, later, again) is free


@pytest.mark.parametrize("former", ["allow", "deny"])
@pytest.mark.parametrize("later", ["allow", "deny"])
@pytest.mark.parametrize("declared", [True, False])
async def test_overlap_shares_nodes(former: str, later: str, declared: bool) -> None:
    """Where both are declared one of them is enough, as everywhere; else both have to say so."""
    who = owners()
    one, two = resource(A, overlap=former), resource(B, overlap=later)
    who.declare([one, two])
    assert await healthy(who, one, device("a"))
    who.declare([one, two] if declared else [two])
    said = [former, later].count("allow")
    assert await healthy(who, two, device("b")) is (said >= (1 if declared else 2))


async def test_after_a_boot_the_path_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inodes are others then, and the kubelet's answers name paths."""
    assert await healthy(owners(tmp_path), resource(A), device("a", 1))
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    after = owners(tmp_path)
    assert not await healthy(after, resource(B), device("a", 77))
    assert await healthy(after, resource(B), device("other", 78, "/dev/z"))
    # Found again under its own name, elsewhere: what is at its former path is another node.
    swapped = owners(tmp_path)
    await swapped.keep(resource(A), [device("a", 77), device("new", 78, "/dev/y")])
    assert not swapped.judged(resource(A), Snapshot({"n": device("n", 77)})).devices["n"].healthy


async def test_pod_resources_free_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when two lists say that nobody holds it, and not before it has left the list."""
    monkeypatch.setattr("devhost.host.holders.POLL_S", 0.01)
    told, device_list, looks = Told(), DeviceList(0.0), asyncio.Event()
    told.held = {A: {"a": frozenset({"default/pod"})}}
    who = owners(tmp_path, told)
    who.serve(B, device_list, looks.set)
    holders = who._holders
    holders.subscribe(lambda: None)
    tasks = [asyncio.create_task(one) for one in (holders.run(), who.run())]
    try:
        assert await healthy(who, resource(A), device("a"))
        who.offered(A, ())
        assert not await healthy(who, resource(B), device("b"))
        judged = who.judged(resource(B), Snapshot({"b": device("b")}))
        who.count(B, judged)
        async with asyncio.timeout(60):
            while "held as example.com/a a by default/pod" not in str(judged.devices["b"].reason):
                await asyncio.sleep(0.01)
                judged = who.judged(resource(B), Snapshot({"b": device("b")}))
            assert not looks.is_set()
            told.held = {}
            await looks.wait()
        assert await healthy(who, resource(B), device("b"))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_went_away_is_free_without_pod_resources() -> None:
    """A node that is no longer found is nobody's; the next one in its place is another."""
    who = owners()
    assert await healthy(who, resource(A), device("a"))
    (entry,) = who._index.of(Owner(A, "a", shared=False))
    entry.unknown = False  # kubelet knows
    who.offered(A, ())
    who.drop_free()
    assert not await healthy(who, resource(B), device("b"))
    assert await healthy(who, resource(A), device("a"))
    await who.keep(resource(A), [replace(device("a"), missing_since=1.0, reason="gone")])
    who.offered(A, ())
    await asyncio.sleep(0.01)
    who.drop_free()
    assert await healthy(who, resource(B), device("b"))


async def test_a_state_directory_that_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory knows; it is said, and written as soon as that can be."""
    state = tmp_path / "state"
    state.write_text("no directory")
    who = owners(state)
    assert await healthy(who, resource(A), device("a"))
    assert not await healthy(who, resource(B), device("b"))
    assert "records.jsonl" in str(who.problem)
    assert "cannot save node owners" in caplog.text
    state.unlink()
    who._journal.start()
    async with asyncio.timeout(60):
        while who.problem is not None:
            await asyncio.sleep(0.01)
    assert not await healthy(owners(state), resource(B), device("b"))


async def test_two_devices_exchange_their_nodes() -> None:
    """Both are withheld until the kubelet has both as unhealthy; neither waits for the other."""
    looks, device_list = asyncio.Event(), DeviceList(0.0)
    who, declared = owners(assume_free=True), resource(A)
    who.serve(A, device_list, looks.set)
    stream = device_list.open_stream()

    async def published(*found: HostDevice) -> list[str | None]:
        """Publish devices, and return why they are unhealthy."""
        await who.keep(declared, found)
        judged = who.judged(declared, Snapshot({one.id: one for one in found}))
        who.count(A, judged)
        devices = judged.devices.values()
        device_list.update({one.id: AdvertisedDevice(one.healthy) for one in devices})
        return [one.reason for one in devices]

    def sent() -> None:
        device_list.end_send(
            stream, device_list.begin_send(stream), asyncio.get_running_loop().time()
        )

    assert await published(device("a"), device("b", 2, "/dev/y")) == [None, None]
    sent()
    exchanged = [device("a", 2, "/dev/y"), device("b")]
    for _ in range(2):
        assert await published(*exchanged) == [
            f"withheld: still in the kubelet's list as {A} b",
            f"withheld: still in the kubelet's list as {A} a",
        ]
        who.drop_free()  # the kubelet has them as healthy
    sent()
    assert not looks.is_set()
    who.drop_free()
    assert looks.is_set()
    assert await published(*exchanged) == [None, None]


async def test_a_missing_device_that_stays_listed_keeps_its_node_from_nobody() -> None:
    """Its node has another name now, in another resource: free once kubelet has it unhealthy."""
    device_list, who = DeviceList(0.0), owners(assume_free=True)
    who.serve(A, device_list, lambda: None)
    stream = device_list.open_stream()

    def listed(one: HostDevice) -> None:
        device_list.update({one.id: AdvertisedDevice(one.healthy)})
        device_list.end_send(
            stream, device_list.begin_send(stream), asyncio.get_running_loop().time()
        )

    was = device("a")
    assert await healthy(who, resource(A), was)
    listed(was)
    missing = replace(was, reason="not found any more", missing_since=0.0)
    await who.keep(resource(A), [missing])
    who.drop_free()
    assert not await healthy(who, resource(B), device("b", path="/dev/y"))
    listed(missing)
    who.drop_free()
    assert await healthy(who, resource(B), device("b", path="/dev/y"))
    assert "a" in device_list
    assert not await healthy(who, resource(A), was)
