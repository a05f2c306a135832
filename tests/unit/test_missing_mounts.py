"""Mounts whose host path is missing: in the dry run, from code, and in CDI specs; the rest is in scans/mounts.txt."""

from pathlib import Path

import pytest

from devhost.allocation.cdi import cdi_devices
from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model.allocation import Allocation, MountSpec
from devhost.model.config import Config
from devhost.model.device import Snapshot
from tests.support.mounts import tmpfs
from tests.support.scanning import selected, snapshot_of

REQUIRED = "mounts: [/opt/driver]"
OPTIONAL = "mounts: [{hostPath: /opt/driver, optional: true}]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a parent directory of what is to be mounted."""
    (tmp_path / "host/opt").mkdir(parents=True)
    return tmp_path / "host"


def config(allocate: str) -> Config:
    resource = f"{{name: example.com/token, sources: [static: [a]], allocate: {{{allocate}}}}}"
    return loads(f"version: v1\nresources: [{resource}]").require()


POLICY = Policy(("/opt/*",), enforced=True)


def scan(root: Path, allocate: str, policy: Policy = POLICY) -> tuple[Scanner, Snapshot]:
    (resource,) = config(allocate).resources
    scanner = Scanner(resource, HostFiles(str(root)), policy, "node", settle_s=0.0)
    return scanner, snapshot_of(scanner, selected(scanner), Snapshot(), lambda _key: None, 0.0)


def test_mount_that_is_not_visible_is_refused(root: Path) -> None:
    """As in the chart's container: only some directories of the host are mounted below the root.

    The policy could only compare texts: a link that the process cannot see may lead anywhere.
    """
    (root / "dev").mkdir()
    with tmpfs(root / "dev"):
        scanner, snapshot = scan(root, REQUIRED)
        with pytest.raises(AllocationError, match="not visible"):
            scanner.checked(Allocation(mounts=(MountSpec("/opt/driver", "/x", read_only=True),)))
        assert cdi_devices(scanner, snapshot, {}) == {}


def test_mount_optional_that_is_missing_is_left_out_of_the_cdi_spec(root: Path) -> None:
    """As an answer does; a device whose required mount is missing is not in it."""
    for allocate, expected in (
        (f"{OPTIONAL}, env: {{A: b}}", {"a": {"env": ["A=b"]}}),
        (REQUIRED, {}),
    ):
        assert cdi_devices(*scan(root, allocate), {}) == expected
