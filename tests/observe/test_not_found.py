"""Why a resource has no devices: in `plan`, `status`, on the status page and in the log."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from tests.support.asking import asked, status, status_port_of
from tests.support.daemon import PATIENCE, Daemon
from tests.support.hardware import HostTree
from tests.support.hosting import Kubelet
from tests.support.root import needs_root

HARDWARE: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 0403:6001 bus=1 dev=5 manufacturer=FTDI product="FT232R USB UART" serial=AH06W0EQ
      if 1-1:1.0 ffffff ftdi_sio
        usb-serial ttyUSB0 driver=ftdi_sio port_number=0
          tty ttyUSB0 188:0
    usb 1-2 10c4:ea60 bus=1 dev=6 product="CP2102N USB to UART Bridge Controller" serial=aa11
      if 1-2:1.0 ff0000
    usb 1-3 1a86:7523 bus=1 dev=7 product="USB Serial" authorized=0
pci 0000:01:00.0 8086:1521 class=020000 driver=igb group=7
dir virtual
  input input5
  input input6
link serial/by-id/usb-ITead_Sonoff_Zigbee_3.0_USB_Dongle_Plus_cc32-if00-port0 ttyUSB0
"""
DONGLE: Final = "usb-ITead_Sonoff_Zigbee_3.0_USB_Dongle_Plus_cc32-if00-port0"

# What is written, and what is said of it.
TRIALS: Final = (
    ("directory: /dev/seriall/by-id", "did you mean /dev/serial?"),
    ("directory: /acme", "directory /acme: there is nothing to select"),
    ("directory: {path: /dev/serial/by-id, include: [Sonoff]}", "not included"),
    ("directory: {path: /dev/serial/by-id, exclude: ['*']}", "excluded"),
    ("/dev/ttyUBS*", "none of 44 is glob /dev/ttyUBS*; did you mean /dev/ttyUSB0?"),
    ("/dev/TTYUSB*", "did you mean /dev/ttyUSB0? (upper and lower case count)"),
    ("/dev/ttyUSBO", "did you mean /dev/ttyUSB0?"),
    ("glob: '/dev/serial/by-id/usb-Sonoff*'", f"none of 1 is glob /dev/serial/by-id/usb-Sonoff*: /dev/serial/by-id/{DONGLE}"),
    ("glob: '/dev/serial/byid/*'", "did you mean /dev/serial/by-id?"),
    ("/dev/input/mouse*", "is glob /dev/input/mouse*: /dev/input/event5, /dev/input/mice"),
    ("glob: '/dev/*/by-idd/*'", "glob /dev/*/by-idd/*: there is nothing to select"),
    ("glob: '/dev/ttyUSB[!0-9]'", "did you mean /dev/ttyUSB0?"),
    ("dev: ttyUSB", "nearest: /dev/ttyUSB0 (the pattern matches only a part of it)"),
    ("dev: ttyUSB*", "nearest: /dev/ttyUSB0 (the pattern matches only a part of it)"),
    ("dev: 'ttyUBS[0-9]+'", "did you mean /dev/ttyUSB0?"),
    ("dev: '{ttyUSB,ttyACM}[0-9]'", "none of 54 is dev {ttyUSB,ttyACM}[0-9]"),
    ("static: 0", "static count 0: there is nothing to select"),
    ("usb: 0403:6010", "none of 3 is usb 0403:6010; did you mean 0403:6001 (1-1)?"),
    ("usb: {product: 'ft232*'}", "did you mean FT232R USB UART (1-1)? (upper and lower case count)"),
    ("usb: {serial: AH06WOEQ}", "did you mean AH06W0EQ (1-1)?"),
    ("usb: {class: video, driver: ftdi_sio}", "nearest: 1-1 (class is ffffff)"),
    ("usb: {class: vendor, product: 'USB Serial'}", "nearest: 1-3 (it is not authorized (its `authorized` is 0))"),
    ("usb: {device: 10c4:ea60, node: tty}", "no tty node: no driver is bound to 1-2:1.0 (ff0000)"),
    ("usb: {device: 1a86:7523, node: tty}", "no tty node: it is not authorized"),
    ("usb: {device: 0403:6001, node: hidraw}", "no hidraw node: its driver is ftdi_sio"),
    ("usb: {device: 0403:6001, node: tty/ttyACM*}", "none is named ttyACM* (there is ttyUSB0)"),
    ("pci: {device: 8086:1512, node: vfio}", "did you mean 8086:1521 (0000:01:00.0)?"),
    ("pci: {device: 8086:1521, node: vfio}", "group 7 holds 0000:01:00.0 (driver igb): bind all of it to vfio-pci"),
    ("pci: {device: 8086:1521, node: drm}", "no drm node: its driver is igb"),
    ("pci: {class: nvme, node: block}", "none of 2 is pci class nvme, node block: 0000:00:14.0, 0000:01:00.0"),
    ("sysfs: ttyy", "this kernel has no subsystem ttyy; did you mean 'tty'?"),
    ("sysfs: {subsystem: tty, name: ttyUBS*}", "did you mean ttyUSB0?"),
    ("sysfs: input", "input5 and input6 have no node below /dev"),
)  # fmt: skip

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    one = HostTree(tmp_path / "host")
    one.hardware(HARDWARE)
    one.directory("/acme")
    one.char("/dev/input/event5", 13, 69)
    one.char("/dev/input/mice", 13, 63)
    for number in range(40):
        one.char(f"/dev/tty{number}", 4, number)
    return one


def name_of(index: int) -> str:
    return f"example.com/trial-{index}"


def configuration(*sources: str) -> str:
    entries = (f"  - {{name: {name_of(at)}, sources: [{{{one}}}]}}" for at, one in enumerate(
        f"glob: {source}" if source.startswith("/") else source for source in sources
    ))  # fmt: skip
    return "version: v1\nresources:\n" + "\n".join(entries) + "\n"


@pytest.mark.parametrize(("source", "says"), TRIALS, ids=[source for source, _ in TRIALS])
def test_a_trial(tree: HostTree, source: str, says: str) -> None:
    config = loads(configuration(source)).require()
    policy = Policy(("*",))
    (found,) = report(config, HostFiles(str(tree.root)), policy, "node")
    assert not found.snapshot.devices
    assert says in texts_of(found.as_json())


async def test_all_of_them_in_all_places(daemon: Daemon, started: Kubelet, tree: HostTree) -> None:
    """One process, and the commands as a person runs them."""
    daemon.flags += ["--root", str(tree.root), "--allow-path", "*"]
    await daemon.start(configuration(*(source for source, _ in TRIALS)))
    port = await status_port_of(daemon)
    async with asyncio.timeout(PATIENCE):
        # While the host starts, its status has no resources yet.
        while sum(bool(texts_of(one)) for one in (await status(port))["resources"]) < len(TRIALS):
            await asyncio.sleep(0.05)
    _, text, _ = await asked("--status-listen", f":{port}")
    plan = await planned(daemon, tree)
    shown = {one["name"]: texts_of(one) for one in (await status(port))["resources"]}
    missing = []
    for at, (source, says) in enumerate(TRIALS):
        lines = (line for line in daemon.lines if line.get("resource") == name_of(at))
        places = {
            "plan": part_of(plan, name_of(at)),
            "status": part_of(text, name_of(at)),
            "what the page shows": shown[name_of(at)],
            "log": "\n".join(str(line.get("reason")) for line in lines),
        }
        missing += [(place, source) for place, found in places.items() if says not in found]
    assert not missing


def texts_of(resource: dict[str, Any]) -> str:
    """Return why a resource has no devices, as its status says it."""
    skipped = (one["reason"] for one in resource["skipped"])
    return "\n".join((*resource["warnings"], *skipped, resource["error"] or ""))


def part_of(text: str, name: str) -> str:
    """Return the lines about a resource; not those about what troubles it, which come before."""
    lines = text.splitlines()
    first = max(at for at, line in enumerate(lines) if line.startswith(f"{name}: "))
    rest = lines[first + 1 :]
    end = next((at for at, line in enumerate(rest) if line.startswith("example.com/")), len(rest))
    return "\n".join(rest[:end])


async def planned(daemon: Daemon, tree: HostTree) -> str:
    """Return what `devhost plan` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "devhost", "plan", str(daemon.config)),
        *("--root", str(tree.root), "--allow-path", "*"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    return out.decode()
