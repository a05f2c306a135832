"""What a configuration may hand to containers."""

import os
from pathlib import Path

import pytest

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import BLOCK, Policy
from devhost.hostfs.files import HostFiles
from devhost.model.allocation import DeviceSpec, MountSpec
from devhost.model.device import FileKind

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


@pytest.mark.parametrize(
    ("path", "kind", "number", "allowed"),
    [
        ("/dev/kvm", FileKind.CHAR, (10, 232), True),
        ("/dev/null", FileKind.CHAR, (1, 3), True),
        ("/dev/bus/usb/001/001", FileKind.CHAR, (189, 0), False),
        ("/dev/mem", FileKind.CHAR, (1, 1), False),
        ("/dev/kmem", FileKind.CHAR, (1, 2), False),
        ("/dev/port", FileKind.CHAR, (1, 4), False),
        ("/dev/other-name", FileKind.CHAR, (1, 1), False),
        ("/dev/sda", FileKind.BLOCK, (8, 0), False),
        ("/dev/sda", FileKind.BLOCK, (1, 3), False),
        ("/dev/null", FileKind.CHAR, (21, 0), False),
        ("/dev/null", FileKind.CHAR, (240, 0), False),
        ("/dev/shm/null", FileKind.CHAR, (1, 3), False),
        ("/devious", FileKind.CHAR, (10, 232), False),
        ("/etc/kvm", FileKind.CHAR, (10, 232), False),
    ],
)
def test_without_flags_only_safe_character_devices_below_dev(
    tmp_path: Path, path: str, kind: FileKind, number: tuple[int, int], *, allowed: bool
) -> None:
    (tmp_path / "sys/dev/char").mkdir(parents=True)
    rules = HostPaths(HostFiles(str(tmp_path)), Policy(enforced=True))
    refusal = rules.refused_node(path, kind, number)
    assert (refusal is None) == allowed
    if refusal is not None:
        assert "--allow-device" in refusal


@pytest.mark.parametrize(
    ("glob", "path", "allowed"),
    [
        ("/etc/colas/*", "/etc/colas/a", True),
        ("/etc/colas/*", "/etc/colas/a/b", True),
        ("/etc/colas/*", "/etc/colas", False),
        ("/etc/colas/*", "/x/etc/colas/a", False),
        ("/etc/colas", "/etc/colas/a", False),
        ("/dev/sd?", "/dev/sda", True),
        ("/dev/sd?", "/dev/sda1", False),
        ("/dev/SDA", "/dev/sda", False),
    ],
)
def test_a_glob_matches_the_whole_path_of_a_mount_or_of_a_node(
    glob: str, path: str, *, allowed: bool
) -> None:
    """Its ``*`` goes over '/'; each flag allows the one and not the other."""
    mounts, nodes = Policy((glob,), enforced=True), Policy(enforced=True, allow_devices=(glob,))
    assert (mounts.refused_file(path, mount=True) is None) == allowed
    assert (nodes.refused_node(path, BLOCK) is None) == allowed
    assert nodes.refused_file(path, mount=True)
    assert mounts.refused_node(path, BLOCK)


def device(path: str) -> DeviceSpec:
    return DeviceSpec(host_path=path, container_path="/dev/x", permissions="rw")


def mount(path: str) -> MountSpec:
    return MountSpec(host_path=path, container_path="/x", read_only=True)


@ROOT_ONLY
def test_a_link_below_dev_to_a_node_outside_is_refused(tmp_path: Path) -> None:
    """Where a device's path leads counts, not how it looks."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "etc").mkdir()
    os.mknod(tmp_path / "etc/n", 0o20600, os.makedev(1, 3))
    (tmp_path / "dev/l").symlink_to("/etc/n")
    paths = HostPaths(HostFiles(str(tmp_path)), Policy(enforced=True))
    assert "--allow-device '/etc/n'" in (paths.problem(device("/dev/l")) or "")


@ROOT_ONLY
def test_memory_under_another_name_is_refused(tmp_path: Path) -> None:
    """The numbers of a node say that it is memory, whatever its name."""
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/harmless", 0o20600, os.makedev(1, 1))
    os.mknod(tmp_path / "dev/null", 0o20600, os.makedev(1, 3))
    paths = HostPaths(HostFiles(str(tmp_path)), Policy(enforced=True))
    assert "memory" in (paths.problem(device("/dev/harmless")) or "")
    assert paths.problem(device("/dev/null")) is None


def test_a_mount_is_allowed_by_where_it_leads(tmp_path: Path) -> None:
    """A link inside an allowed directory does not lead out of what is allowed."""
    (tmp_path / "ok/sub").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "ok/l").symlink_to("/secret")
    paths = HostPaths(HostFiles(str(tmp_path)), Policy(("/ok/*",), enforced=True))
    assert paths.problem(mount("/ok/sub")) is None
    assert "--allow-path '/secret'" in (paths.problem(mount("/ok/l")) or "")


def test_a_policy_that_is_not_enforced_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    files = HostFiles(str(tmp_path))
    assert HostPaths(files, Policy()).problem(mount("/etc")) is None
    refusal = HostPaths(files, Policy(enforced=True)).problem(mount("/etc"))
    assert refusal == "mounts of /etc need --allow-path '/etc'"
