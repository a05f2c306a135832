"""Who scans after an event of a device."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devhost.discovery.match import Readings
from devhost.discovery.roots import DirectoryRoot, Root
from devhost.discovery.sysfs import SubsystemRoot
from devhost.host.inventory import Differs, Inventory
from devhost.hostfs.files import HostFiles
from devhost.watch.uevents import Uevents
from devhost.watch.watcher import Watcher

USB = SubsystemRoot("usb")


@dataclass
class Users:
    """Users of an inventory; each says that it finds something else, or not."""

    inventory: Inventory
    told: list[Callable[[], None]]
    called: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    calls: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def add(self, name: str, differs: object, *more: Root) -> None:
        """Add one that says this, that cannot be asked (`None`), or that raises it."""

        def changed(_root: Root, _name: str | None) -> None:
            self.called.append(name)
            self.calls.put_nowait(name)

        def answer(readings: Readings) -> bool:
            self.asked.append(name)
            assert readings.keys() == {USB}
            if isinstance(differs, Exception):
                raise differs
            return bool(differs)

        def may_be_asked() -> Differs | None:
            return None if differs is None else answer

        self.inventory.use(name, (USB, *more), changed, may_be_asked)

    async def event(self, last: str) -> Sequence[str]:
        """Return who is called after an event, up to the last one."""
        self.told[0]()
        async with asyncio.timeout(10):
            while await self.calls.get() != last:
                pass
        return self.called


@pytest.fixture
async def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Users]:
    told: list[Callable[[], None]] = []

    def subscribe(_: Uevents, _subsystems: frozenset[str], changed: Callable[[], None]) -> object:
        told.append(changed)
        return None

    monkeypatch.setattr(Uevents, "subscribe", subscribe)
    async with Watcher() as watcher:
        yield Users(Inventory(HostFiles(str(tmp_path)), watcher), told)


async def test_only_those_are_called_that_find_something_else(users: Users) -> None:
    for number in range(10):
        users.add(f"same{number}", differs=False)
    users.add("other", differs=True)
    assert await users.event("other") == ["other"]
    assert len(users.asked) == 11


async def test_who_cannot_be_asked_is_called_at_once(users: Users, tmp_path: Path) -> None:
    """Such as one that scans, or one that reads what may not answer."""
    for number in range(5):
        users.add(f"same{number}", differs=False)
    users.add("scanning", None)
    users.add("elsewhere", False, DirectoryRoot(str(tmp_path)))
    users.told[0]()
    assert users.called == ["scanning", "elsewhere"]


async def test_few_are_not_asked(users: Users) -> None:
    for number in range(3):
        users.add(f"same{number}", differs=False)
    users.told[0]()
    assert users.called == ["same0", "same1", "same2"]


async def test_where_asking_fails_all_are_called(
    users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    users.add("broken", OSError("no"))
    for number in range(5):
        users.add(f"same{number}", differs=False)
    assert len(await users.event("same4")) == 6
    assert "asking failed" in caplog.text


async def test_an_event_while_they_are_asked_is_not_lost(users: Users) -> None:
    for number in range(5):
        users.add(f"same{number}", differs=False)
    users.add("other", differs=True)
    users.told[0]()
    await asyncio.sleep(0)  # the first reading has begun
    users.told[0]()
    async with asyncio.timeout(10):
        assert [await users.calls.get() for _ in range(2)] == ["other", "other"]


async def test_who_has_left_meanwhile_is_not_called(users: Users) -> None:
    users.add("gone", differs=True)
    for number in range(5):
        users.add(f"other{number}", differs=True)
    users.told[0]()
    users.inventory.leave("gone")
    async with asyncio.timeout(10):
        while await users.calls.get() != "other4":
            pass
    assert "gone" not in users.called
