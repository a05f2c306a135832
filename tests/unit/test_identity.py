"""Which device has which ID, and which has a seat."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.root import needs_root
from tests.support.scanning import Scans, selected

X, XY = "sources: [directory: /x]", "sources: [directory: /x, directory: /y]"


@pytest.mark.parametrize("source", [X, XY])
def test_identity_first_id_stays_while_the_device_is_present(tmp_path: Path, source: str) -> None:
    host = Scans(tmp_path, source)
    place = "x/b" if source == X else "y/b"
    host.make("real")
    host.link(place, "/real")
    host.scan()
    assert host.healthy(after=2) == ["b"]
    host.link("x/a", "/real")
    assert host.healthy() == ["b"]
    host.remove(place)
    assert host.healthy() == ["a"]


def test_identity_node_waits_a_moment_for_the_name_of_an_earlier_source(
    tmp_path: Path,
) -> None:
    """Such as by a link, which udev makes after the node."""
    host = Scans(tmp_path, XY, 1.0)
    host.make("y/there")
    assert host.healthy() == ["there"]  # its links are there too at the first scan
    host.make("y/n")
    assert host.healthy() == ["there"]
    assert "held back" in host.reason("/y/n")
    assert host.last.again_at == 1.0
    host.remove("y/n")
    assert host.healthy(after=0.9) == ["there"]
    host.make("y/n")  # it waits again
    assert host.healthy() == ["there"]
    assert host.healthy(after=0.9) == ["there"]
    assert host.healthy(after=0.1) == ["n", "there"]
    host.make("y/m")
    host.scan()
    host.link("x/name", "/y/m")
    assert host.healthy(after=0.5) == host.healthy(after=1) == ["n", "name", "there"]
    host.configure(f"sources: [directory: /z, {XY[len('sources: [') :]}")
    assert host.healthy() == ["n", "name", "there"]  # what is known waits for no new source


def test_identity_node_does_not_wait_for_tokens(tmp_path: Path) -> None:
    host = Scans(tmp_path, "sources: [static: [t], directory: /y]", 1.0)
    host.scan()
    host.make("y/n")
    assert host.healthy() == ["n", "t"]


def test_identity_duplicate_id_is_skipped_with_the_path_of_the_first(tmp_path: Path) -> None:
    host = Scans(tmp_path, XY)
    host.make("x/a", "y/a")
    assert host.healthy() == ["a"]
    assert "/x/a" in host.reason("/y/a")


def test_identity_duplicate_id_stays_with_the_offered_device(tmp_path: Path) -> None:
    host = Scans(tmp_path, XY)
    host.make("y/a")
    host.scan()
    host.make("x/a")
    (only,) = host.scan().devices.values()
    assert only.paths == ("/y/a",)
    assert "/y/a" in host.reason("/x/a")


def test_identity_max_devices_fills_in_natural_order(tmp_path: Path) -> None:
    host = Scans(tmp_path, f"{X}\nmaxDevices: 2")
    host.make("x/c10", "x/c9", "x/c1")
    assert host.healthy() == ["c1", "c9"]
    assert "maxDevices is 2" in host.reason("/x/c10")
    host.make("x/a", "y/b")
    host.configure("sources: [directory: /y, directory: /x]\nmaxDevices: 2")
    assert host.healthy() == ["c1", "c9"]


@pytest.mark.parametrize(
    "text",
    ["sources: [static: 3]\nid: slot-${name}\nmaxDevices: 2", f"sources: [static: [{'t' * 80}]]"],
)
def test_identity_tokens_keep_their_ids(tmp_path: Path, text: str) -> None:
    host = Scans(tmp_path, text)
    first = host.healthy()
    assert first
    assert host.healthy() == first


def test_identity_device_plugged_in_elsewhere_is_not_over_the_limit(tmp_path: Path) -> None:
    source = "dev: {pattern: 'port[0-9]-(?P<serial>.*)', types: file}"
    host = Scans(tmp_path, f"sources: [{source}]\nid: ${{serial}}\nmaxDevices: 1")
    host.make("dev/port1-A")
    assert host.healthy() == ["A"]
    host.remove("dev/port1-A")
    assert host.healthy() == []
    host.make("dev/port2-A")
    assert host.healthy() == ["A"]


def test_identity_missing_device_is_not_replaced(tmp_path: Path) -> None:
    """Nor one whose link dangles now."""
    host = Scans(tmp_path, X)
    host.make("y/target", "x/b")
    host.link("x/a", "../y/target")
    assert host.healthy() == ["a", "b"]
    host.remove("y/target", "x/b")
    assert host.states() == {"a": "not found any more", "b": "not found any more"}
    assert host.reason("/x/a") == "dangling link"
    assert host.replaced == set()


def test_identity_renamed_file_makes_the_former_id_leave(tmp_path: Path) -> None:
    """By a reload or a rename: that changes the change time of the file, and nothing else."""
    host = Scans(tmp_path, X)
    host.make("x/a", "x/other")
    host.scan()
    (tmp_path / "x/a").rename(tmp_path / "x/b")
    for _ in range(2):
        assert host.healthy(after=1) == ["b", "other"]
        assert host.replaced == {"a"}
    (tmp_path / "x/b").rename(tmp_path / "x/c")
    for _ in range(2):
        assert host.healthy(after=1) == ["c", "other"]
        assert host.replaced == {"a", "b"}
    (tmp_path / "x/c").rename(tmp_path / "x/other")  # whose ID goes on
    assert host.healthy(after=1) == ["other"]
    assert "c" in host.replaced
    host.remove("x/other")
    host.scan(after=1)
    assert host.replaced == set()
    host.make("x/d")
    host.scan()
    host.configure(f"{X}\nid: new-${{name}}")
    assert host.healthy() == ["new-d"]
    assert "d" in host.replaced


def test_identity_removed_hard_link_replaces_nothing(tmp_path: Path) -> None:
    """The device that is left has had its file all the time, and need not wait for anything."""
    host = Scans(tmp_path, X)
    host.make("x/a")
    (tmp_path / "x/b").hardlink_to(tmp_path / "x/a")
    assert host.healthy() == ["a", "b"]
    host.remove("x/b")
    assert host.healthy(after=1) == ["a"]
    assert not host.last.devices["b"].replaced


GROUPS = "sources: [dev: {pattern: '(?P<first>a[0-9])?(?P<second>b[0-9])?c?', types: file}]"


def test_identity_of_a_list_of_ids_is_the_first_with_all_values(tmp_path: Path) -> None:
    host = Scans(tmp_path, f"{GROUPS}\nid: ['${{first}}+${{second}}', 'f-${{first}}']")
    host.make("dev/a1b2", "dev/a3", "dev/c")
    assert host.healthy() == ["a1+b2", "f-a3"]
    assert host.reason("/dev/c") == "no value for any variable of `id`"


def test_identity_long_id_is_cut_to_a_prefix_and_a_hash(tmp_path: Path) -> None:
    host = Scans(tmp_path, X)
    host.make("x/a::0")
    assert host.healthy() == []
    assert "'::'" in host.reason("/x/a::0")
    host.make(f"x/{'n' * 80}1", f"x/{'n' * 80}2", f"x/{'m' * 63}")
    first = host.healthy()
    assert [len(one) for one in first] == [63, 63, 63]
    assert len(set(first)) == 3
    assert first[0] == "m" * 63
    assert all(one.startswith(f"{'n' * 52}-") for one in first[1:])
    assert host.healthy() == first


def test_identity_reused_inode_is_another_file(tmp_path: Path) -> None:
    """A filesystem may give the inode of a file that was removed to the next one."""
    host = Scans(tmp_path, X)
    host.make("x/a", "x/other")
    former = host.scan().devices["a"].nodes[0].state
    assert former is not None
    host.remove("x/a")
    host.scan(after=1)
    host.make("x/b")
    survey = selected(host.scanner)
    for modified, replaced in ((former.modified + 1, set()), (former.modified, {"a"})):
        nodes = tuple(
            replace(one, state=replace(one.state, stamp=(*former.identity, 99), modified=modified))
            if one.state and one.name == "b"
            else one
            for one in survey.nodes
        )
        devices = host.scan(after=1, found=replace(survey, nodes=nodes)).devices
        assert {key for key, one in devices.items() if one.replaced} == replaced
        assert {key for key, one in devices.items() if one.healthy} == {"b", "other"}


@needs_root
def test_identity_reused_inodes_of_nodes_replace_nothing(tmp_path: Path) -> None:
    """Also with the inodes of those that have gone, and of the same device."""
    host = Scans(tmp_path, "sources: [directory: {path: /x, types: char}]")
    (tmp_path / "x").mkdir()
    former = [f"x/a{number}" for number in range(20)]
    for name in former:
        os.mknod(tmp_path / name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    host.scan()
    host.remove(*former)
    for number in range(20):
        os.mknod(tmp_path / f"x/b{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    devices = host.scan(after=1).devices
    assert len(devices) == 40
    assert not any(one.replaced for one in devices.values())
