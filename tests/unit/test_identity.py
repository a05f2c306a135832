"""Which device has which ID, and which has a seat."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.root import needs_root
from tests.support.scanning import survey

X, XY = "sources: [directory: /x]", "sources: [directory: /x, directory: /y]"


def nobody(_key: str) -> str | None:
    return None


class Host:
    """A root whose scans follow one another."""

    def __init__(self, root: Path, text: str, hold_s: float = 1.0) -> None:
        self.root, self.hold_s = root, hold_s
        self.now = 0.0
        self.last = Snapshot()
        self.configure(text)

    def configure(self, text: str) -> None:
        body = "".join(f"  {line}\n" for line in text.splitlines())
        (resource,) = loads(f"version: v1\nresources:\n- name: e.com/a\n{body}").require().resources
        files = HostFiles(str(self.root))
        self.scanner = Scanner.of(resource, files, Policy(), "node", hold_s=self.hold_s)

    def make(self, *names: str) -> None:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).touch()

    def link(self, name: str, target: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).symlink_to(target)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink()

    def survey(self) -> Selection:
        return survey(self.scanner.resource, self.scanner.files)

    def scan(
        self,
        after: float = 0.0,
        claimed: Callable[[str], str | None] = nobody,
        found: Selection | None = None,
    ) -> Snapshot:
        self.now += after
        self.last = self.scanner.snapshot(found or self.survey(), self.last, claimed, self.now)
        return self.last

    def healthy(self, after: float = 0.0) -> list[str]:
        return [one.id for one in self.scan(after).devices.values() if one.healthy]

    def reason(self, candidate: str) -> str:
        (only,) = (one.reason for one in self.last.skipped if one.candidate == candidate)
        return only


def test_the_first_source_names_a_node(tmp_path: Path) -> None:
    """A node that two sources find is one device, named by the first."""
    host = Host(tmp_path, XY)
    host.make("y/node")
    host.link("x/name", "/y/node")
    assert host.healthy() == ["name"]


def test_the_first_name_of_one_source_wins(tmp_path: Path) -> None:
    """Of two names in one source, the first in natural order is the device's."""
    host = Host(tmp_path, X)
    host.make("real")
    host.link("x/n10", "/real")
    host.link("x/n9", "/real")
    assert host.healthy() == ["n9"]


@pytest.mark.parametrize("source", [X, XY])
def test_a_device_keeps_its_first_id_while_it_is_present(tmp_path: Path, source: str) -> None:
    """A better name that appears later does not change the ID."""
    host = Host(tmp_path, source)
    place = "x/b" if source == X else "y/b"
    host.make("real")
    host.link(place, "/real")
    host.scan()
    assert host.healthy(after=2) == ["b"]
    host.link("x/a", "/real")
    assert host.healthy() == ["b"]
    host.remove(place)
    assert host.healthy() == ["a"]


def test_a_node_of_a_later_source_is_held_back(tmp_path: Path) -> None:
    """A node that only a later source finds waits for its time, and says so."""
    host = Host(tmp_path, XY)
    host.scan()
    host.make("y/n")
    assert host.healthy() == []
    assert "held back" in host.reason("/y/n")
    assert host.last.again_at == 1.0
    assert host.healthy(after=0.9) == []
    assert host.last.again_at == 1.0
    assert host.healthy(after=0.1) == ["n"]


def test_a_node_that_is_there_at_the_first_scan_is_not_held_back(tmp_path: Path) -> None:
    """Its links are there too; else a resource behind this one would take it meanwhile."""
    host = Host(tmp_path, XY)
    host.make("y/n")
    assert host.healthy() == ["n"]


def test_an_earlier_source_names_a_node_that_was_held_back(tmp_path: Path) -> None:
    """A link that udev makes within the time gives the name."""
    host = Host(tmp_path, XY)
    host.scan()
    host.make("y/n")
    host.scan()
    host.link("x/name", "/y/n")
    assert host.healthy(after=0.5) == ["name"]
    assert host.healthy(after=1) == ["name"]


def test_a_node_that_went_while_held_waits_anew(tmp_path: Path) -> None:
    """Being held back begins again for a node that went and came."""
    host = Host(tmp_path, XY)
    host.scan()
    host.make("y/n")
    host.scan()
    host.remove("y/n")
    host.scan(after=0.5)
    host.make("y/n")
    assert host.healthy(after=0.5) == []


@pytest.mark.parametrize(
    ("text", "hold_s"), [("sources: [static: [t], directory: /y]", 1.0), (XY, 0.0)]
)
def test_nothing_is_held_back_without_need(tmp_path: Path, text: str, hold_s: float) -> None:
    """Tokens name no nodes, and without a time to wait nothing waits."""
    host = Host(tmp_path, text, hold_s)
    host.make("y/n")
    assert "n" in host.healthy()


def test_one_id_for_two_devices_names_both(tmp_path: Path) -> None:
    """The second device of an ID is skipped, and the reason names the first."""
    host = Host(tmp_path, XY, 0)
    host.make("x/a", "y/a")
    assert host.healthy() == ["a"]
    assert "/x/a" in host.reason("/y/a")


def test_the_device_that_is_offered_keeps_a_disputed_id(tmp_path: Path) -> None:
    """A newcomer with the ID of an offered device is skipped, also of an earlier source."""
    host = Host(tmp_path, XY, 0)
    host.make("y/a")
    host.scan()
    host.make("x/a")
    (only,) = host.scan().devices.values()
    assert only.paths == ("/y/a",)
    assert "/y/a" in host.reason("/x/a")


def test_a_limit_fills_in_natural_order(tmp_path: Path) -> None:
    """With ``maxDevices``, the first in natural order are offered and the others say why."""
    host = Host(tmp_path, f"{X}\nmaxDevices: 2")
    host.make("x/c10", "x/c9", "x/c1")
    assert host.healthy() == ["c1", "c9"]
    assert "maxDevices is 2" in host.reason("/x/c10")


def test_a_newcomer_takes_no_seat(tmp_path: Path) -> None:
    """Those that are offered keep their seats, whatever comes before them in order."""
    host = Host(tmp_path, f"{X}\nmaxDevices: 2")
    host.make("x/c", "x/d")
    host.scan()
    host.make("x/a")
    assert host.healthy() == ["c", "d"]


def test_a_missing_device_keeps_its_seat_until_it_leaves(tmp_path: Path) -> None:
    """A vanished device's seat is given away when it has left."""
    host = Host(tmp_path, f"{X}\nmaxDevices: 2\nremoveMissingAfter: 5m")
    host.make("x/a", "x/b", "x/c")
    host.scan()
    host.remove("x/a")
    assert host.healthy() == ["b"]
    assert host.healthy(after=300) in (["b"], ["b", "c"])
    assert host.healthy() == ["b", "c"]


def test_tokens_with_an_id_template_keep_their_seats(tmp_path: Path) -> None:
    """A scan that finds the same tokens again offers the same devices."""
    host = Host(tmp_path, "sources: [static: 3]\nid: slot-${name}\nmaxDevices: 2")
    assert host.healthy() == ["slot-0", "slot-1"]
    assert host.healthy() == ["slot-0", "slot-1"]


def test_long_tokens_keep_their_seats(tmp_path: Path) -> None:
    """A token whose ID is shortened keeps its seat like any other."""
    host = Host(tmp_path, f"sources: [static: [{'t' * 80}]]\nmaxDevices: 1")
    first = host.healthy()
    assert len(first) == 1
    assert host.healthy() == first


def test_a_device_at_another_path_takes_its_own_seat_again(tmp_path: Path) -> None:
    """A device that is replugged elsewhere under its ID is not over the limit."""
    source = "dev: {pattern: 'port[0-9]-(?P<serial>.*)', types: file}"
    host = Host(tmp_path, f"sources: [{source}]\nid: ${{serial}}\nmaxDevices: 1")
    host.make("dev/port1-A")
    assert host.healthy() == ["A"]
    host.remove("dev/port1-A")
    assert host.healthy() == []
    host.make("dev/port2-A")
    assert host.healthy() == ["A"]


def test_a_source_put_in_front_takes_no_seat(tmp_path: Path) -> None:
    """A reload that puts a source in front leaves the devices on offer their seats."""
    host = Host(tmp_path, "sources: [directory: /y]\nmaxDevices: 2", 0)
    host.make("y/a", "y/b")
    assert host.healthy() == ["a", "b"]
    host.configure(f"{XY}\nmaxDevices: 2")
    assert host.healthy() == ["a", "b"]


def test_a_source_put_in_front_holds_nothing_back(tmp_path: Path) -> None:
    """A reload that puts a source in front does not make the devices on offer wait."""
    host = Host(tmp_path, "sources: [directory: /y]")
    host.make("y/a", "y/b")
    assert host.healthy() == ["a", "b"]
    host.configure(XY)
    assert host.healthy() == ["a", "b"]


def test_a_node_under_a_new_id_marks_the_old_one(tmp_path: Path) -> None:
    """When a reload renames a node, the old ID is known to be replaced."""
    host = Host(tmp_path, X)
    host.make("x/a")
    host.scan()
    host.configure(f"{X}\nid: new-${{name}}")
    devices = host.scan().devices
    assert devices.keys() == {"a", "new-a"}
    assert devices["a"].replaced
    assert not devices["a"].healthy
    assert not devices["new-a"].replaced


def test_a_vanished_device_is_not_replaced(tmp_path: Path) -> None:
    """A device that is gone is missing, and nothing took its place."""
    host = Host(tmp_path, X)
    host.make("x/a", "x/b")
    host.scan()
    host.remove("x/a")
    assert not host.scan().devices["a"].replaced


def test_a_device_whose_link_dangles_is_missing_not_replaced(tmp_path: Path) -> None:
    host = Host(tmp_path, X)
    host.make("y/target")
    host.link("x/a", "../y/target")
    assert host.healthy() == ["a"]
    host.remove("y/target")
    device = host.scan().devices["a"]
    assert host.reason("/x/a") == "dangling link"
    assert not device.replaced
    assert device.reason == "not found any more"


def test_a_file_under_another_name_marks_the_old_one(tmp_path: Path) -> None:
    """A rename changes the change time of a file, and nothing else; so it goes on."""
    host = Host(tmp_path, X)
    host.make("x/a", "x/other")
    host.scan()
    (tmp_path / "x/a").rename(tmp_path / "x/b")
    for _ in range(2):
        devices = host.scan(after=1).devices
        assert devices["a"].replaced
        assert not devices["b"].replaced
        assert not devices["other"].replaced
    (tmp_path / "x/b").rename(tmp_path / "x/c")
    for _ in range(2):
        devices = host.scan(after=1).devices
        assert {key for key, one in devices.items() if one.replaced} == {"a", "b"}
    host.remove("x/c")
    assert not any(one.replaced for one in host.scan(after=1).devices.values())


def test_a_file_in_place_of_another_marks_the_old_one(tmp_path: Path) -> None:
    """The ID of the one that was there goes on; whose file it was has to go."""
    host = Host(tmp_path, X)
    host.make("x/a", "x/b")
    host.scan()
    (tmp_path / "x/a").rename(tmp_path / "x/b")
    devices = host.scan(after=1).devices
    assert {key: one.replaced for key, one in devices.items()} == {"a": True, "b": False}


def test_a_hard_link_that_goes_is_another_device(tmp_path: Path) -> None:
    """The device that is left has had its file all the time, and need not wait for anything."""
    host = Host(tmp_path, X)
    host.make("x/a")
    (tmp_path / "x/b").hardlink_to(tmp_path / "x/a")
    assert host.healthy() == ["a", "b"]
    host.remove("x/b")
    assert host.healthy(after=1) == ["a"]
    assert not host.last.devices["b"].replaced


def test_claimed_nodes_are_skipped(tmp_path: Path) -> None:
    """A node that another resource offers is skipped, and the reason names that one."""
    host = Host(tmp_path, X)
    host.make("x/a", "x/b")
    last = host.scan(claimed=lambda key: "e.com/other" if key == "/x/a" else None)
    assert list(last.devices) == ["b"]
    assert "e.com/other" in host.reason("/x/a")


GROUPS = "sources: [dev: {pattern: '(?P<first>a[0-9])?(?P<second>b[0-9])?c?', types: file}]"


def test_of_a_list_of_ids_the_first_with_all_values_counts(tmp_path: Path) -> None:
    """``id`` as a list: the first template whose variables all have a value."""
    host = Host(tmp_path, f"{GROUPS}\nid: ['${{first}}+${{second}}', 'f-${{first}}']")
    host.make("dev/a1b2", "dev/a3", "dev/c")
    assert host.healthy() == ["a1+b2", "f-a3"]
    assert host.reason("/dev/c") == "no value for any variable of `id`"


def test_a_long_id_is_cut_to_a_prefix_and_a_hash(tmp_path: Path) -> None:
    """Long names become IDs of 63 characters, told apart by their hash, and stay so."""
    host = Host(tmp_path, X)
    host.make(f"x/{'n' * 80}1", f"x/{'n' * 80}2", f"x/{'m' * 63}")
    first = host.healthy()
    assert [len(one) for one in first] == [63, 63, 63]
    assert len(set(first)) == 3
    assert first[0] == "m" * 63
    assert all(one.startswith(f"{'n' * 52}-") for one in first[1:])
    assert host.healthy() == first


def test_the_mark_of_shares_is_refused_in_an_id(tmp_path: Path) -> None:
    """A natural ID with '::' is skipped."""
    host = Host(tmp_path, X)
    host.make("x/a::0", "x/a:b")
    assert host.healthy() == ["a:b"]
    assert "'::'" in host.reason("/x/a::0")


def test_a_new_file_with_an_inode_of_before_is_another(tmp_path: Path) -> None:
    """A filesystem may give the inode of a file that was removed to the next one."""
    host = Host(tmp_path, X)
    host.make("x/a", "x/other")
    former = host.scan().devices["a"].nodes[0].state
    assert former is not None
    host.remove("x/a")
    host.scan(after=1)
    host.make("x/b")
    survey = host.survey()
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
def test_nodes_that_come_for_others_wait_for_nothing(tmp_path: Path) -> None:
    """Also with the inodes of those that have gone, and of the same device."""
    host = Host(tmp_path, "sources: [directory: {path: /x, types: char}]")
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
