"""Attacks by paths: `..`, what looks like below /dev, values of templates, other processes' views."""

import os
from pathlib import Path

import pytest

from devhost.errors import AllocationError
from tests.security.attack import DISK, FULL, NULL, Victim, asks
from tests.support.mounts import bound, mounted
from tests.support.offered import offered
from tests.support.root import needs_root


@needs_root
@pytest.mark.parametrize(
    "path",
    ["/dev", "/dev/../etc/secret", "/dev/./secret", "/devious/secret", "/DEV/secret", "",
     "../dev/secret", "/dev/secret\0", "/proc/self/root/dev/secret"],
)  # fmt: skip
def test_path_that_only_looks_like_below_dev_is_refused(node: Victim, path: str) -> None:
    for place in ("/etc/secret", "/devious/secret", "/DEV/secret", "/secret"):
        node.node(place, NULL)
    node.node("/dev/secret", DISK, 0o060000)
    node.refuses(asks(path))
    for outcome in node.by_both_ways(asks(path, "mounts"), "/dev/*"):
        outcome.nowhere("/etc/secret", "devious", "root", "..", "\\n")


@pytest.mark.parametrize(
    ("name", "template"),
    [("..", "/in/${id}/etc/shadow"), ("../../etc/shadow", "/in/${id}"), ("/etc/shadow", "${id}"),
     ("shadow", "/etc/${id}"), ("a\0b", "/in/${id}")],
)  # fmt: skip
@pytest.mark.parametrize("section", ["mounts", "devices"])
def test_id_of_a_path_leads_nowhere(node: Victim, name: str, template: str, section: str) -> None:
    node.file("/etc/shadow")
    node.directory("/in")
    resource = {"sources": [{"static": {"ids": [name]}}], "allocate": {section: [template]}}
    node.refuses(resource, "/in/*")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b]0;x\x07", os.fsdecode(b"\xff\xfe")])
def test_file_with_an_unusable_name_is_no_device_and_no_target(node: Victim, name: str) -> None:
    """Names with control characters, or that are not UTF-8, get no further than the scan."""
    node.file(f"/in/{name}", mode=0o644)
    resource = asks("${path}", "mounts", sources=[{"directory": "/in"}])
    resource["allocate"]["env"] = {"E": "${name}"}
    for outcome in node.by_both_ways(resource, "/in/*"):
        assert not outcome.snapshot.devices
        outcome.nothing("unusable name")
    node.link("/in/link", f"/in/{name}")
    for outcome in node.by_both_ways(asks("/in/link", "mounts"), "/in/*"):
        outcome.nothing("/in/link leads to a name that cannot be handed out")


@needs_root
def test_path_by_an_index_that_the_scan_has_not_tried_is_judged_at_allocate(node: Victim) -> None:
    node.node("/dev/n0", NULL)
    node.node("/dev/n1", DISK, 0o060000)
    allocate = {"devices": ["/dev/n${index}"]}
    scanner = node.scanner({"sources": [{"static": 2}], "allocate": allocate})
    snapshot = node.scan(scanner)
    assert all(device.healthy for device in snapshot.devices.values())
    with pytest.raises(AllocationError, match="--allow-device '/dev/n1'"):
        scanner.allocate(snapshot, offered("0", "1"))


@needs_root
@pytest.mark.parametrize("door", ["root", "fd/7", "task/1234/root", "map_files/0-1"])
def test_procfs_link_to_another_view_is_refused(node: Victim, door: str) -> None:
    """/proc/PID/root leads the runtime into a container that the attacker owns.

    Its link reads `/`, so that the path seems to end at a harmless node of the host.
    """
    node.node("/dev/full", FULL)
    node.link(f"/proc/1234/{door}", "/")
    node.link("/proc/self", "1234")
    node.file("/data/x", mode=0o644)
    for first in (f"/proc/1234/{door}", f"/proc/self/{door}"):
        for outcome in node.by_both_ways({"sources": [f"{first}/dev/f*"]}):
            assert not outcome.answers
            assert not outcome.spec
        named = {"sources": ["/dev/full"], "allocate": {"devices": [f"{first}/dev/${{name}}"]}}
        node.refuses(named)
        node.refuses(asks(f"{first}/data/x", "mounts"), "/data/*", "/proc/*")
    node.link("/dev/mine", f"/proc/1234/{door}/dev/full")
    node.refuses(asks("/dev/mine"), why="/dev/mine")


@needs_root
@pytest.mark.parametrize(
    ("part", "door"),
    [("", "self/root"), ("", "{pid}/root"), ("{pid}", "root"), ("{pid}/task", "{pid}/root")],
)
def test_procfs_that_is_mounted_elsewhere_is_refused(tmp_path: Path, part: str, door: str) -> None:
    place, source = tmp_path / "place", tmp_path / "source"
    place.mkdir()
    with mounted("proc", source), bound(source / part.format(pid=os.getpid()), place):
        is_no_device(f"{place}/{door.format(pid=os.getpid())}/dev/null")


def is_no_device(path: str) -> None:
    assert Path(path).is_char_device()
    for outcome in Victim(None).by_both_ways({"sources": [path]}):
        assert not outcome.answers
        assert not outcome.spec
    for outcome in Victim(None).by_both_ways(asks("${id}", sources=[{"static": {"ids": [path]}}])):
        outcome.nothing()


def test_symlink_with_a_name_as_in_a_procfs_is_a_link(node: Victim) -> None:
    for name in ("root", "1", "0-a", "1234/exe"):
        node.link(f"/in/{name}", "/data/x")
        node.file("/data/x", mode=0o644)
        assert node.files.realpath(f"/in/{name}") == "/data/x"
