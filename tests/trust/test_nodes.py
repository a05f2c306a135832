"""Attacks by device nodes: memory, disks, directories of nodes, what is no node at all."""

import os
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from devhost.host.cdi import CdiFiles, CdiInjection
from devhost.hostfs.files import HostFiles
from devhost.hostfs.walk import Walk
from tests.trust.attack import (
    KMEM,
    MEM,
    NULL,
    PORT,
    Victim,
    allocated,
    as_root,
    edits,
    made_in,
    written,
)

pytestmark = as_root

DISK, BLOCK = (8, 0), stat.S_IFBLK
MEMORY = pytest.mark.parametrize("number", [MEM, KMEM, PORT])

Make = Callable[[Victim, tuple[int, int]], object]


def handed(path: str, **more: object) -> dict[str, Any]:
    return {"sources": [{"static": 1}], "allocate": {"devices": [path]}, **more}


# ── memory ──


@MEMORY
@pytest.mark.parametrize(
    "make",
    [
        lambda node, number: node.node("/dev/x", number),
        lambda node, number: (node.node("/dev/mem", number), node.link("/dev/x", "mem")),
        lambda node, number: (node.node("/opt/x", number), node.link("/dev/x", "/opt/x")),
        lambda node, number: (
            node.node("/dev/mem", number),
            node.hard_link("/dev/x", "/dev/mem"),
        ),
        lambda node, number: (node.node("/dev/sub/mem", number), node.link("/dev/x", "sub")),
    ],
    ids=["renamed", "link", "link to elsewhere", "hard link", "directory"],
)
def test_memory_by_another_name_is_refused(
    node: Victim, make: Make, number: tuple[int, int]
) -> None:
    """Memory and ports are known by their numbers: as a source, as an entry, and by CDI."""
    make(node, number)
    for resource in (handed("/dev/x"), {"sources": ["/dev/x"]}, handed("/dev/x*")):
        for outcome in node.by_both_ways(resource):
            assert not any(answer.devices for answer in (outcome.answers or {}).values())
            assert not outcome.spec
    for outcome in node.by_both_ways(handed("/dev/x")):
        outcome.nothing("of class memory")


@MEMORY
def test_memory_in_a_directory_of_nodes_is_refused(node: Victim, number: tuple[int, int]) -> None:
    """One forbidden node below a directory refuses the directory, however deep it is."""
    node.node("/dev/many/a", NULL)
    node.node("/dev/many/deep/er/b", number)
    for path in ("/dev/many", "/dev/many/", "/dev/./many", "/dev//", "/dev/."):
        for outcome in node.by_both_ways(handed(path)):
            outcome.nothing("/dev/many/deep/er/b is of class memory")


# ── disks ──


def test_a_disk_by_another_name_is_refused(node: Victim) -> None:
    """A block device is one by its kind: under a character device's name, and with its numbers."""
    node.node("/dev/ttyS0", DISK, BLOCK)
    node.node("/dev/null", NULL, BLOCK)
    node.link("/dev/zero", "ttyS0")
    node.node("/dev/char/8:0", DISK, BLOCK)
    for path in ("/dev/ttyS0", "/dev/null", "/dev/zero", "/dev/char/8:0", "/dev/char"):
        for outcome in node.by_both_ways(handed(path)):
            outcome.nothing("is of class block")
    for source in (
        "/dev/ttyS*",
        {"dev": "ttyS0"},
        {"dev": {"pattern": "zero", "types": ["block", "char"]}},
        {"directory": {"path": "/dev/char", "types": ["block", "file"]}},
        {"glob": {"paths": "/dev/**", "types": "block"}},
    ):
        for outcome in node.by_both_ways({"sources": [source]}):
            outcome.nothing("--allow-device")


def test_a_character_device_with_a_disk_s_numbers_is_no_disk(node: Victim) -> None:
    """What a spec says of a node's type is what it is: the same numbers are another device."""
    node.node("/dev/x", DISK)
    plain, spec = node.by_both_ways(handed("/dev/x"), "/dev/x")
    assert len(plain.only.devices) == 1
    ((made,),) = (one["deviceNodes"] for one in edits(spec.spec))
    assert (made["type"], made["major"], made["minor"]) == ("c", *DISK)


def test_a_disk_that_comes_into_a_directory_between_two_looks_is_not_handed_out(
    node: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed out of a directory is what was judged, not what is there a moment later."""
    node.node("/dev/many/a", NULL)
    for way in ("deviceSpecs", "cdi"):
        node.at("/dev/many/disk").unlink(missing_ok=True)
        scanner = node.scanner({**handed("/dev/many"), "inject": way})
        snapshot = node.scan(scanner)

        def walk_then_plug(files: HostFiles, base: str) -> Walk:
            found = Walk(files, base)
            node.node("/dev/many/disk", DISK, BLOCK)
            return found

        with monkeypatch.context() as patch:
            patch.setattr("devhost.allocation.host_paths.Walk", walk_then_plug)
            _, answers = allocated(scanner, snapshot)
        for answer in answers.values():
            assert [one.host_path for one in answer.devices] in ([], ["/dev/many/a"])
        node.at("/dev/many/disk").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr("devhost.allocation.host_paths.Walk", walk_then_plug)
            assert '"b"' not in written(scanner, snapshot)


# ── directories ──


def test_links_in_a_directory_of_nodes_are_left_out(node: Victim) -> None:
    """A link below a directory brings nothing, wherever it leads; nor does what is no node."""
    node.node("/dev/many/a", NULL)
    node.file("/etc/shadow")
    node.node("/dev/sda", DISK, BLOCK)
    node.link("/dev/many/b", "/dev/sda")
    node.link("/dev/many/c", "/etc/shadow")
    node.link("/dev/many/d", "/etc")
    node.link("/dev/many/e", "..")
    node.file("/dev/many/f")
    plain, spec = node.by_both_ways(handed("/dev/many"))
    assert [one.host_path for one in plain.only.devices] == ["/dev/many/a"]
    spec.nowhere("sda", "shadow", '"b"')
    ((made,),) = (one["deviceNodes"] for one in edits(spec.spec))
    assert made["path"] == "/dev/many/a"


def test_a_directory_by_a_link_is_judged_where_it_is(node: Victim) -> None:
    """A link below /dev to a directory of nodes elsewhere does not bring these."""
    node.node("/opt/many/a", NULL)
    node.link("/dev/many", "/opt/many")
    for outcome in node.by_both_ways(handed("/dev/many")):
        outcome.nothing("--allow-device '/opt/many/a'")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", os.fsdecode(b"\xff")])
def test_an_unusable_name_in_a_directory_of_nodes_is_refused(node: Victim, name: str) -> None:
    """A node's name goes into a path in the container: it is checked as one."""
    node.node("/dev/many/a", NULL)
    node.node(f"/dev/many/{name}", NULL)
    for outcome in node.by_both_ways(handed("/dev/many")):
        outcome.nothing("/dev/many")


# ── no nodes ──


def test_what_is_no_node_is_not_passed_as_one(node: Victim) -> None:
    """Files, pipes and sockets below /dev are no devices, also by a link or in /dev/shm."""
    node.file("/dev/shm/file")
    os.mkfifo(node.at("/dev/shm/fifo"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(node.at("/dev/log")))
    node.link("/dev/l", "/dev/shm/file")
    for path in ("/dev/shm/file", "/dev/shm/fifo", "/dev/log", "/dev/l"):
        for outcome in node.by_both_ways(handed(path)):
            outcome.nothing("not a device node")
        for outcome in node.by_both_ways({"sources": [path]}):
            assert not any(answer.devices for answer in (outcome.answers or {}).values())
            assert not outcome.spec


@pytest.mark.parametrize(
    "path", ["/sys/kernel/a", "/proc/a", "/opt/a", "/a", "/etc/dev/a", "/devious/a"]
)
def test_a_node_beside_dev_is_refused(node: Victim, path: str) -> None:
    """A harmless node is not harmless anywhere: somebody has made it there."""
    node.node(path, NULL)
    for source in (path, {"directory": {"path": path.rpartition("/")[0] or "/", "types": "char"}}):
        for outcome in node.by_both_ways({"sources": [source]}):
            outcome.nothing(f"--allow-device '{path}'")


@pytest.mark.parametrize("permissions", ["", "x", "rwx", "rr", "RW", "r w", "rwmm", "b 8:0 rwm"])
def test_permissions_are_no_more_than_rwm(node: Victim, permissions: str) -> None:
    """Nothing but the three letters reaches the runtime's device rule."""
    node.node("/dev/x", NULL)
    entry = {"hostPath": "/dev/x", "permissions": permissions}
    for outcome in node.by_both_ways(
        {"sources": [{"static": 1}], "allocate": {"devices": [entry]}}
    ):
        outcome.nothing("permissions")


# ── CDI specs ──


def test_ids_add_nothing_to_a_spec(node: Victim) -> None:
    """An ID or a path that is JSON or YAML stays a text: it makes no mount, node or variable."""
    ids = [
        '"}],"env":["A=B"],"mounts":[{"hostPath":"/',
        "a: b",
        "&a *a",
        "!!python/object:os.system",
        "${path}",
        "'\"\\",
    ]
    node.directory("/ok")
    lines = "/c\u2028- hostPath: \x85x: y"
    entry = {"hostPath": "/ok", "containerPath": f"{lines}/${{id}}"}
    resource = {
        "sources": [{"static": {"ids": ids}}],
        "allocate": {"mounts": [entry]},
        "inject": "cdi",
    }
    outcome = node.attack(resource, "/ok")
    assert len(outcome.snapshot.devices) == len(ids)
    inside = set()
    for brought in edits(outcome.spec):
        assert set(brought) == {"mounts"}
        (mount,) = brought["mounts"]
        assert mount["hostPath"] == "/ok"
        inside.add(mount["containerPath"])
    assert inside == {f"{lines}/{one}" for one in ids}


@pytest.mark.parametrize(
    "key", ["A=B", "A\nB", "A B", "", "1A", "A\0", "É", "A-B", "${name}", "E_${name}", "${id}${id}"]
)
def test_a_variable_s_name_holds_no_second_one(node: Victim, key: str) -> None:
    """`=` and newlines do not get into the name of a variable, nor by the value of another."""
    node.file("/in/a=b", mode=0o644)
    resource = {"sources": [{"directory": "/in"}], "allocate": {"env": {key: "x"}}}
    for outcome in node.by_both_ways(resource):
        outcome.nothing()


def test_a_block_node_does_not_get_into_a_spec(node: Victim) -> None:
    """A spec has only the nodes that the policy allows, for whatever device it is."""
    node.node("/dev/good", NULL)
    node.node("/dev/disk", DISK, BLOCK)
    mixed = {"hostPath": "/dev/disk", "optional": True, "uid": 0, "mode": "4777"}
    resource = {
        "sources": ["/dev/good"],
        "allocate": {"devices": ["${path}", mixed]},
        "inject": "cdi",
    }
    outcome = node.attack(resource)
    outcome.nowhere("disk", '"b"')
    assert "/dev/good" in outcome.spec


def test_a_spec_s_mode_changes_nothing_on_the_host(node: Victim) -> None:
    """Owner and bits in a spec are those of the node in the container."""
    place = node.node("/dev/good", NULL)
    entry = {"hostPath": "/dev/good", "uid": 0, "gid": 0, "mode": "4777"}
    node.attack({"sources": [{"static": 1}], "allocate": {"devices": [entry]}, "inject": "cdi"})
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


async def test_a_spec_from_the_time_of_more_flags_does_not_stay(node: Victim) -> None:
    """What a process with more flags has written is gone when one with fewer has looked."""
    node.node("/dev/disk", DISK, BLOCK)
    resource = {"sources": ["/dev/disk"], "inject": "cdi"}
    place = node.directory("/cdi")
    for allow, expected in ((["/dev/disk"], 1), ([], 0)):
        scanner = node.scanner(resource, *allow)
        await CdiInjection(CdiFiles(place), lambda: None).write(scanner, node.scan(scanner))
        assert len(made_in(place)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/x",
        "example.com/../x",
        "/etc/x",
        "example.com/a b",
        "example.com/x\n",
        "x",
        "a/b/c",
    ],
)
def test_a_resource_s_name_is_no_path(node: Victim, name: str) -> None:
    """The spec's file, the socket and the records bear the resource's name: it is no path."""
    outcome = node.attack({"name": name, "sources": [{"static": 1}], "inject": "cdi"})
    outcome.nothing("name")


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "x", "a/b=", "a/b=c\n", "a/b=c d", "=", "a/b=../c"]
)
def test_a_cdi_name_is_a_whole_one(node: Victim, name: str) -> None:
    """Only a fully qualified name is passed on."""
    outcome = node.attack({"sources": [{"static": 1}], "allocate": {"cdi": [name]}})
    outcome.nothing("CDI name")
