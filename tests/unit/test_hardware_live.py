"""A running host and hardware that comes and goes: events, not the rescan, tell of it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.hardware import HostTree, Kernel
from tests.support.hosting import Hosting
from tests.support.root import needs_root

FTDI: Final = Path(__file__).with_name("trees").joinpath("ftdi.tree").read_text()
NAME: Final = "example.com/a"
PORT: Final = "pci-0000:00:14.0-usbv2-0:2"
USB: Final = (
    f"version: v1\nresources: [{{name: {NAME}, sources: [usb: {{device: 0403:6001, node: tty}}]}}]"
)
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
LOOP: Final = 77

pytestmark = needs_root


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    watched = Kernel(monkeypatch)
    yield watched
    watched.close()


async def with_two_sticks(directory: Path, hosting: Hosting, standin: SimulatedKubelet) -> HostTree:
    """Start devhost on a host with two sticks; return the host when both are offered."""
    tree = HostTree(directory / "host")
    tree.hardware(FTDI)
    hosting.start(USB, root=tree.root)
    await standin.wait(NAME, 2, 2)
    return tree


async def test_replugged_stick(
    tmp_path: Path, kernel: Kernel, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    tree = await with_two_sticks(tmp_path, hosting, standin)
    tree.unplug("1-2")
    kernel.send("remove", "tty")
    await standin.wait(NAME, 2, 1)
    assert hosting.reason(NAME, PORT) == "not found any more"
    tree.hardware(FTDI.replace("ttyUSB0", "ttyUSB3").replace("188:0", "188:3"))
    kernel.send("add", "tty")
    await standin.wait(NAME, 2, 2, timeout=60)
    device = hosting.device(NAME, PORT)
    assert device is not None
    assert device.paths == ("/dev/ttyUSB3",)


@pytest.fixture
def loop() -> Iterator[int]:
    """The control device of loop devices; the one that is used is removed."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no loop devices: {error.strerror}")
    if not os.access("/sys/class/mem/null/uevent", os.W_OK):
        pytest.skip("sysfs is read-only, or a user namespace gets no events")
    yield control
    with contextlib.suppress(OSError):  # the test has removed it
        fcntl.ioctl(control, LOOP_CTL_REMOVE, LOOP)
    os.close(control)


async def test_loop_device_is_listed(
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
