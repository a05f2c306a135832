"""The bounds of directories, and the messages beyond them."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.hostfs.files import Tally
from devhost.node.locations import EntryQuota
from devhost.watch.inotify import Inotify
from devhost.watch.watcher import ResolvedTargets, WatchTarget
from tests.support.devices import skip_reasons
from tests.support.scanning import look


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_FEW", 0)


SOURCES = ["directory: {path: /d, recursive: true}", "directory: {path: /d, include: x}", "/d/**/x"]


def fill(directory: Path, count: int, ending: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (directory / f"{number}{ending}").touch()


@pytest.mark.parametrize("source", SOURCES)
def test_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_MAX", 20)
    fill(tmp_path / "d", 9)
    assert not look(tmp_path, source).failed_sources
    fill(tmp_path / "d", 40)
    assert look(tmp_path, source).failed_sources[0].startswith("more than 20 entries")


@pytest.mark.parametrize("character", ["x" * 4, "\N{GRINNING FACE}"])
def test_long_paths_count_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_MAX", 20)
    monkeypatch.setattr("devhost.hostfs.files.ENTRY_BYTES", 100)
    fill(tmp_path / "d", 8, character * 60)
    assert look(tmp_path, "directory: /d").failed_sources[0].startswith("more than 20 entries")


def test_entries_of_wildcards_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that leads to the same place in many ways takes no longer than what it finds."""
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_MAX", 500)
    path = tmp_path / "d" / "/".join(["e"] * 12)
    path.mkdir(parents=True)
    (path / "x").touch()
    listing = look(tmp_path, "/d/**/e/**/e/**/x")
    assert [node.name for node in listing.nodes] == ["/".join(["e"] * 12 + ["x"])]


def test_entry_quota_leaves_each_location_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = EntryQuota(total=15)
    for location in (1, 2, 3):
        quota.add(location)
    assert quota.try_take(1, 10) is None
    assert quota.try_take(2, 5) is None
    assert quota.try_take(2, 6) == "more than 15 entries in all"
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_FEW", 2)
    tally = Tally(lambda count: quota.try_take(3, count))
    for name in ("a", "b"):
        tally.add("/d", name)
    quota.set_count(3, tally.count)
    with pytest.raises(OSError, match="more than 15 entries in all"):
        tally.add("/d", "c")
    quota.set_count(1, 4)
    assert quota.try_take(2, 9) is None
    quota.remove(2)
    assert quota.try_take(2, 9) is None  # a thread that still runs
    assert quota.used == 4 + 2


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("source", ["directory: /d", "/d/**", "/d/*/x", "/d/evil"])
def test_entry_that_cannot_be_read_is_skipped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, source: str
) -> None:
    for name in ("good", "evil"):
        (tmp_path / "d" / name).mkdir(parents=True)
        (tmp_path / "d" / name / "x").touch()
    before = look(tmp_path, source)
    lstat, scandir = os.lstat, os.scandir

    def sick(function: Any) -> Any:
        def touch(path: str, *rest: Any, **options: Any) -> Any:
            if "/d/evil" in str(path):
                raise OSError(number, os.strerror(number), str(path))
            return function(path, *rest, **options)

        return touch

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", sick(lstat))
        patch.setattr(os, "scandir", sick(scandir))
        listing = look(tmp_path, source)
    assert not listing.failed_sources
    assert [node.name for node in listing.nodes] == [
        node.name for node in before.nodes if "evil" not in node.path
    ]
    skipped = skip_reasons(listing.skipped).items()
    unread = {candidate for candidate, reason in skipped if "cannot be read" in reason}
    assert unread <= {"/d/evil", "/d/evil/x"}
    assert listing.unreadable


def watched(path: Path, **options: Any) -> tuple[int, str]:
    inotify = Inotify()
    targets = ResolvedTargets(inotify, [WatchTarget(str(path), recursive=True, **options)])
    inotify.close()
    places = {use.watch for use in targets.uses if not use.entry}
    return len(places), str(targets.error.strerror) if targets.error else ""


def test_watched_directories_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devhost.watch.watcher.WATCHES_MAX", 20)
    for number in range(30):
        (tmp_path / "d" / "deep" / str(number)).mkdir(parents=True)
    places, error = watched(tmp_path / "d")
    assert places == 20 - 1  # and one for the directory above
    assert error == "more than 20 watched directories"


def test_watch_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devhost.watch.watcher.ENTRIES_MAX", 50)
    fill(tmp_path, 60)
    assert watched(tmp_path)[1] == "more than 50 entries"


def test_device_lists_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devhost.backends.deviceplugin.device_list.LISTS_BURST", 3)
    devices = DeviceList()
    stream = devices.streams.open(lambda: None)

    def sent(now: float, *, healthy: bool) -> bool:
        devices.update({"a": AdvertisedDevice(healthy), "b": AdvertisedDevice(True)})
        if devices.streams.send_delay(stream, now):
            return False
        devices.streams.list_sent(stream, devices.entries)
        devices.streams.list_received(stream, devices.entries, now)
        return True

    assert [sent(10.0, healthy=True) for _ in range(4)] == [True, True, True, False]
    assert not sent(10.9, healthy=False)
    assert sent(11.0, healthy=True)
    flapping = [sent(11.0 + number / 100, healthy=bool(number % 2)) for number in range(1000)]
    assert sum(flapping) <= 3 + 10
