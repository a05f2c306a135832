"""Which resources a round of the rescan has scanned."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from devhost.discovery.baseline import Baseline, Fingerprint, baseline, fingerprint
from devhost.discovery.roots import DirectoryRoot, Root
from devhost.host import rescan
from devhost.host.rescan import Rescan
from devhost.hostfs import mounts

MOUNTINFO = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:5 / /dev rw - devtmpfs udev rw
31 30 0:6 / /dev/a\040b rw - tmpfs tmpfs rw
"""


class Resource:
    """Has directories, and counts its scans."""

    events_suffice = True

    def __init__(self, *paths: Path) -> None:
        self._roots = [DirectoryRoot(str(path)) for path in paths]
        self.baselines: Mapping[Root, Baseline | None] = {}
        self.scans = 0
        self.scan()

    def scan(self) -> None:
        self.baselines = {root: baseline([root.base]) for root in self._roots}

    def rescan(self) -> None:
        self.scans += 1
        self.scan()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every filesystem's clock were exact."""
    monkeypatch.setattr("devhost.discovery.baseline._GRAIN_NS", 0)


def made(place: Path, *names: str) -> list[Path]:
    paths = [place / name for name in names]
    for path in paths:
        path.mkdir()
    return paths


async def begun(*resources: Resource) -> Rescan:
    one = Rescan(lambda: resources)
    await one.begin()
    return one


async def test_a_directory_that_differs_and_no_other(tmp_path: Path) -> None:
    a, b = made(tmp_path, "a", "b")
    missing = tmp_path / "missing"
    first, second, third = Resource(a), Resource(a, b), Resource(missing)
    one = await begun(first, second, third)
    await one.round()
    assert [first.scans, second.scans, third.scans] == [0, 0, 0]
    (b / "new").touch()
    await one.round()
    await one.round()
    assert [first.scans, second.scans, third.scans] == [0, 1, 0]
    missing.mkdir()
    a.rename(tmp_path / "away")
    await one.round()
    await one.round()
    assert [first.scans, second.scans, third.scans] == [1, 2, 1]


async def test_one_whose_directory_another_has_read_since(tmp_path: Path) -> None:
    """The other has found what is new, and this one has not."""
    resource, other = Resource(tmp_path), Resource(tmp_path)
    one = await begun(resource, other)
    (tmp_path / "new").touch()
    other.scan()
    await one.round()
    assert (resource.scans, other.scans) == (1, 0)


async def test_one_without_a_baseline_is_scanned_each_time(tmp_path: Path) -> None:
    resource = Resource(tmp_path)
    resource.scan = lambda: None  # type: ignore[method-assign]
    resource.baselines = dict.fromkeys(resource.baselines)
    one = await begun(resource)
    for _ in range(3):
        await one.round()
    assert resource.scans == 3


async def test_one_of_which_events_do_not_tell_all_is_scanned_each_time(tmp_path: Path) -> None:
    resource, other = Resource(tmp_path), Resource(tmp_path)
    resource.events_suffice = False
    one = await begun(resource, other)
    for _ in range(3):
        await one.round()
    assert (resource.scans, other.scans) == (3, 0)


async def test_a_directory_of_many_resources_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(path: str) -> Fingerprint:
        asked.append(path)
        return fingerprint(path)

    one = await begun(*(Resource(tmp_path) for _ in range(100)))
    monkeypatch.setattr(rescan, "fingerprint", counted)
    await one.round()
    assert asked == [str(tmp_path)]


async def test_what_was_scanned_meanwhile_is_scanned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = Resource(tmp_path)
    one = await begun(resource)
    (tmp_path / "new").touch()

    def meanwhile(path: str) -> Fingerprint:
        resource.scan()
        return fingerprint(path)

    monkeypatch.setattr(rescan, "fingerprint", meanwhile)
    await one.round()
    assert resource.scans == 1


async def test_a_filesystem_that_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its resource is scanned, which finds out; the others are compared."""
    a, sick, b = made(tmp_path, "a", "sick", "b")
    resources = [Resource(path) for path in (a, sick, b)]
    one = await begun(*resources)
    release = threading.Event()

    def hanging(path: str) -> Fingerprint:
        if path == str(sick):
            release.wait(60)
        return fingerprint(path)

    monkeypatch.setattr(rescan, "fingerprint", hanging)
    monkeypatch.setattr(rescan, "_PATIENCE_S", 2.0)
    (b / "new").touch()
    try:
        await one.round()
    finally:
        release.set()
    assert [resource.scans for resource in resources] == [0, 1, 1]


async def test_what_is_mounted_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory itself is the same then."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    monkeypatch.setattr(rescan, "_MOUNTS", str(table))
    inside, beside = Resource(Path("/dev")), Resource(Path("/usr"))
    one = await begun(inside, beside)
    table.write_text(MOUNTINFO + "40 30 0:5 /null /dev/zero rw - devtmpfs udev rw\n")
    await one.round()
    assert (inside.scans, beside.scans) == (1, 0)
    table.write_text(MOUNTINFO)
    await one.round()
    await one.round()
    assert (inside.scans, beside.scans) == (2, 0)


def test_mounts_by_directory(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"{MOUNTINFO}\nnot of this kind\n")
    assert mounts.by_directory(str(table)) == {
        "/": frozenset({" 22", "dev 30"}),
        "/dev": frozenset({"a b 31"}),
    }
    assert mounts.by_directory(str(tmp_path / "missing")) == {}
