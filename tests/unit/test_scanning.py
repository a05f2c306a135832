"""In which order resources are decided about, and how many IDs each may have."""

import asyncio
from collections.abc import Collection, Mapping
from typing import cast

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.ownership import Member, View
from devhost.discovery.scan import Scanner
from devhost.host import scanning
from devhost.host.inventory import Inventory
from devhost.host.metrics import Metrics
from devhost.host.scanning import Scan, Scanning
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model import limits
from devhost.model.device import Snapshot


class Root:
    """A root that is watched when a test says so."""

    root, degraded = None, ""

    def __init__(self, released: asyncio.Event) -> None:
        self._released = released

    async def watch(self) -> None:
        await self._released.wait()

    def read(self, _: float) -> None:
        pass

    def doubt(self) -> None:
        pass


class Roots:
    """An inventory with a root for each resource that hangs."""

    def __init__(self) -> None:
        self.hanging: dict[str, asyncio.Event] = {}

    def use(self, *_: object) -> None:
        pass

    def leave(self, _: object) -> None:
        pass

    def of(self, user: Scan) -> list["Root"]:
        return [Root(self.hanging[user.name])] if user.name in self.hanging else []


class Resource:
    """A resource of tokens, and what was found of it."""

    def __init__(self, test: "Resources", name: str, count: int) -> None:
        self.test, self.known = test, Snapshot()
        self.declare(name, count)

    def declare(self, name: str, count: int) -> None:
        text = f"version: v1\nresources: [{{name: e.com/{name}, sources: [static: {count}]}}]"
        (declared,) = loads(text).require().resources
        self.name = declared.name
        self.scanner = Scanner.of(declared, HostFiles(), Policy(), "node", hold_s=0.0)

    async def found(self, snapshot: Snapshot) -> None:
        self.known = snapshot
        self.test.order.append(self.name.removeprefix("e.com/"))

    def failed(self, error: Exception) -> None:
        raise AssertionError(error)


class Resources:
    """Some resources whose scans run."""

    def __init__(self) -> None:
        self.roots, self.order = Roots(), list[str]()
        self.scanning = Scanning(cast("Inventory", self.roots), Metrics(()))
        self.scans: dict[str, Scan] = {}

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.scans[name] = self.scanning.add(Resource(self, name, count))

    def hang(self, name: str) -> asyncio.Event:
        released = self.roots.hanging[f"e.com/{name}"] = asyncio.Event()
        return released

    def arrange(self, **declared: int) -> None:
        by_name = {f"e.com/{name}": ids for name, ids in declared.items()}
        self.scanning.arrange(list(by_name), by_name)

    async def scanned(self, names: str) -> list[str]:
        """Scan some; return in which order something was found of them."""
        self.order.clear()
        for name in names:
            self.scans[name].declare()
        await self.until(len(names))
        return self.order

    async def until(self, count: int) -> None:
        while len(self.order) < count or not all(one.idle for one in self.scans.values()):
            await asyncio.sleep(0.001)

    def devices(self) -> Mapping[str, int]:
        return {name: len(one.resource.known.devices) for name, one in self.scans.items()}


@pytest.fixture
async def at() -> Resources:
    resources = Resources()
    resources.add(a=1, b=1, c=1)
    return resources


@pytest.fixture(autouse=True)
async def running(at: Resources) -> object:
    task = asyncio.create_task(at.scanning.run())
    yield task
    task.cancel()
    for scan in at.scans.values():
        scan.close()


async def test_scans_decide_in_the_order_of_the_file(at: Resources) -> None:
    decided = []
    ownership = at.scanning.ownership
    decide = ownership.decide

    def noted(member: Member, offered: Collection[str], *more: object) -> object:
        if more:  # else it is released
            decided.append(member.name[-1])
        return decide(member, offered, *more)  # type: ignore[arg-type]

    ownership.decide = noted  # type: ignore[method-assign,assignment]
    first, second = at.hang("a"), at.hang("b")
    scanned = asyncio.create_task(at.scanned("cab"))
    await asyncio.sleep(0.02)
    second.set()
    await asyncio.sleep(0.02)
    assert decided == []
    first.set()
    await scanned
    assert decided == ["a", "b", "c"]


async def test_scan_that_hangs_holds_up_for_a_moment(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_PATIENCE_S", 0.05)
    released = at.hang("b")
    for name in "abc":
        at.scans[name].declare()
    while at.order != ["a", "c"]:
        await asyncio.sleep(0.001)
    released.set()
    await at.until(3)


async def test_scan_that_is_always_due_holds_up_nobody(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch(_: Root) -> None:
        at.scans["a"].request()

    at.hang("a")
    monkeypatch.setattr(Root, "watch", watch)
    async with asyncio.timeout(30):
        for name in "ab":
            at.scans[name].declare()
        while "b" not in at.order:
            await asyncio.sleep(0.001)


async def test_scan_during_which_a_declaration_changes_uses_the_new_one(at: Resources) -> None:
    released, resource = at.hang("b"), at.scans["b"].resource
    at.scans["b"].declare()
    await asyncio.sleep(0.01)
    cast("Resource", resource).declare("b", 5)
    at.scans["b"].declare()
    released.set()
    await at.until(1)
    assert at.devices()["b"] == 5
    assert at.order == ["b"]


async def test_scan_that_raises_fails_alone(at: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Exception] = []

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    resource = cast("Resource", at.scans["a"].resource)
    monkeypatch.setattr(Scanner, "snapshot", broken)
    monkeypatch.setattr(scanning, "CRASH_PAUSE_S", 0.02)
    resource.failed = failed.append  # type: ignore[method-assign,assignment]
    at.scans["a"].declare()
    while not failed:
        await asyncio.sleep(0.001)
    monkeypatch.undo()
    assert await at.scanned("b") == ["b"]
    while "a" not in at.order:
        await asyncio.sleep(0.001)


async def test_scan_with_a_flood_leaves_others_room(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has it keeps; one that was cut is scanned again when there is room."""
    at.add(d=200)
    monkeypatch.setattr(limits, "DEVICE_IDS_MAX", 100)
    at.arrange(a=1, b=30, c=1, d=1)
    await at.scanned("d")
    assert at.devices()["d"] == 100 - (1 + 30 + 1) - 3 * 8
    cast("Resource", at.scans["b"].resource).declare("b", 90)
    await at.scanned("b")
    assert at.devices()["b"] == 38
    assert sum(at.devices().values()) <= 100
    at.order.clear()
    at.scans.pop("b").close()
    at.arrange(a=1, c=1, d=1)
    await at.until(1)
    assert at.devices()["d"] > 60


async def test_scan_with_a_flood_has_the_room_that_came_while_it_ran(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    at.add(d=200)
    monkeypatch.setattr(limits, "DEVICE_IDS_MAX", 100)
    at.arrange(a=1, b=30, c=1, d=1)
    cast("Resource", at.scans["b"].resource).declare("b", 38)
    await at.scanned("ab")
    await at.scanned("d")
    assert at.devices()["d"] < 60
    released = at.hang("a")
    for name in "ad":  # the second is done, and waits for its turn
        at.scans[name].request()
    while at.scans["d"].result is None:
        await asyncio.sleep(0.001)
    at.scans.pop("b").close()
    at.arrange(a=1, c=1, d=1)
    released.set()
    while at.devices()["d"] <= 60:
        await asyncio.sleep(0.001)


async def test_scan_that_others_overtake_again_and_again_has_its_turn(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time when it has found something, the owners are others than it has seen."""
    monkeypatch.setattr(
        View, "holds", lambda view: view._member.name != "e.com/b" or at.scans["b"].repeats > 3
    )
    await at.scanned("ab")
    assert at.scans["b"].repeats == 0
