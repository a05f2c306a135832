"""A running host and hardware that comes and goes: events, not the rescan, tell of it."""

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.host import rescan
from devhost.host.resource.scans import Scans
from devhost.model.device import Snapshot
from devhost.standin.kubelet import SimulatedKubelet
from devhost.testing import HostTree, can_make_nodes
from devhost.watch import uevents
from tests.support.daemon import until
from tests.support.hosting import Hosting

HERE: Final = Path(__file__).parent
NAME: Final = "example.com/a"
PORT: Final = "pci-0000:00:14.0-usbv2-0:2"
USB: Final = (
    f"version: v1\nresources: [{{name: {NAME}, sources: [usb: {{device: 0403:6001, node: tty}}]}}]"
)
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
LOOP: Final = 77

pytestmark = pytest.mark.skipif(not can_make_nodes(), reason="creating device nodes needs root")


@pytest.fixture(autouse=True)
def no_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescan, "RESCAN_S", 3600.0)


class Kernel:
    """Sends events of a host that is a directory."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair(type=socket.SOCK_DGRAM)
        self.ours.setblocking(False)

    def send(self, action: str, subsystem: str) -> None:
        """Send an event."""
        self._theirs.send(f"{action}@/devices/x\0ACTION={action}\0SUBSYSTEM={subsystem}\0".encode())

    def fileno(self) -> int:
        return self.ours.fileno()

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        return self.ours.recv(size), (0, 1)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    one = Kernel()
    monkeypatch.setattr(uevents, "deafness", lambda: None)
    monkeypatch.setattr(uevents.Uevents.__init__, "__defaults__", (lambda: one,))
    yield one
    one.close()


def unplug(tree: HostTree, name: str, tty: str) -> None:
    """Remove a stick with a tty, links first, as the kernel does."""
    below = next((tree.root / "sys/devices").rglob(name))
    for where in (
        "sys/bus/usb/devices",
        "sys/class/tty",
        "sys/bus/usb-serial/devices",
        "sys/dev/char",
    ):
        for link in (tree.root / where).iterdir():
            if (
                below in (link.parent / link.readlink()).resolve(strict=False).parents
                or link.name == name
            ):
                link.unlink()
    (tree.root / "dev" / tty).unlink()
    shutil.rmtree(below)


async def with_two_sticks(directory: Path, hosting: Hosting, standin: SimulatedKubelet) -> HostTree:
    """Start devhost on a host with two sticks; return the host when both are offered."""
    tree = HostTree(directory / "host")
    tree.hardware((HERE / "trees/ftdi.tree").read_text())
    hosting.start(USB, root=tree.root)
    await standin.wait(NAME, 2, 2)
    return tree


async def test_unplug_and_plug(
    tmp_path: Path, kernel: Kernel, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    tree = await with_two_sticks(tmp_path, hosting, standin)
    unplug(tree, "1-2", "ttyUSB0")
    kernel.send("remove", "tty")
    await standin.wait(NAME, 2, 1)
    assert hosting.reason(NAME, PORT) == "not found any more"
    again = (
        (HERE / "trees/ftdi.tree")
        .read_text()
        .replace("ttyUSB0", "ttyUSB3")
        .replace("188:0", "188:3")
    )
    other = HostTree(tmp_path / "other")
    other.hardware(again)
    shutil.rmtree(tree.root / "sys")
    shutil.copytree(other.root / "sys", tree.root / "sys", symlinks=True)
    tree.char("/dev/ttyUSB3", 188, 3)
    kernel.send("add", "tty")
    await standin.wait(NAME, 2, 2, timeout=60)
    device = hosting.device(NAME, PORT)
    assert device is not None
    assert device.paths == ("/dev/ttyUSB3",)


async def test_an_event_of_another_subsystem_is_no_reason_to_scan(
    tmp_path: Path, kernel: Kernel, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    tree = await with_two_sticks(tmp_path, hosting, standin)
    unplug(tree, "1-2", "ttyUSB0")
    kernel.send("add", "net")
    unplug(tree, "1-1.4", "ttyUSB1")
    kernel.send("remove", "usb")
    await standin.wait(NAME, 2, 0)


MANY: Final = 8
HUB: Final = (
    "pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd\n"
    "  usb usb1 1d6b:0002 class=090001 bus=1 dev=1\n"
    "    usb 1-1 2109:2813 class=090002 bus=1 dev=2\n"
)


def stick(number: int) -> str:
    """Return a stick; the first two are behind a hub."""
    name = f"1-1.{number}" if number < 2 else f"1-{number}"
    indent = " " * (6 if number < 2 else 4)
    lines = (
        f"usb {name} 0403:6001 bus=1 dev={number + 3} serial=S{number}",
        f"  if {name}:1.0 ffffff ftdi_sio",
        f"    usb-serial ttyUSB{number} driver=ftdi_sio port_number=0",
        f"      tty ttyUSB{number} 188:{number}",
    )
    return "".join(f"{indent}{line}\n" for line in lines)


async def test_an_event_has_only_those_scan_whom_it_concerns(
    tmp_path: Path,
    kernel: Kernel,
    hosting: Hosting,
    standin: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned: set[str] = set()
    scan = Scans.full

    async def full(scans: Scans, previous: Snapshot, since: float) -> Snapshot | None:
        scanned.add(scans.scanner.resource.name)
        return await scan(scans, previous, since)

    async def after(action: str, expected: Mapping[int, int]) -> None:
        """Send an event, and wait until so many sticks are there."""
        scanned.clear()
        kernel.send(action, "usb")
        for number, healthy in expected.items():
            await standin.wait(f"a.b/r{number}", 1, healthy)
        assert scanned == {f"a.b/r{number}" for number in expected}
        await until(lambda: all(one.idle for one in hosting.hosts[-1].runners), "at rest")

    tree = HostTree(tmp_path / "host")
    plugged = HUB + "".join(map(stick, range(MANY)))
    tree.hardware(plugged)
    entries = (
        f"{{name: a.b/r{number}, sources: [usb: {{serial: S{number}, node: tty}}]}}"
        for number in range(MANY)
    )
    hosting.start(f"version: v1\nresources: [{', '.join(entries)}]", root=tree.root)
    for number in range(MANY):
        await standin.wait(f"a.b/r{number}", 1, 1)
    await until(lambda: all(one.idle for one in hosting.hosts[-1].runners), "at rest")
    monkeypatch.setattr(Scans, "full", full)

    tree.unplug("1-5")
    await after("remove", {5: 0})
    tree.hardware(plugged)
    await after("add", {5: 1})
    tree.unplug("1-1")  # the hub, with two sticks
    await after("remove", {0: 0, 1: 0})
    tree.hardware(plugged)
    await after("add", {0: 1, 1: 1})
    tree.remove("/dev/ttyUSB6")
    await after("add", {6: 0})  # whatever it is: the node is not there yet
    tree.char("/dev/ttyUSB6", 188, 6)
    await after("bind", {6: 1})
    tree.unplug("ttyUSB7")  # its driver is unbound
    await after("unbind", {7: 0})
    tree.hardware(plugged)
    await after("bind", {7: 1})


@pytest.fixture
def loop() -> Iterator[int]:
    """The control device of loop devices; the one that is used is removed."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no loop devices: {error.strerror}")
    if (reason := uevents.deafness()) is not None:
        pytest.skip(reason)
    yield control
    with contextlib.suppress(OSError):  # the test has removed it
        fcntl.ioctl(control, LOOP_CTL_REMOVE, LOOP)
    os.close(control)


async def test_a_real_device_of_the_kernel(
    loop: int, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    source = f"sysfs: {{subsystem: block, name: loop{LOOP}}}"
    hosting.start(
        f"version: v1\nresources: [{{name: {NAME}, sources: [{{{source}}}]}}]",
        policy=Policy((f"/dev/loop{LOOP}",)),
    )
    for _ in range(3):
        fcntl.ioctl(loop, LOOP_CTL_ADD, LOOP)
        await standin.wait(NAME, 1, 1, timeout=60)
        fcntl.ioctl(loop, LOOP_CTL_REMOVE, LOOP)
        await standin.wait(NAME, 1, 0, timeout=60)
