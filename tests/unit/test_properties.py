"""Rules for all hardware: only present devices are found, IDs stay, no node is offered twice."""

import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.model.device import HostDevice
from tests.support.hardware import HostTree
from tests.support.memory import IN_MEMORY
from tests.support.root import needs_root

Devices = dict[str, dict[str, tuple[str, ...]]]

pytestmark = needs_root

NUMBERS: Final = ("0403:6001", "10c4:ea60", "1199:9091")
KINDS: Final = ("tty", "hidraw", "video4linux")
STEMS: Final = {"tty": "ttyUSB", "hidraw": "hidraw", "video4linux": "video"}
MAJORS: Final = {"tty": 188, "hidraw": 240, "video4linux": 81}
SOURCES: Final = (
    "usb: {device: 0403:6001, node: tty}",
    "usb: 0403:6001",
    "usb: {device: '*:*', node: [{subsystem: tty, optional: true}, {subsystem: hidraw}]}",
    "usb: {device: '*:ea60', node: tty, split: true}",
    "usb: {driver: uvc*, node: video4linux}",
    "usb: {device: 1199:9091, node: [tty, {subsystem: video4linux, optional: true}, usb]}",
    "sysfs: tty",
    "sysfs: {subsystem: hidraw, parent: {subsystem: usb, attr: {idVendor: '10c4'}}}",
    "/dev/ttyUSB*",
    "dev: '(hidraw|video)[0-9]+'",
)
SHARED: Final = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Stick:
    """A USB device: its port, its number, and the subsystems of its interfaces' nodes."""

    def __init__(self, port: int, number: str, interfaces: Sequence[Sequence[str]]) -> None:
        self.port, self.number, self.interfaces = port, number, interfaces

    def lines(self, bus: int, devnum: int, counts: "Counter[str]") -> str:
        name = f"{bus}-{self.port}"
        text = f"    usb {name} {self.number} bus={bus} dev={devnum}\n"
        for index, nodes in enumerate(self.interfaces):
            driver = "uvcvideo" if "video4linux" in nodes else "ftdi_sio" if nodes else ""
            text += f"      if {name}:1.{index} ff0000 {driver}\n"
            for kind in nodes:
                counts[kind] += 1
                count = counts[kind]
                text += f"        {kind} {STEMS[kind]}{count} {MAJORS[kind]}:{count}\n"
        return text

    def __repr__(self) -> str:
        return f"Stick({self.port}, {self.number}, {self.interfaces})"


def hardware(sticks: Sequence[Stick], bus: int = 1, first: int = 2) -> str:
    """Return the hardware of a host, its sticks plugged in one after the other."""
    counts: Counter[str] = Counter()
    below = "".join(stick.lines(bus, first + at, counts) for at, stick in enumerate(sticks))
    return (
        "pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd\n"
        f"  usb usb{bus} 1d6b:0002 class=090001 bus={bus} dev=1\n{below}"
    )


STICKS: Final = st.lists(
    st.builds(
        Stick,
        st.integers(1, 12),
        st.sampled_from(NUMBERS),
        st.lists(st.lists(st.sampled_from(KINDS), max_size=2), max_size=3),
    ),
    max_size=5,
    unique_by=lambda stick: stick.port,
)
CONFIGS: Final = st.lists(st.sampled_from(SOURCES), min_size=1, max_size=4)
BY_PLACE: Final = st.lists(  # whose IDs are places
    st.sampled_from([text for text in SOURCES if text.startswith("usb")]), min_size=1, max_size=3
)


def devices(text: str, sources: Sequence[str]) -> tuple[list[HostDevice], Devices]:
    """Return all devices, and by resource and ID the roles and places of their nodes."""
    entries = [
        f"- {{name: example.com/r{at}, sources: [{{{'glob: ' if source[0] == '/' else ''}{source}}}]}}"
        for at, source in enumerate(sources)
    ]
    config = loads("version: v1\nresources:\n" + "\n".join(entries)).require()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        tree = HostTree(Path(directory) / "host")
        tree.directory("/dev")
        tree.hardware(text)
        planned = report(config, HostFiles(str(tree.root)), Policy(("*",)), "node")
    offered = [device for resource in planned for device in resource.snapshot.devices.values()]
    return offered, {
        resource.resource.name: {
            device.id: tuple(
                f"{node.hardware.role} {node.variables.get('usb.interface')}"
                for node in device.nodes
                if node.hardware is not None
            )
            for device in resource.snapshot.devices.values()
        }
        for resource in planned
    }


@given(STICKS, CONFIGS)
@SHARED
def test_hardware_node_is_offered_once(sticks: list[Stick], sources: list[str]) -> None:
    offered, _ = devices(hardware(sticks), sources)
    for device, peer in itertools.combinations(offered, 2):
        keys = {node.key for node in device.nodes}
        assert keys.isdisjoint(key for node in peer.nodes for key in node.keys)


@given(STICKS, BY_PLACE, st.randoms(use_true_random=False), st.integers(1, 3))
@SHARED
def test_hardware_found_is_there(
    sticks: list[Stick], sources: list[str], random: Random, bus: int
) -> None:
    shuffled = sorted(sticks, key=lambda _: random.random())
    _, before = devices(hardware(sticks), sources)
    _, again = devices(hardware(shuffled, bus, 40), sources)
    assert before == again


@given(STICKS, BY_PLACE, st.sampled_from(NUMBERS))
@SHARED
def test_hardware_added_changes_no_other(
    sticks: list[Stick], sources: list[str], number: str
) -> None:
    _, before = devices(hardware(sticks), sources)
    added = [Stick(15, number, [["tty"], ["hidraw"]]), *sticks]
    _, then = devices(hardware(added), sources)
    for resource, ids in before.items():
        assert ids.items() <= then[resource].items()
