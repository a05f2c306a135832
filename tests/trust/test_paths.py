"""Attacks by paths: links, `..`, values of templates, other processes' views, swaps."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from tests.support.mounts import bound, mounted
from tests.trust.attack import NULL, Victim, allocated, as_root, edits, written

SHADOW: dict[str, Any] = {"sources": [{"directory": "/in"}]}


def asks(entry: object, section: str = "devices", **more: object) -> dict[str, Any]:
    return {"sources": [{"static": 1}], "allocate": {section: [entry]}, **more}


# ── links ──


@pytest.mark.parametrize("target", ["/etc/shadow", "../etc/shadow", "../../../../etc/shadow"])
@pytest.mark.parametrize("value", ["${path}", "${realpath}", "/in/${name}"])
def test_a_link_to_shadow_is_not_mounted(node: Victim, target: str, value: str) -> None:
    """A link in a directory that may be mounted does not bring what it leads to."""
    node.file("/etc/shadow")
    node.link("/in/a", target)
    resource = {**SHADOW, "allocate": {"mounts": [value]}}
    for outcome in node.by_both_ways(resource, "/in/*"):
        outcome.nothing("--allow-path '/etc/shadow'")


@pytest.mark.parametrize("target", ["/etc/shadow", "../etc/shadow"])
def test_a_link_to_shadow_is_no_device(node: Victim, target: str) -> None:
    """A link to a file is not passed as a device node, whether or not it is optional."""
    node.file("/etc/shadow")
    node.link("/in/a", target)
    for outcome in node.by_both_ways({**SHADOW, "allocate": {"devices": ["${path}"]}}):
        outcome.nothing("not a device node")
    optional = {"hostPath": "${path}", "optional": True}
    for outcome in node.by_both_ways({**SHADOW, "allocate": {"devices": [optional]}}):
        outcome.nowhere("/in/a", "shadow")


def test_a_link_in_the_middle_of_a_path_counts(node: Victim) -> None:
    """A directory below an allowed one that is a link leads out of what is allowed."""
    node.file("/etc/shadow")
    node.directory("/in")
    node.link("/in/sub", "/etc")
    for path in ("/in/sub/shadow", "/in/sub", "/in/./sub", "/in//sub/", "/in/sub/."):
        for outcome in node.by_both_ways(asks(path, "mounts"), "/in/*"):
            outcome.nothing("--allow-path '/etc")


@as_root
@pytest.mark.parametrize("section", ["mounts", "devices"])
@pytest.mark.parametrize(("link", "target"), [("/var/run", "/run"), ("/var/lock", "/run/lock")])
def test_a_constant_path_counts_by_where_it_leads(
    node: Victim, section: str, link: str, target: str
) -> None:
    """What is allowed is what the link leads to, and only that."""
    node.link(link, target)
    node.node(f"{target}/x")
    for outcome in node.by_both_ways(asks(f"{link}/x", section), "/run/*"):
        assert "0" in (outcome.answers or {}), outcome
    for outcome in node.by_both_ways(asks(f"{link}/x", section), f"{link}/*"):
        outcome.nothing(f"{target}/x'")


def test_a_link_of_links_counts_by_its_end(node: Victim) -> None:
    """Links to links, and directories among them, are followed to their end."""
    node.file("/etc/shadow")
    node.link("/in/a", "/in/b/c")
    node.link("/in/b", "/in/d")
    node.link("/in/d/c", "../../etc/shadow")
    for outcome in node.by_both_ways(asks("/in/a", "mounts"), "/in/*"):
        outcome.nothing("--allow-path '/etc/shadow'")


@pytest.mark.parametrize("links", [41, 60, 200])
def test_a_longer_chain_of_links_than_is_followed_leads_nowhere(node: Victim, links: int) -> None:
    """A chain too long for us is not taken for a path that is merely not there.

    Runtimes in Go follow 255 links: what we could not follow, they could.
    """
    node.file("/etc/shadow")
    for at in range(links):
        node.link(f"/in/l{at}", f"/in/l{at + 1}")
    node.link(f"/in/l{links}", "/etc/shadow")
    for optional in (False, True):
        entry = {"hostPath": "/in/l0", "optional": optional}
        for outcome in node.by_both_ways(asks(entry, "mounts"), "/in/*"):
            outcome.nowhere("/in/l0", "shadow")


def test_links_in_circles_lead_nowhere(node: Victim) -> None:
    """A link that may be bent once it has been allowed is not handed out while it is a circle."""
    node.link("/in/a", "/in/b")
    node.link("/in/b", "/in/a")
    for outcome in node.by_both_ways(asks("/in/a", "mounts"), "/in/*"):
        outcome.nothing("/in/a")


def test_a_dangling_link_counts_by_where_it_leads(node: Victim) -> None:
    """A link to what is not there yet is judged by where it leads."""
    node.link("/in/a", "/etc/later")
    for optional in (False, True):
        entry = {"hostPath": "/in/a", "optional": optional}
        for outcome in node.by_both_ways(asks(entry, "mounts"), "/in/*"):
            outcome.nowhere("/in/a", "later")


# ── `..`, and what looks like below /dev ──

TRICKS = [
    "/dev",
    "/dev/",
    "/dev/.",
    "/dev//",
    "/dev/..",
    "/dev/../etc/secret",
    "/dev//../etc/secret",
    "/dev/./../etc/secret",
    "/dev/./secret",
    "/devious/secret",
    "//dev/../etc/secret",
    "/./etc/secret",
    "/DEV/secret",
    "dev/secret",
    "../dev/secret",
    "",
    ".",
    "/dev/secret\n",
    "/dev/secret\0",
    "/dev/a\n/etc/secret",
    "/dev/sub/../../etc/secret",
    "/proc/1/root/etc/secret",
    "/proc/self/root/dev/secret",
    "/proc/self/cwd/secret",
]


@as_root
@pytest.mark.parametrize("path", TRICKS)
def test_what_only_looks_like_a_device_below_dev_is_refused(node: Victim, path: str) -> None:
    """Neither `..`, nor empty parts, nor names that begin alike make a path one below /dev."""
    for place in ("/etc/secret", "/devious/secret", "/DEV/secret", "/secret"):
        node.node(place, NULL)
    node.node("/dev/secret", (8, 0), 0o060000)
    node.directory("/dev/sub")
    for outcome in node.by_both_ways(asks(path)):
        outcome.nothing()
    for outcome in node.by_both_ways(asks(path, "mounts"), "/dev/*"):
        outcome.nowhere("/etc/secret", "devious", "root", "cwd", "..", "\\n")


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/.", "/dev", "/dev/", "/run/containerd/containerd.sock", "/var/run/docker.sock"],
)
def test_the_whole_host_and_its_sockets_are_not_mounted(node: Victim, path: str) -> None:
    """No mount is allowed without a flag: not of the root, of /dev, or of a runtime's socket."""
    node.directory("/dev")
    node.file("/run/containerd/containerd.sock")
    node.link("/var/run", "/run")
    node.file("/run/docker.sock")
    for outcome in node.by_both_ways(asks({"hostPath": path, "containerPath": "/x"}, "mounts")):
        outcome.nothing("--allow-path")
    # Nor does a flag for something else bring them.
    for outcome in node.by_both_ways(asks({"hostPath": path}, "mounts"), "/run/x", "/dev/x*"):
        outcome.nothing("--allow-path")


@pytest.mark.parametrize(
    "inside", ["x", "../x", "/../x", "/a/../../x", "/x\n", "/x\0y", "/a/..", ""]
)
def test_a_path_in_the_container_has_no_tricks(node: Victim, inside: str) -> None:
    """A path in the container is absolute, and has neither `..` nor control characters."""
    node.directory("/ok")
    for outcome in node.by_both_ways(
        asks({"hostPath": "/ok", "containerPath": inside}, "mounts"), "/ok"
    ):
        outcome.nothing("containerPath")


@as_root
def test_a_prefix_is_not_a_directory(node: Victim) -> None:
    """What is allowed below a directory is not allowed beside it, nor in capitals."""
    for path in (
        "/data/ok",
        "/data-secret/a",
        "/DATA/ok",
        "/database",
        "/x/data/ok",
        "/etc/data/a",
    ):
        node.file(path)
    for path in ("/data-secret/a", "/DATA/ok", "/database", "/x/data/ok", "/data", "/data/"):
        for outcome in node.by_both_ways(asks(path, "mounts"), "/data/*"):
            outcome.nothing("--allow-path")
    (good, _) = node.by_both_ways(asks("/data/ok", "mounts"), "/data/*")
    assert [mount.host_path for mount in good.only.mounts] == ["/data/ok"]


def test_a_path_is_no_glob(node: Victim) -> None:
    """A path of wildcards is a name like any other, and matches no more than itself."""
    node.file("/data/ok")
    for path in ("/data/[o]k", "/*", "/data/../*", "/[d]ata"):
        for outcome in node.by_both_ways(asks(path, "mounts"), "/data/ok"):
            outcome.nothing()


# ── values of templates ──


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("..", "/in/${id}/etc/shadow"),
        ("../../etc/shadow", "/in/${id}"),
        ("a/../../etc/shadow", "/in/${id}"),
        ("/etc/shadow", "${id}"),
        ("/etc/shadow", "/in/${id}/../.."),
        ("etc", "/${id}/shadow"),
        ("shadow", "/etc/${id}"),
        (".", "/${id}/etc/shadow"),
        ("dev/../etc", "/${id}/shadow"),
        ("a\n/etc/shadow", "/in/${id}"),
        ("a\t", "/in/${id}"),
        ("a\0b", "/in/${id}"),
        ("a\x1b[2J", "/in/${id}"),
        ("a\x7f", "/in/${id}"),
    ],
)
@pytest.mark.parametrize("section", ["mounts", "devices"])
def test_a_token_does_not_lead_out(node: Victim, name: str, template: str, section: str) -> None:
    """An ID that is a path, or part of one, leads nowhere that is not allowed."""
    node.file("/etc/shadow")
    node.directory("/in")
    resource = {"sources": [{"static": {"ids": [name]}}], "allocate": {section: [template]}}
    for outcome in node.by_both_ways(resource, "/in/*"):
        outcome.nothing()
    entry = {"hostPath": "/in", "containerPath": template}
    if name != "etc" and name != "shadow" and not name.startswith("/") and name != ".":  # noqa: PLR1714
        for outcome in node.by_both_ways(
            {"sources": resource["sources"], "allocate": {"mounts": [entry]}}, "/in"
        ):
            outcome.nothing()


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "\x01", "\x7f", "a\x1b]0;x\x07", os.fsdecode(b"\xff\xfe")]
)
def test_a_file_with_an_unusable_name_is_no_device(node: Victim, name: str) -> None:
    """Names with control characters, or that are not UTF-8, get no further than the scan."""
    node.file(f"/in/{name}", mode=0o644)
    for outcome in node.by_both_ways(
        {**SHADOW, "allocate": {"mounts": ["${path}"], "env": {"E": "${name}"}}}, "/in/*"
    ):
        assert not outcome.snapshot.devices
        outcome.nothing("unusable name")


@pytest.mark.parametrize("name", ["a\nb", os.fsdecode(b"\xff\xfe")])
def test_a_link_to_an_unusable_name_is_not_handed_out(node: Victim, name: str) -> None:
    node.file(f"/in/{name}", mode=0o644)
    node.link("/in/link", f"/in/{name}")
    for outcome in node.by_both_ways(asks("/in/link", "mounts"), "/in/*"):
        outcome.nothing("/in/link leads to a name that cannot be handed out")


@pytest.mark.parametrize(
    "name", ["a b", "a=b", "a,b", "a'b\"c", "a: b", "{x}", "$(x)", "a..", "-rf"]
)
def test_an_odd_name_stays_one_name(node: Victim, name: str) -> None:
    """Spaces, quotes, `=` and YAML's own characters stay part of the one path."""
    node.file(f"/in/{name}", mode=0o644)
    env = {"value": "${name}", "separator": ";"}
    resource = {**SHADOW, "allocate": {"mounts": ["${path}"], "env": {"E": env}}}
    plain, spec = node.by_both_ways(resource, "/in/*")
    assert [mount.host_path for mount in plain.only.mounts] == [f"/in/{name}"]
    assert plain.only.envs == {"E": name}
    (brought,) = edits(spec.spec)
    assert [mount["hostPath"] for mount in brought["mounts"]] == [f"/in/{name}"]
    assert set(brought) <= {"mounts", "env"}


@as_root
def test_a_group_of_a_pattern_does_not_lead_out(node: Victim) -> None:
    """What a pattern's group takes from a node's path is checked as any value."""
    node.file("/etc/shadow")
    node.node("/dev/a..", NULL)
    source = {"dev": r"a(?P<x>\.\.)"}
    for outcome in node.by_both_ways(
        {"sources": [source], "allocate": {"mounts": ["/dev/${x}/../etc/shadow"]}}, "/dev/*"
    ):
        outcome.nothing("'..'")
    for outcome in node.by_both_ways(
        {"sources": [source], "allocate": {"mounts": ["/dev/${x}/shadow"]}}, "/dev/*"
    ):
        outcome.nothing("'..'")


@as_root
def test_an_index_does_not_reach_what_the_scan_has_not_seen(node: Victim) -> None:
    """What only Allocate can know is judged by Allocate: the scan tries the index 0 alone."""
    node.node("/dev/n0", NULL)
    node.node("/dev/n1", (8, 0), 0o060000)
    scanner = node.scanner(
        {"sources": [{"static": 2}], "allocate": {"devices": ["/dev/n${index}"]}}
    )
    snapshot = node.scan(scanner)
    assert all(device.healthy for device in snapshot.devices.values())
    with pytest.raises(AllocationError, match="--allow-device '/dev/n1'"):
        scanner.allocate(snapshot, ("0", "1"))


# ── other processes' views ──


@as_root
@pytest.mark.parametrize("door", ["root", "cwd", "fd/7", "task/1234/root", "map_files/0-1"])
def test_another_process_s_view_is_not_taken_for_the_host_s(node: Victim, door: str) -> None:
    """A path by /proc/PID/root leads the runtime into a container that the attacker owns.

    Its link reads `/`, so that the path seems to end at a harmless node of the host.
    """
    node.node("/dev/full", (1, 7))
    node.link(f"/proc/1234/{door}", "/")
    node.link("/proc/self", "1234")
    for first in (f"/proc/1234/{door}", f"/proc/self/{door}"):
        found = {"sources": [f"{first}/dev/f*"]}
        for outcome in node.by_both_ways(found):
            assert not outcome.answers
            assert not outcome.spec
        for value in (f"{first}/dev/full", f"{first}/dev/${{name}}"):
            named = {"sources": ["/dev/full"], "allocate": {"devices": [value]}}
            for outcome in node.by_both_ways(named):
                outcome.nothing()
        node.file("/data/x", mode=0o644)
        for outcome in node.by_both_ways(asks(f"{first}/data/x", "mounts"), "/data/*", "/proc/*"):
            outcome.nothing()


@as_root
def test_a_link_through_another_process_s_view_is_refused(node: Victim) -> None:
    """A link into /proc/PID/root is no better than the path itself."""
    node.node("/dev/full", (1, 7))
    node.link("/proc/1234/root", "/")
    node.link("/dev/mine", "/proc/1234/root/dev/full")
    node.link("/data/x", "/proc/1234/root/data/y")
    node.file("/data/y")
    for outcome in node.by_both_ways(asks("/dev/mine")):
        outcome.nothing("/dev/mine")
    for outcome in node.by_both_ways(asks("/data/x", "mounts"), "/data/*"):
        outcome.nothing("/data/x")


@as_root
@pytest.mark.parametrize("door", ["{pid}/root", "self/root", "self/task/{pid}/root"])
@pytest.mark.parametrize("part", ["", "{pid}", "{pid}/task"])
def test_a_procfs_elsewhere_is_no_way_out_either(tmp_path: Path, door: str, part: str) -> None:
    """As a chroot has one, or a part of one bound somewhere."""
    host, place, source = Victim(None), tmp_path / "place", tmp_path / "source"
    place.mkdir()
    if part:  # that of this process, or its threads
        door = door.rpartition("/")[2] if part == "{pid}" else "{pid}/root"
    with mounted("proc", source), bound(source / part.format(pid=os.getpid()), place):
        shown = f"{place}/{door.format(pid=os.getpid())}/dev/null"
        assert Path(shown).is_char_device()
        for outcome in host.by_both_ways({"sources": [shown]}):
            assert not outcome.answers
            assert not outcome.spec
        token = {"static": {"ids": [shown]}}
        resource = {"sources": [token], "allocate": {"devices": ["${id}"]}}
        for outcome in host.by_both_ways(resource):
            outcome.nothing()


def test_links_with_names_as_in_a_procfs_are_links(node: Victim) -> None:
    """It is not the name that makes them what they are."""
    for name in ("root", "1", "0-a", "cwd", "1234/exe"):
        node.link(f"/in/{name}", "/data/x")
        node.file("/data/x", mode=0o644)
        assert node.files.realpath(f"/in/{name}") == "/data/x"


@as_root
@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/dev/fd/3", "/dev/stdout"])
def test_open_files_of_a_process_are_no_devices(node: Victim, path: str) -> None:
    """/dev/fd/0 is one file for devhost that looks, and another for the runtime that opens."""
    node.node("/dev/null", NULL)
    node.link("/dev/fd", "/proc/self/fd")
    node.link("/dev/stdin", "/proc/self/fd/0")
    node.link("/dev/stdout", "fd/3")
    node.link("/proc/self", "77")
    for number in (0, 3):
        node.link(f"/proc/77/fd/{number}", "/dev/null")
    for outcome in node.by_both_ways(asks(path)):
        outcome.nothing(path)
    for outcome in node.by_both_ways({"sources": [path]}):
        assert not outcome.answers


@as_root
@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/root/dev/null",
        "/proc/thread-self/root/dev/null",
        "/proc/{pid}/root/dev/null",
        "/proc/{pid}/task/{pid}/root/dev/null",
        "/proc/self/root/proc/self/root/dev/null",
        "/dev/fd/{fd}",
        "/proc/self/fd/{fd}",
    ],
)
def test_the_kernel_s_own_doors_are_refused_too(path: str) -> None:
    """Where the root is `/`, no path by /proc leads to a device, though the node is harmless."""
    host = Victim(None)
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        shown = path.format(fd=descriptor, pid=os.getpid())
        assert Path(shown).is_char_device()
        for outcome in host.by_both_ways({"sources": [shown]}):
            assert not outcome.answers
            assert not outcome.spec
        resource = {
            "sources": [{"static": {"ids": [shown]}}],
            "allocate": {"devices": ["${id}"]},
        }
        for outcome in host.by_both_ways(resource):
            outcome.nothing()
        for outcome in host.by_both_ways(asks(shown, "mounts"), "/dev/*"):
            outcome.nothing()
    finally:
        os.close(descriptor)


@as_root
def test_a_node_in_another_mount_namespace_is_not_handed_out(tmp_path: Path) -> None:
    """The attack itself: a container's own /dev/full is a disk, and its root reads `/`."""
    disk = tmp_path / "disk"
    os.mknod(disk, 0o060600, os.makedev(7, 77))
    script = f"mount --bind '{disk}' /dev/full && echo ready && read end"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as other:
        assert other.stdout is not None
        if other.stdout.readline() != b"ready\n":
            pytest.skip("no mount namespaces here")
        door = f"/proc/{other.pid}/root/dev"
        assert Path(door, "full").is_block_device()
        assert os.path.realpath(f"{door}/full") == "/dev/full"
        resource = {"sources": ["/dev/full"], "allocate": {"devices": [f"{door}/${{name}}"]}}
        for outcome in Victim(None).by_both_ways(resource):
            outcome.nothing(door.removesuffix("/dev"))


# ── swaps ──


def test_a_link_that_is_bent_after_the_scan_is_refused_by_allocate(node: Victim) -> None:
    """Allocate follows the link once more."""
    node.file("/etc/shadow")
    node.file("/in/good")
    node.link("/in/a", "/in/good")
    for way in ("deviceSpecs", "cdi"):
        node.link("/in/a", "/in/good")
        scanner = node.scanner({**asks("/in/a", "mounts"), "inject": way}, "/in/*")
        snapshot = node.scan(scanner)
        assert snapshot.devices["0"].healthy
        node.link("/in/a", "/etc/shadow")
        refusals, answers = allocated(scanner, snapshot)
        assert not answers
        assert "--allow-path '/etc/shadow'" in refusals[0]
        assert "shadow" not in written(scanner, snapshot)


@as_root
def test_a_device_that_is_exchanged_after_the_scan_is_refused_by_allocate(node: Victim) -> None:
    """A character device that has become memory, a disk or a link to one is not handed out."""
    node.node("/dev/sda", (8, 0), 0o060000)
    exchanges: list[Callable[[], Path]] = [
        lambda: node.node("/dev/x", (1, 1)),
        lambda: node.node("/dev/x", (8, 0), 0o060000),
        lambda: node.link("/dev/x", "/dev/sda"),
        lambda: node.link("/dev/x", "../etc/shadow"),
    ]
    for exchange in exchanges:
        node.node("/dev/x", NULL)
        node.file("/etc/shadow")
        for way in ("deviceSpecs", "cdi"):
            node.node("/dev/x", NULL)
            scanner = node.scanner({"sources": ["/dev/x"], "inject": way})
            snapshot = node.scan(scanner)
            assert snapshot.devices["x"].healthy
            exchange()
            refusals, answers = allocated(scanner, snapshot)
            assert refusals
            assert not answers


@as_root
def test_a_node_in_a_cdi_spec_with_another_number_is_refused_by_allocate(node: Victim) -> None:
    """The spec has the former number; kubelet's answer would follow the path."""
    for way, count in (("deviceSpecs", 1), ("cdi", 0)):
        node.node("/dev/x", NULL)
        scanner = node.scanner({"sources": ["/dev/x"], "inject": way})
        snapshot = node.scan(scanner)
        node.node("/dev/x", (1, 7))
        refusals, answers = allocated(scanner, snapshot)
        assert len(answers) == count
        assert len([one for one in refusals if "another device" in one]) == 1 - count


def test_what_is_optional_and_appears_later_is_judged_then(node: Victim) -> None:
    """A path that was not there at the scan is looked at by Allocate."""
    entry = {"hostPath": "/in/late", "optional": True}
    scanner = node.scanner(asks(entry, "mounts"), "/in/*")
    node.file("/etc/shadow")
    node.directory("/in")
    snapshot = node.scan(scanner)
    node.link("/in/late", "/etc/shadow")
    assert scanner.allocate(snapshot, ("0",)).mounts == ()


def test_a_spec_names_what_was_judged_not_what_is_there_a_moment_later(
    node: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is bent between the look and the writing does not get into a CDI spec."""
    node.file("/etc/shadow")
    node.file("/in/good")
    node.link("/in/a", "/in/good")
    scanner = node.scanner({**asks("/in/a", "mounts"), "inject": "cdi"}, "/in/*")
    snapshot = node.scan(scanner)
    stat = HostFiles.stat

    def stat_then_bend(files: HostFiles, path: str) -> object:
        state = stat(files, path)
        node.link("/in/a", "/etc/shadow")
        return state

    monkeypatch.setattr(HostFiles, "stat", stat_then_bend)
    spec = written(scanner, snapshot)
    assert "shadow" not in spec


# ── below a root ──


@pytest.mark.parametrize(
    "target", ["/out", "../../../../../../../../../out", "/../out", "sub/../../../../../../out"]
)
def test_no_link_leads_out_of_the_root(tmp_path: Path, target: str) -> None:
    """Absolute links and `..` stay below the root: what is beside it is not found."""
    (tmp_path / "out").write_text("secret")
    node = Victim(tmp_path / "root")
    node.directory("/in/sub")
    node.link("/in/a", target)
    for outcome in node.by_both_ways({**SHADOW, "allocate": {"mounts": ["${path}"]}}, "/*"):
        assert not outcome.snapshot.devices
        outcome.nothing("dangling")
    node.file("/out", "the node's own")
    state = node.files.stat("/in/a")
    assert state is not None
    assert state.realpath == "/out"
    found = (node.root / "out").stat()
    assert state.stamp[:2] == (found.st_dev, found.st_ino)
