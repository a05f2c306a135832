"""Attacks by device nodes: memory, disks, directories of nodes, what is no node at all."""

import os
import socket
import stat

import pytest

from devhost.hostfs.files import HostFiles
from devhost.hostfs.walk import Walk
from devhost.node.cdi_files import CdiFiles, CdiInjection
from tests.security.attack import DISK, KMEM, MEM, NULL, Victim, allocated, asks, edits, written
from tests.support.root import needs_root

pytestmark = needs_root

BLOCK = stat.S_IFBLK


@pytest.mark.parametrize(
    ("number", "how"),
    [(MEM, "renamed"), (KMEM, "symlink"), (KMEM, "symlink to elsewhere"), (MEM, "hard link"),
     (MEM, "directory")],
)  # fmt: skip
def test_memory_by_another_name_is_refused(node: Victim, number: tuple[int, int], how: str) -> None:
    match how:
        case "renamed":
            node.node("/dev/x", number)
        case "symlink":
            node.node("/dev/mem", number)
            node.link("/dev/x", "mem")
        case "symlink to elsewhere":
            node.node("/opt/x", number)
            node.link("/dev/x", "/opt/x")
        case "hard link":
            node.node("/dev/mem", number)
            node.hard_link("/dev/x", "/dev/mem")
        case "directory":
            node.node("/dev/sub/mem", number)
            node.link("/dev/x", "sub")
    node.gives_no_node({"sources": ["/dev/x"]})
    node.refuses(asks("/dev/x"), why="of class memory")


def test_disk_by_the_name_of_a_character_device_is_refused(node: Victim) -> None:
    """A block device is one by its kind: under another's name, and with its numbers."""
    node.node("/dev/ttyS0", DISK, BLOCK)
    node.node("/dev/null", NULL, BLOCK)
    node.link("/dev/zero", "ttyS0")
    node.node("/dev/char/8:0", DISK, BLOCK)
    for path in ("/dev/ttyS0", "/dev/null", "/dev/zero", "/dev/char"):
        node.refuses(asks(path), why="is of class block")
    for source in (
        "/dev/ttyS*",
        {"dev": {"pattern": "zero", "types": ["block", "char"]}},
        {"directory": {"path": "/dev/char", "types": ["block", "file"]}},
    ):
        node.refuses({"sources": [source]}, why="--allow-device")


def test_character_device_with_the_numbers_of_a_disk_is_no_disk(node: Victim) -> None:
    node.node("/dev/x", DISK)
    plain, spec = node.by_both_ways(asks("/dev/x"), "/dev/x")
    assert len(plain.only.devices) == 1
    ((made,),) = (edit["deviceNodes"] for edit in edits(spec.spec))
    assert (made["type"], made["major"], made["minor"]) == ("c", *DISK)


@pytest.mark.parametrize("inject", ["deviceSpecs", "cdi"])
def test_disk_that_comes_late(node: Victim, monkeypatch: pytest.MonkeyPatch, inject: str) -> None:
    node.node("/dev/many/a", NULL)
    scanner = node.scanner({**asks("/dev/many"), "inject": inject})
    snapshot = node.scan(scanner)

    def walk_then_plug(files: HostFiles, base: str) -> Walk:
        walk = Walk(files, base)
        node.node("/dev/many/disk", DISK, BLOCK)
        return walk

    monkeypatch.setattr("devhost.allocation.host_paths.Walk", walk_then_plug)
    _, answers = allocated(scanner, snapshot)
    for answer in answers.values():
        assert [device.host_path for device in answer.devices] in ([], ["/dev/many/a"])
    node.at("/dev/many/disk").unlink(missing_ok=True)
    assert '"b"' not in written(scanner, snapshot)


def test_directory_of_nodes_is_handed_out_without_its_symlinks_and_files(node: Victim) -> None:
    node.node("/dev/many/a", NULL)
    node.file("/etc/shadow")
    node.node("/dev/sda", DISK, BLOCK)
    node.link("/dev/many/b", "/dev/sda")
    node.link("/dev/many/c", "/etc/shadow")
    node.link("/dev/many/d", "/etc")
    node.link("/dev/many/e", "..")
    node.file("/dev/many/f")
    plain, spec = node.by_both_ways(asks("/dev/many"))
    assert [device.host_path for device in plain.only.devices] == ["/dev/many/a"]
    spec.nowhere("sda", "shadow", '"b"')
    ((made,),) = (edit["deviceNodes"] for edit in edits(spec.spec))
    assert made["path"] == "/dev/many/a"


@pytest.mark.parametrize(
    ("name", "number", "path", "why"),
    [
        ("/dev/many/deep/er/b", MEM, "/dev/many", "/dev/many/deep/er/b is of class memory"),
        ("/dev/many/b", MEM, "/dev/./many/", "/dev/many/b is of class memory"),
        ("/opt/many/b", NULL, "/dev/link", "--allow-device '/opt/many/b'"),
        ("/dev/many/a\nb", NULL, "/dev/many", "/dev/many"),
        (os.fsdecode(b"/dev/many/\xff"), NULL, "/dev/many", "/dev/many"),
    ],
)
def test_directory_of_nodes_with_one_that_is_refused_is_refused(
    node: Victim, name: str, number: tuple[int, int], path: str, why: str
) -> None:
    """A node's name goes into a path in the container; a symlink's target is judged where it is."""
    node.node("/dev/many/a", NULL)
    node.link("/dev/link", "/opt/many")
    node.node(name, number)
    node.refuses(asks(path), why=why)


def test_file_pipe_or_socket_below_dev_is_no_device(node: Victim) -> None:
    node.file("/dev/shm/file")
    os.mkfifo(node.at("/dev/shm/fifo"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(node.at("/dev/log")))
    node.link("/dev/l", "/dev/shm/file")
    for path in ("/dev/shm/file", "/dev/shm/fifo", "/dev/log", "/dev/l"):
        node.refuses(asks(path), why="not a device node")
        node.gives_no_node({"sources": [path]})


def test_cdi_spec_has_ids_that_are_json_or_yaml_as_texts(node: Victim) -> None:
    """They make no mount, node or variable."""
    ids = ['"}],"env":["A=B"],"mounts":[{"hostPath":"/', "a: b", "&a *a", "${path}", "'\"\\"]
    ids += ["!!python/object:os.system"]
    node.directory("/ok")
    lines = "/c\u2028- hostPath: \x85x: y"
    entry = {"hostPath": "/ok", "containerPath": f"{lines}/${{id}}"}
    resource = asks(entry, "mounts", sources=[{"static": {"ids": ids}}], inject="cdi")
    brought = edits(node.attack(resource, "/ok").spec)
    assert {(*edit,) for edit in brought} == {("mounts",)}
    mounts = [mount for edit in brought for mount in edit["mounts"]]
    assert {mount["hostPath"] for mount in mounts} == {"/ok"}
    assert {mount["containerPath"] for mount in mounts} == {f"{lines}/{text}" for text in ids}


@pytest.mark.parametrize("key", ["A=B", "A\nB", "${name}", "E_${name}"])
def test_variable_name_with_an_equals_sign_or_newline_is_refused(node: Victim, key: str) -> None:
    """The name would hold a second variable; so would the value of another variable."""
    node.file("/in/a=b", mode=0o644)
    resource = {"sources": [{"directory": "/in"}], "allocate": {"env": {key: "x"}}}
    node.refuses(resource)


def test_optional_node_that_is_refused_makes_the_device_unhealthy(node: Victim) -> None:
    """The node is there: a container without it would not show that a right is missing."""
    node.node("/dev/good", NULL)
    node.node("/dev/disk", DISK, BLOCK)
    mixed = {"hostPath": "/dev/disk", "optional": True, "uid": 0, "mode": "4777"}
    allocate = {"devices": ["${path}", mixed]}
    outcome = node.attack({"sources": ["/dev/good"], "allocate": allocate, "inject": "cdi"})
    outcome.nothing("/dev/disk is of class block: it needs --allow-device '/dev/disk'")


async def test_cdi_spec_from_the_time_of_more_flags_is_removed(node: Victim) -> None:
    node.node("/dev/disk", DISK, BLOCK)
    place = node.directory("/cdi")
    for allow, expected in ((["/dev/disk"], 1), ([], 0)):
        scanner = node.scanner({"sources": ["/dev/disk"], "inject": "cdi"}, *allow)
        await CdiInjection(scanner.resource.name, CdiFiles(place), lambda: None).write(
            scanner, node.scan(scanner)
        )
        assert len([*place.iterdir()]) == expected
