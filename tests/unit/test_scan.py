"""From one scan to the next: what holds of all; examples are in scans/*.txt."""

import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.devices import scan
from devhost.devices.places import with_places
from devhost.model import config, names
from devhost.model.device import Cause, Skipped, Snapshot
from devhost.model.device_node import FileKind
from devhost.sources.selection import Selection
from devhost.testing import HostTree
from tests.support.devices import reasons, skip_reasons
from tests.support.memory import IN_MEMORY
from tests.support.root import needs_root
from tests.support.scanning import Scans, nobody, selected, snapshot_of

X = "sources: [directory: /x]"


class Files(Scans):
    """Files in /x."""

    def __init__(self, root: Path, options: str = "", sources: str = X) -> None:
        super().__init__(root, f"{sources}\n{options}")
        self.x = root / "x"
        self.x.mkdir()

    def at(self, now: float) -> Snapshot:
        return self.scan(now - self.now)

    def well(self, now: float) -> dict[str, bool]:
        return {key: device.healthy for key, device in self.at(now).devices.items()}

    def have(self, wanted: set[str]) -> None:
        for path in list(self.x.iterdir()):
            if path.name not in wanted:
                path.unlink()
        for name in wanted:
            (self.x / name).touch()


@given(st.lists(st.sets(st.sampled_from(["a", "b", "c1", "c9", "c10"])), max_size=8))
def test_scan_present_devices_are_healthy_and_keep_their_ids(sets: list[set[str]]) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        scans = Files(Path(made), "removeMissingAfter: 2s")
        ever: set[str] = set()
        for now, wanted in enumerate(sets):
            scans.have(wanted)
            ever |= wanted
            snapshot = scans.at(float(now))
            assert {key for key, state in snapshot.devices.items() if state.healthy} == wanted
            assert snapshot.devices.keys() <= ever
            assert list(snapshot.devices) == names.natural(snapshot.devices)
            for device_id, device in snapshot.devices.items():
                assert device.id == device_id
                assert [node.path for node in device.nodes] == [f"/x/{device_id}"]


@given(
    st.integers(1, 3), st.lists(st.sets(st.sampled_from(["a", "b", "c1", "c9", "c10"])), max_size=8)
)
def test_scan_max_devices_is_kept_and_offered_stay(limit: int, sets: list[set[str]]) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        scans = Files(Path(made), f"maxDevices: {limit}\nremoveMissingAfter: never")
        seats: set[str] = set()
        for now, wanted in enumerate(sets):
            scans.have(wanted)
            free = limit - len(seats)
            seats |= set(names.natural(wanted - seats)[:free])
            states = scans.well(float(now))
            assert states.keys() == seats
            assert {key for key, healthy in states.items() if healthy} == seats & wanted


def test_scan_beyond_default_limit_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEVICES_MAX", 2)
    monkeypatch.setattr(scan, "SKIPPED_MAX", 3)
    scans = Files(tmp_path)
    for name in "abcdefg":
        (scans.x / name).touch()
    snapshot = scans.at(0)
    assert list(snapshot.devices) == ["a", "b"]
    reason = "over the limit: maxDevices is 2 by default"
    assert skip_reasons(snapshot.skipped) == {f"/x/{name}": reason for name in "cde"}
    assert snapshot.skipped_count == 5
    (scans.x / "a").unlink()
    assert list(scans.at(1).devices) == ["a", "b"]
    assert list(scans.at(400).devices) == ["b"]
    assert scans.last.again_at == 400
    assert list(scans.at(400).devices) == ["b", "c"]
    scans.configure(f"{X}\nmaxDevices: 3")
    assert len(scans.at(401).devices) == 3
    scans.configure("sources: [static: 4]")
    assert {"0", "1", "2", "3"} <= scans.at(402).devices.keys()


def test_scan_reason_with_a_long_text_is_cut(tmp_path: Path) -> None:
    """The reason is kept for each device."""
    scans = Files(tmp_path, f"allocate: {{devices: [], env: {{A: '{'x' * 9000}${{id}}'}}}}")
    (scans.x / "a,b").touch()
    assert len(reasons(scans.at(0))["a,b"] or "") < 1000


def test_scan_asks_again_about_unchanged_devices_only_when_thorough(tmp_path: Path) -> None:
    """After an event, what an unchanged device was found to be counts."""
    scans = Files(tmp_path, "allocate: {mounts: ['${path}']}")
    scans.scanner = replace(scans.scanner, policy=Policy(("/x/*",), enforced=True))
    for name in "ab":
        (scans.x / name).touch()
    assert scans.well(0) == {"a": True, "b": True}
    scans.scanner = replace(scans.scanner, policy=Policy(("/x/b",), enforced=True))
    (scans.x / "c").touch()
    (scans.x / "b").write_text("changed")
    states = []
    for thorough in (False, True):
        selection = selected(scans.scanner)
        snapshot = snapshot_of(scans.scanner, selection, scans.last, nobody, 1, full=thorough)
        states.append({key: device.healthy for key, device in snapshot.devices.items()})
    assert states == [{"a": True, "b": True, "c": False}, {"a": False, "b": True, "c": False}]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a1", "a2", "b1", "c1"]), st.sampled_from(["x", "y", None]), min_size=1
        ),
        max_size=5,
    ),
    st.sampled_from(
        [
            "",
            "maxDevices: 2",
            'allocate: {env: {"A_${id}": x}}',
            'allocate: {env: {"A_${group}": "${id}"}}',
            'allocate: {env: {"A_${group}": "${id}", "A_${id}": x}}',
            'allocate: {mounts: [{hostPath: "${path}", containerPath: /x}]}',
        ]
    ),
)
def test_scan_in_part_finds_the_same(changes: list[dict[str, str | None]], options: str) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        source = "dev: {pattern: 'x/(?P<group>.).*', types: file}"
        scans = Files(Path(root), options, f"sources: [{{{source}}}]")
        place = Path(root) / "dev" / "x"
        place.mkdir(parents=True)
        kept = Snapshot()
        for now, change in enumerate(changes):
            for name, content in change.items():
                (place / name).unlink(missing_ok=True)
                if content is not None:
                    (place / name).write_text(content)
            selection = selected(scans.scanner)
            kept = snapshot_of(scans.scanner, selection, kept, nobody, now, full=False)
            assert scans.at(now) == kept


def test_scan_reused_inode_is_another_file(tmp_path: Path) -> None:
    host = Scans(tmp_path, "sources: [directory: /x]")
    host.make("x/a", "x/other")
    former = host.scan().devices["a"].nodes[0].state
    assert former is not None
    host.remove("x/a")
    host.scan(after=1)
    host.make("x/b")
    survey = selected(host.scanner)
    for modified, replaced in ((former.modified + 1, set()), (former.modified, {"a"})):
        nodes = tuple(
            replace(node, state=replace(node.state, stamp=(*former.inode, 99), modified=modified))
            if node.state and node.name == "b"
            else node
            for node in survey.nodes
        )
        states = reasons(host.scan(after=1, selection=replace(survey, nodes=nodes)))
        assert host.replaced == replaced
        assert {name for name, reason in states.items() if reason is None} == {"b", "other"}


@pytest.mark.parametrize(
    ("kind", "links", "names"),
    [
        (FileKind.FILE, 2, {"a"}),
        (FileKind.FILE, 1, {"a", "b"}),
        (FileKind.DIRECTORY, 2, {"a", "b"}),
    ],
)
def test_scan_equal_inodes_are_one_file_where_it_has_several_names(
    tmp_path: Path, kind: FileKind, links: int, names: set[str]
) -> None:
    """Some filesystems give different files one number; a directory is named by those in it, too."""
    host = Scans(tmp_path, "sources: [directory: /x]")
    host.make("x/a", "x/b")
    survey = selected(host.scanner)
    nodes = tuple(
        replace(node, state=replace(node.state, kind=kind, stamp=(5, 1, 9), links=links))
        for node in survey.nodes
        if node.state
    )
    assert host.scan(selection=replace(survey, nodes=nodes)).devices.keys() == names


def test_scan_device_left_out_leaves_though_a_link_dangles(tmp_path: Path) -> None:
    excluded = Skipped.because(Cause.EXCLUDED, "/x/a", "excluded")
    dangling = Skipped.because(Cause.DANGLING, "/x/a", "dangling link")
    for skipped in ((excluded, dangling), (dangling, excluded), (dangling,)):
        host = Scans(tmp_path, "sources: [directory: /x]")
        host.make("x/a")
        host.scan()
        host.scan(after=1, selection=Selection(skipped=skipped))
        assert host.replaced == ({"a"} if excluded in skipped else set())


@needs_root
def test_scan_reused_inodes_of_nodes_replace_nothing(tmp_path: Path) -> None:
    host = Scans(tmp_path, "sources: [directory: {path: /x, types: char}]")
    (tmp_path / "x").mkdir()
    former = [f"x/a{number}" for number in range(20)]
    for name in former:
        os.mknod(tmp_path / name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    host.scan()
    host.remove(*former)
    for number in range(20):
        os.mknod(tmp_path / f"x/b{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    assert len(host.scan(after=1).devices) == 40
    assert not host.replaced


@needs_root
def test_scan_numa_nodes_return_once_no_device_lacks_one(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for minor in range(3):
        numa = {"numa_node": f"{minor}"} if minor < 2 else {}
        tree.device(f"/sys/devices/card{minor}", "class/misc", dev=f"240:{minor}", **numa)
    host = Scans(tree.root, "sources: [dev: card.]")
    assert {device.numa_nodes for device in host.scan().devices.values()} == {()}
    left = {name: host.last.devices[name] for name in ("card0", "card1")}
    scanner = host.scanner
    placed, mixed = with_places(left, host.last, scanner.resource, scanner.files, full=False)
    assert not mixed
    assert [placed[name].numa_nodes for name in sorted(placed)] == [(0,), (1,)]
