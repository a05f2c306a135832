"""Whether events tell all that may change what was found."""

import os
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.roots import is_silent
from devhost.discovery.scan import Scanner, events_suffice
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import load_bytes
from devhost.model.device import Snapshot
from tests.support.scanning import selected


def scanner_of(resource: str, root: str = "/") -> Scanner:
    raw = f"version: v1\nresources: [{{name: a.b/c, {resource}}}]"
    config = load_bytes(raw.encode(), "c.yaml").config
    assert config is not None, load_bytes(raw.encode(), "c.yaml").problems
    policy = Policy((), allow_exec=False, enforced=False)
    return Scanner.of(config.resources[0], HostFiles(root), policy, "node", hold_s=0.0)


def told(tmp_path: Path, resource: str, root: str = "/") -> bool:
    scanner = scanner_of(resource.replace("DIR", str(tmp_path)), root)
    found = selected(scanner)
    snapshot = scanner.snapshot(found, Snapshot(), lambda _: None, 1.0)
    assert snapshot.devices
    return events_suffice(scanner, found, snapshot)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("sources: [directory: DIR]", True),
        ("sources: [glob: DIR/*]", True),
        ("sources: [static: 3]", True),
        ('sources: [directory: DIR], allocate: {env: {A: "${id}"}}', True),
        ('sources: [directory: DIR], allocate: {mounts: [{hostPath: "${path}"}]}', True),
        ("sources: [directory: DIR], allocate: {mounts: [{hostPath: /usr}]}", False),
        ("sources: [directory: DIR], allocate: {devices: [{hostPath: /dev/null}]}", False),
        ("sources: [directory: DIR], inject: cdi", False),
        ("sources: [{directory: {path: /proc/self, types: [file]}}]", False),
    ],
)
def test_what_events_tell(tmp_path: Path, resource: str, expected: bool) -> None:
    (tmp_path / "a").touch()
    assert told(tmp_path, resource) is expected


@pytest.mark.parametrize("target", ["a", "nowhere"])
def test_where_a_link_leads_is_not_told(tmp_path: Path, target: str) -> None:
    (tmp_path / "a").touch()
    assert told(tmp_path, "sources: [directory: DIR]")
    (tmp_path / "link").symlink_to(target)
    assert not told(tmp_path, "sources: [directory: DIR]")


@pytest.mark.parametrize("source", ["directory: DIR/current", "glob: DIR/current/t/*"])
def test_where_a_link_on_the_way_leads_is_not_told(tmp_path: Path, source: str) -> None:
    """Nothing is watched where the link is, and what is watched is where it led."""
    (tmp_path / "v1" / "t").mkdir(parents=True)
    (tmp_path / "v1" / "a").touch()
    (tmp_path / "v1" / "t" / "a").touch()
    assert told(tmp_path, f"sources: [{source.replace('current', 'v1')}]")
    (tmp_path / "current").symlink_to("v1")
    assert not told(tmp_path, f"sources: [{source}]")


def test_what_is_behind_links_between_wildcards_is_not_told(tmp_path: Path) -> None:
    """Nothing is behind this one, but may be: it is not watched."""
    (tmp_path / "data" / "x").mkdir(parents=True)
    (tmp_path / "data" / "x" / "port").touch()
    (tmp_path / "data" / "y").symlink_to("/")
    assert not told(tmp_path, "sources: ['DIR/data/*/port']")


def test_the_type_of_what_is_behind_a_link_is_not_told(tmp_path: Path) -> None:
    """It leads to a directory, which is skipped, but may be replaced by a file."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "a").touch()
    assert told(tmp_path, "sources: [directory: DIR/data]")
    (tmp_path / "data" / "link").symlink_to("/")
    assert not told(tmp_path, "sources: [directory: DIR/data]")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys", True),
        ("/sys/class", True),
        ("/proc/self", True),
        ("/sysroot", False),
        ("/system/dev", False),
        ("/processes", False),
        ("/", False),
    ],
)
def test_where_the_kernel_tells_nothing(path: str, expected: bool) -> None:
    assert is_silent(path) is expected


def test_a_name_that_begins_like_one_of_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "sysroot").mkdir()
    (tmp_path / "sysroot" / "a").touch()
    assert told(tmp_path, "sources: [directory: /sysroot]", root=str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_who_uses_a_block_device_is_not_told(tmp_path: Path) -> None:
    os.mknod(tmp_path / "a", 0o060600, os.makedev(7, 77))
    assert not told(tmp_path, "sources: [directory: {path: DIR, types: [block]}]")
