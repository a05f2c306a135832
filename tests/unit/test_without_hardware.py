"""A process whose file names no hardware has no socket for it."""

import contextlib
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon

NAME = "example.com/a"


def netlink_sockets(pid: int) -> int:
    """Return how many descriptors of a process are sockets for the kernel's events of devices."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/netlink").read_text().splitlines()]
    kind, inode = rows[0].index("Eth"), rows[0].index("Inode")
    links = {f"socket:[{row[inode]}]" for row in rows[1:] if row[kind] == "15"}
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            count += str(descriptor.readlink()) in links
    return count


@pytest.mark.parametrize(
    ("source", "devices", "needed"),
    [
        ("static: 1", 1, False),
        ("directory: {directory}/colas", 1, False),
        ("sysfs: {{subsystem: mem, name: no-such-device}}", 0, True),
    ],
)
async def test_process_has_a_netlink_socket_only_for_hardware(
    directory: Path,
    daemon: Daemon,
    standin: SimulatedKubelet,
    source: str,
    devices: int,
    needed: bool,
) -> None:
    (directory / "colas" / "0").touch()
    chosen = source.format(directory=directory)
    await daemon.start(f"version: v1\nresources: [{{name: {NAME}, sources: [{{{chosen}}}]}}]\n")
    await standin.wait(NAME, devices, devices)
    assert netlink_sockets(daemon.pid) == int(needed)
