"""In which order findings are resolved, and how many IDs each resource may have."""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.identify import Identified
from devhost.devices.resolve import Resolver
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model import config, limits
from devhost.model.device import Snapshot
from devhost.node import reconciler
from devhost.node.locations import Locations
from devhost.node.reconciler import Reconciler, ResourceScan
from devhost.observe.metrics import Metrics
from tests.support.scanning import selected


def declared(name: str, count: int, source: str = "static: {}") -> config.Resource:
    sources = f"[{{{source.format(count)}}}]"
    text = f"version: v1\nresources: [{{name: e.com/{name}, sources: {sources}}}]"
    (resource,) = loads(text).require().resources
    return resource


class Reader:
    """The reader of a location that is watched when a test says so."""

    location, polling_reason = None, ""

    def __init__(self, released: asyncio.Event) -> None:
        self._released = released

    async def watch(self) -> None:
        await self._released.wait()

    def read(self, _: float) -> None:
        pass


class FakeLocations:
    """The locations, one for each resource that hangs."""

    def __init__(self) -> None:
        self.hanging: dict[str, asyncio.Event] = {}

    def unsubscribe(self, *_: object) -> None:
        pass

    def subscribe(self, user: ResourceScan, *_: object) -> list[Reader]:
        return [Reader(self.hanging[user.name])] if user.name in self.hanging else []


class Resources:
    """Resources of tokens, whose scans run, and what was found of them."""

    def __init__(self, **counts: int) -> None:
        self.locations, self.applied = FakeLocations(), asyncio.Queue[str]()
        self.reconciler = Reconciler(cast("Locations", self.locations), Metrics())
        self.scanners: dict[str, Scanner] = {}
        self.scans: dict[str, ResourceScan] = {}
        self.add(**counts)
        self.reconfigure(**counts)

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.set_count(name, count)
            apply = functools.partial(self._apply, name)
            self.scans[name] = ResourceScan(self.reconciler, self.scanners[name], apply, self._fail)

    async def _apply(self, name: str, snapshot: Snapshot) -> None:
        self.scans[name].found = snapshot
        self.applied.put_nowait(name)

    def _fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def set_count(self, name: str, count: int) -> None:
        """Set how many tokens a resource has when it is declared next."""
        resource = declared(name, count)
        self.scanners[name] = Scanner(resource, HostFiles(), Policy(), "node", settle_s=0.0)

    def hang(self, name: str) -> asyncio.Event:
        released = self.locations.hanging[f"e.com/{name}"] = asyncio.Event()
        return released

    def reconfigure(self, **counts: int) -> None:
        self.reconciler.reconfigure([declared(name, count) for name, count in counts.items()])

    def declare(self, names: str) -> None:
        for name in names:
            self.scans[name].apply_spec(self.scanners[name])

    async def until_applied(self, names: str) -> list[str]:
        """Wait until something was found of each; return in which order."""
        order: list[str] = []
        async with asyncio.timeout(60):
            while not set(names) <= set(order):
                order.append(await self.applied.get())
        return order

    def count(self, name: str) -> int:
        return len(self.scans[name].found.devices)


@pytest.fixture
async def at() -> AsyncIterator[Resources]:
    resources = Resources(a=1, b=1, c=1)
    yield resources
    for scan in resources.scans.values():
        scan.close()


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources in the order in which their findings are resolved, however long that takes."""
    names: list[str] = []
    resolve = Resolver.resolve

    def noted(self: Resolver, forecast: Identified, *snapshots: Snapshot, outdated: bool) -> object:
        names.append(forecast.context.resource.name[-1])
        return resolve(self, forecast, *snapshots, outdated=outdated)

    monkeypatch.setattr(Resolver, "resolve", noted)
    monkeypatch.setattr(reconciler, "ORDER_WAIT_S", 60.0)
    return names


async def test_findings_are_resolved_in_order(at: Resources, resolved: list[str]) -> None:
    first, second = at.hang("a"), at.hang("b")
    at.declare("cab")
    while at.scans["c"].outcome is None:
        await asyncio.sleep(0)
    second.set()
    while at.scans["b"].outcome is None:
        await asyncio.sleep(0)
    first.set()
    await at.until_applied("abc")
    assert resolved == ["a", "b", "c"]


async def test_resource_waits_while_the_one_before_it_is_read_again(
    at: Resources, resolved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource that was read later may find a node that the first one would have."""

    async def watch(_: Reader) -> None:
        if not resolved:
            at.scans["a"].request()

    monkeypatch.setattr(Reader, "watch", watch)
    at.hang("a")
    at.declare("ba")
    await at.until_applied("b")
    assert resolved == ["a", "a", "b"]


def test_a_forecast_comes_true_if_others_offer_what_it_was_made_by(tmp_path: Path) -> None:
    (tmp_path / "n0").touch()
    resolver, scanners = Resolver(), []
    for name in "ab":
        resource, files = declared(name, 0, "glob: /n*"), HostFiles(str(tmp_path))
        scanners.append(Scanner(resource, files, Policy(), "node", settle_s=0.0))
    resolver.reconfigure([scanner.resource for scanner in scanners])
    none = Snapshot()
    first, second = (scanner.identify(selected(scanner), none, 0.0) for scanner in scanners)
    assert resolver.resolve(first, none)[0] is first
    resolved, _ = resolver.resolve(second, none)
    assert resolved is not None
    assert [*second.devices] == ["n0"]
    assert not resolved.devices
    owners = {key: owner for key, owner in resolved.context.owners.items() if owner}
    again = scanners[1].identify(second.selection, none, 0.0, owners)
    assert resolver.resolve(again, none)[0] is again
    resolver.release("e.com/a")
    resolved, _ = resolver.resolve(again, none)
    assert resolved is not None
    assert [*resolved.devices] == ["n0"]
    snapshot = Snapshot(resolved.devices)
    later, _ = resolver.resolve(resolved, snapshot)
    assert later is not None
    assert later.context.previous is snapshot, "it has other devices since the forecast"


def test_outdated_finding_takes_no_new_node(tmp_path: Path) -> None:
    (tmp_path / "n0").touch()
    resource, files = declared("a", 0, "glob: /n*"), HostFiles(str(tmp_path))
    scanner = Scanner(resource, files, Policy(), "node", settle_s=0.0)
    resolver, none = Resolver(), Snapshot()
    resolver.reconfigure([resource])
    forecast = scanner.identify(selected(scanner), none, 0.0)
    assert resolver.resolve(forecast, none, outdated=True) == (None, {"e.com/a"})
    resolver.resolve(forecast, none)
    assert resolver.resolve(forecast, none, outdated=True)[0] is forecast


def test_a_node_waits_for_a_link_of_a_resource_before_in_spite_of_a_forecast() -> None:
    links, resource = declared("a", 0, "dev: m/by-id/*"), declared("b", 0, "dev: 'null'")
    resolver = Resolver()
    scanner = Scanner(resource, HostFiles(), Policy(), "node", settle_s=60.0)
    previous = Snapshot(scanned=True)
    forecast = scanner.identify(selected(scanner), previous, 0.0)
    resolver.reconfigure([links, resource])
    resolved, _ = resolver.resolve(forecast, previous)
    assert resolved is not None
    assert [*forecast.devices] == ["null"]
    assert not resolved.devices
    assert [*resolved.settling] == ["/dev/null"]


async def test_hanging_scan_holds_up_briefly(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: Reader) -> None:
        at.scans["a"].request()

    monkeypatch.setattr(reconciler, "ORDER_WAIT_S", 0.05)
    released = at.hang("b")
    at.declare("abc")
    assert "b" not in await at.until_applied("ac")
    released.set()
    await at.until_applied("b")
    at.hang("a")
    monkeypatch.setattr(Reader, "watch", start)
    at.declare("abc")
    await at.until_applied("bc")


async def test_flood_leaves_others_their_ids(
    at: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource keeps what it has; what was cut comes when others give something up."""
    at.add(d=200)
    monkeypatch.setattr(limits, "DEVICE_IDS_MAX", 100)
    at.reconfigure(a=1, b=30, c=1, d=1)
    at.declare("d")
    await at.until_applied("d")
    assert at.count("d") == 100 - (1 + 30 + 1)
    at.set_count("b", 90)
    at.declare("b")
    await at.until_applied("b")
    assert at.count("b") == 30
    at.scans.pop("b").close()
    at.reconfigure(a=1, c=1, d=1)
    await at.until_applied("d")
    assert at.count("d") == 100 - (1 + 1)
