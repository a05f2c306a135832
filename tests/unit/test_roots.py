"""Whether events tell all that may change what was found."""

import os
from pathlib import Path

import pytest

from devhost.discovery.host_files import HostFiles
from devhost.discovery.roots import told_by_events
from devhost.discovery.scan import Scanner
from devhost.loading.loader import load_bytes
from devhost.model.device import Snapshot
from devhost.trust import Policy


def told(tmp_path: Path, resource: str, root: str = "/") -> bool:
    raw = f"version: v1\nresources: [{{name: a.b/c, {resource.replace('DIR', str(tmp_path))}}}]"
    config = load_bytes(raw.encode(), "c.yaml").config
    assert config is not None, load_bytes(raw.encode(), "c.yaml").problems
    policy = Policy((), allow_exec=False, enforced=False)
    scanner = Scanner.of(config.resources[0], HostFiles(root), policy, "node", hold_s=0.0)
    found = scanner.survey()
    snapshot = scanner.snapshot(found, Snapshot(), lambda _: None, 1.0)
    assert snapshot.devices
    return told_by_events(scanner, found, snapshot)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_who_uses_a_block_device_is_not_told(tmp_path: Path) -> None:
    os.mknod(tmp_path / "a", 0o060600, os.makedev(7, 77))
    assert not told(tmp_path, "sources: [directory: {path: DIR, types: [block]}]")
