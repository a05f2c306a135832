"""Hardware that comes, goes and changes, and sysfs as it should not be."""

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.identity import HOLD_S, SWAP_S
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.hardware import HostTree, without
from tests.support.root import needs_root

TREES: Final = Path(__file__).with_name("trees")
FTDI: Final = (TREES / "ftdi.tree").read_text()
GONE: Final = without(FTDI, "1-2")
SERIAL: Final = "usb: {device: 0403:6001, node: tty}"
BY_SERIAL: Final = ', id: "${usb.serial}"'
PORT: Final = "pci-0000:00:14.0-usbv2-0:"
CONTROLLER: Final = (
    "pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd\n"
    "  usb usb1 1d6b:0002 class=090001 bus=1 dev=1\n"
)

pytestmark = needs_root


class Scans:
    """A host that is scanned again and again, each time as another tree."""

    def __init__(self, directory: Path, source: str, more: str = "", hold_s: float = 0.0) -> None:
        text = f"version: v1\nresources: [{{name: example.com/a, sources: [{{{source}}}]{more}}}]"
        (self._resource,) = loads(text).require().resources
        self._directory, self._count = directory, itertools.count()
        self.snapshot = Snapshot()
        self.now, self._hold_s = 0.0, hold_s

    def tree(self, text: str) -> HostTree:
        """Return a host with this hardware."""
        tree = HostTree(self._directory / f"host{next(self._count)}")
        tree.hardware(text)
        return tree

    def scan(self, host: str | HostTree, after: float = 60.0) -> dict[str, str | None]:
        """Return the devices of a host, and why those are unhealthy that are."""
        self.now += after
        tree = self.tree(host) if isinstance(host, str) else host
        files = HostFiles(str(tree.root))
        scanner = Scanner.of(self._resource, files, Policy(), "node", hold_s=self._hold_s)
        found = scanner.select(read_all(scanner.roots, files))
        self.snapshot = scanner.snapshot(found, self.snapshot, lambda _: None, self.now)
        return {one.id: one.reason for one in self.snapshot.devices.values()}

    def paths(self, device_id: str) -> tuple[str, ...]:
        """Return the host paths of a device."""
        return self.snapshot.devices[device_id].paths

    def skipped(self) -> dict[str, str]:
        """Return what is not offered, and why."""
        return {one.candidate: one.reason for one in self.snapshot.skipped}


def stick(port: int, dev: int, tty: int, serial: str = "AH06W0EQ") -> str:
    return (
        f"    usb 1-{port} 0403:6001 bus=1 dev={dev} product=X serial={serial}\n"
        f"      if 1-{port}:1.0 ffffff ftdi_sio\n"
        f"        usb-serial ttyUSB{tty} driver=ftdi_sio port_number=0\n"
        f"          tty ttyUSB{tty} 188:{tty}\n"
    )


ONE: Final = CONTROLLER + stick(1, 2, 0)


# ── unplug and replug ──


def test_usb_stick_replugged_keeps_its_id_and_gets_its_new_node(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, BY_SERIAL)
    host.scan(ONE)
    assert host.scan(CONTROLLER) == {"AH06W0EQ": "not found any more"}
    assert host.scan(CONTROLLER + stick(1, 9, 3)) == {"AH06W0EQ": None}
    assert host.paths("AH06W0EQ") == ("/dev/ttyUSB3",)


def test_usb_stick_replugged_between_two_scans_is_reported_as_replaced(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, BY_SERIAL)
    host.scan(ONE)
    again = CONTROLLER + stick(1, 9, 3)
    assert host.scan(again, after=1) == {"AH06W0EQ": "another device was found in its place"}
    assert host.scan(again, after=SWAP_S) == {"AH06W0EQ": None}


def test_usb_stick_in_another_port_is_the_same_by_serial_and_another_by_port(
    tmp_path: Path,
) -> None:
    by_serial = Scans(tmp_path / "a", SERIAL, BY_SERIAL)
    by_port = Scans(tmp_path / "b", SERIAL)
    for host in (by_serial, by_port):
        host.scan(ONE)
        host.scan(CONTROLLER)
    moved = CONTROLLER + stick(7, 9, 3)
    assert by_serial.scan(moved) == {"AH06W0EQ": None}
    assert by_port.scan(moved) == {f"{PORT}1": "not found any more", f"{PORT}7": None}


def test_device_number_given_to_another_stick_leaves_the_first_missing(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    host.scan(ONE)
    found = host.scan(CONTROLLER + stick(2, 2, 0, "B1B2"), after=1)
    assert found == {f"{PORT}1": "not found any more", f"{PORT}2": None}
    assert not host.snapshot.devices[f"{PORT}1"].replaced
    both = CONTROLLER + stick(2, 2, 0, "B1B2") + stick(1, 3, 1)
    assert host.scan(both)[f"{PORT}1"] is None


def test_twins_with_one_serial_number_are_offered_one_after_the_other(tmp_path: Path) -> None:
    twins = (TREES / "rtl-sdr.tree").read_text()
    host = Scans(tmp_path, "usb: 0bda:2838", BY_SERIAL)
    assert host.scan(twins) == {"00000001": None}
    assert host.skipped() == {
        "/dev/bus/usb/001/010": "its ID 00000001 is that of /dev/bus/usb/001/009"
    }
    changed = host.scan(without(twins, "1-1"))
    assert changed == {"00000001": "another device was found in its place"}


def test_modem_without_its_control_node_is_incomplete(tmp_path: Path) -> None:
    modem = (TREES / "lte-modem.tree").read_text()
    source = "usb: {device: 1199:9091, node: [tty, usbmisc, net]}"
    host = Scans(tmp_path, source)
    name = "pci-0000:00:15.0-usbv3-0:6"
    assert host.scan(modem) == {name: None}
    assert host.scan(without(modem, "cdc-wdm0")) == {name: "incomplete: no usbmisc node"}
    assert "/dev/ttyUSB0" in host.snapshot.devices[name].remaining
    assert host.scan(modem) == {name: None}
    new = Scans(tmp_path / "new", source)
    assert new.scan(without(modem, "cdc-wdm0")) == {}
    assert new.skipped() == {"2-6": "incomplete: no usbmisc node"}


def test_one_of_two_serial_ports_unplugged_is_missing_alone_with_split(tmp_path: Path) -> None:
    ports = CONTROLLER + "    usb 1-1 0403:6010 bus=1 dev=4\n"
    for number in (0, 1):
        ports += f"      if 1-1:1.{number} ffffff ftdi_sio\n"
        ports += f"        usb-serial ttyUSB{number} port_number=0\n"
        ports += f"          tty ttyUSB{number} 188:{number}\n"
    whole = Scans(tmp_path / "whole", "usb: {device: 0403:6010, node: tty}")
    assert whole.scan(ports) == {f"{PORT}1": None}
    assert whole.scan(without(ports, "ttyUSB0"))[f"{PORT}1"] is not None
    each = Scans(tmp_path / "each", "usb: {device: 0403:6010, node: tty, split: true}")
    first, second = f"{PORT}1:1.0-port0", f"{PORT}1:1.1-port0"
    assert each.scan(ports) == {first: None, second: None}
    assert each.scan(without(ports, "ttyUSB0")) == {first: "not found any more", second: None}
    assert each.scan(ports) == {first: None, second: None}


def test_missing_usb_device_says_what_its_sysfs_directory_lacks(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    assert host.scan(ONE)[f"{PORT}1"] is None
    unbound = without(ONE.replace("ffffff ftdi_sio", "ffffff"), "ttyUSB0")
    assert host.scan(unbound)[f"{PORT}1"] == "no tty node: no driver is bound to 1-1:1.0 (ffffff)"
    refused = without(ONE.replace("dev=2", "dev=2 authorized=0"), "1-1:1.0")
    assert host.scan(refused)[f"{PORT}1"] == (
        "no tty node: it is not authorized (its `authorized` is 0)"
    )
    assert host.scan(ONE)[f"{PORT}1"] is None


def test_vfio_group_is_offered_only_while_its_functions_are_bound_and_its_node_is_there(
    tmp_path: Path,
) -> None:
    host = Scans(tmp_path, "pci: {device: 8086:1521, node: vfio}")
    function, name = "pci 0000:00:05.0 8086:1521 class=020000 group=3", "0000:00:05.0"
    node = "dir virtual\n  vfio 3 243:0\n"
    assert host.scan(function) == {}
    assert host.skipped() == {name: "not bound to vfio-pci"}
    bound = f"{function} driver=vfio-pci\n"
    assert host.scan(bound) == {}
    assert host.skipped() == {name: "bound to vfio-pci, but the kernel has no node of group 3"}
    assert host.scan(bound + node) == {name: None}
    assert host.paths(name) == ("/dev/vfio/3",)
    other = "pci 0000:00:05.1 8086:1521 class=020000 group=3 driver=igb\n"
    assert host.scan(bound + other + node) == {
        name: "group 3 holds 0000:00:05.1 (driver igb): bind all of it to vfio-pci"
    }
    assert host.scan(bound + other.replace("igb", "vfio-pci") + node) == {name: None}


# ── nodes that come one after the other ──


CAMERA: Final = (TREES / "webcam.tree").read_text()
CAMERA_NODES: Final = ("media0", "video0", "video1", "media1", "video2", "video3")
CAMERA_SOURCE: Final = "usb: {class: video, node: [video4linux, media]}"
CAMERA_ID: Final = f"{PORT}5"


@pytest.mark.parametrize("seed", range(2))
def test_camera_hotplug_is_never_offered_with_fewer_nodes_than_will_come(
    tmp_path: Path, seed: int
) -> None:
    host = Scans(tmp_path, CAMERA_SOURCE, hold_s=HOLD_S)
    missing = list(CAMERA_NODES)
    host.scan(without(CAMERA, "1-5"))
    random.Random(seed).shuffle(missing)
    while missing:
        assert host.scan(without(CAMERA, *missing), after=0.1) == {}
        missing.pop()
    assert host.scan(CAMERA, after=0.1) == {}
    assert host.snapshot.again_at is not None
    assert host.snapshot.again_at <= host.now + HOLD_S
    assert host.scan(CAMERA, after=HOLD_S) == {CAMERA_ID: None}
    assert len(host.paths(CAMERA_ID)) == len(CAMERA_NODES)
    assert host.scan(CAMERA, after=0.1) == {CAMERA_ID: None}


def test_camera_replugged_is_missing_until_it_is_whole(tmp_path: Path) -> None:
    host = Scans(tmp_path, CAMERA_SOURCE, hold_s=HOLD_S)
    assert host.scan(CAMERA) == {CAMERA_ID: None}
    assert host.scan(without(CAMERA, "1-5")) == {CAMERA_ID: "not found any more"}
    half = without(CAMERA, "video2", "video3")
    assert "more nodes of it may come" in str(host.scan(half, after=1)[CAMERA_ID])
    assert not host.snapshot.devices[CAMERA_ID].replaced
    host.scan(CAMERA, after=0.1)
    assert host.scan(CAMERA, after=HOLD_S) == {CAMERA_ID: None}
    assert len(host.paths(CAMERA_ID)) == len(CAMERA_NODES)


def test_camera_with_a_flapping_node_is_offered_in_the_end(tmp_path: Path) -> None:
    host = Scans(tmp_path, CAMERA_SOURCE, hold_s=HOLD_S)
    host.scan(without(CAMERA, "1-5"))
    for turn in range(10):
        host.scan(without(CAMERA, "video3") if turn % 2 else CAMERA, after=0.1)
    assert host.scan(CAMERA, after=0.1) == {CAMERA_ID: None}


def test_usb_stick_with_one_interface_is_offered_at_once(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, hold_s=HOLD_S)
    host.scan(GONE)
    assert host.scan(FTDI)[f"{PORT}2"] is None


def test_usb_stick_whose_template_names_its_symlink_waits_for_udev(tmp_path: Path) -> None:
    link = "link serial/by-id/usb-FTDI_FT232R_USB_UART_AH06W0EQ-if00-port0 ttyUSB0\n"
    without_link = FTDI.replace(link, "")
    assert without_link != FTDI
    more = ', allocate: {devices: ["${byId}"]}'
    host = Scans(tmp_path / "a", SERIAL, more, hold_s=HOLD_S)
    host.scan(GONE)
    assert f"{PORT}2" not in host.scan(without_link, after=0.1)
    assert host.scan(FTDI, after=0.1)[f"{PORT}2"] is None
    never = Scans(tmp_path / "b", SERIAL, more, hold_s=HOLD_S)
    never.scan(GONE)
    never.scan(without_link, after=0.1)
    changed = never.scan(without_link, after=HOLD_S)
    assert changed[f"{PORT}2"] == "no link below /dev/*/by-id leads to it"


def test_uevents_of_subsystems_that_parents_name_are_heard() -> None:
    text = (
        "version: v1\nresources: [{name: example.com/a, sources: [sysfs: {subsystem: tty, "
        "parent: {subsystem: usb, driver: ftdi_sio}, exclude: {parent: {subsystem: pci}}}]}]"
    )
    (resource,) = loads(text).require().resources
    scanner = Scanner.of(resource, HostFiles("/"), Policy(), "node", hold_s=0.0)
    heard = frozenset().union(*(root.subsystems for root in scanner.roots))
    assert heard == {"tty", "usb", "pci"}


# ── files and links that are broken ──


@pytest.mark.parametrize(
    ("raw", "device"),
    [
        (b"a/b c\n", "a/b c"),
        (b"../..\n", "../.."),
        (b"${usb.port}\n", "${usb.port}"),
        ("Ünï®\n".encode(), "Ünï®"),
        (b"L" * 200, f"{'L' * 52}-0e80123cc7"),
        (b"x::y\n", None),
        (b" \n", None),
        (b"a\0b\n", None),
        (b"a\nb\n", None),
        (b"\xff\n", None),
        ("\u202e\n".encode(), None),
    ],
)
def test_serial_number_that_is_no_id_is_skipped_and_the_port_is_not(
    tmp_path: Path, raw: bytes, device: str | None
) -> None:
    for more, expected in ((BY_SERIAL, device), ("", f"{PORT}1")):
        host = Scans(tmp_path / f"by-{bool(more)}", SERIAL, more)
        tree = host.tree(ONE)
        next((tree.root / "sys/devices").rglob("serial")).write_bytes(raw)
        assert host.scan(tree) == ({} if expected is None else {expected: None})
        assert bool(host.skipped()) == (expected is None)


@pytest.mark.parametrize(
    ("content", "matched"),
    [(b"\xff\xfe\n", False), (b"a\x01\nb\n", False), (b"x" * 4097, False), (b"x" * 4095, True)],
)
def test_attribute_that_is_no_short_text_is_not_matched(
    tmp_path: Path, content: bytes, matched: bool
) -> None:
    host = Scans(tmp_path, "sysfs: {subsystem: hwmon, attr: {label: '*'}, uevent: {OF_NAME: gpio}}")
    tree = host.tree("hwmon hwmon0 200:0 label=x\n")
    (tree.root / "sys/devices/hwmon0/label").write_bytes(content)
    with (tree.root / "sys/devices/hwmon0/uevent").open("ab") as file:
        file.write(b"HID_NAME=\xff\nOF_NAME=gpio\n")
    assert host.scan(tree) == ({"hwmon0": None} if matched else {})


def to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def each(pattern: str, text: str) -> Callable[[HostTree, Path], None]:
    def change(_tree: HostTree, device: Path) -> None:
        (path,) = device.glob(pattern)
        path.write_text(text)

    return change


TTY: Final = "1-1:1.0/ttyUSB0/tty/ttyUSB0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _, at: (at / "product").chmod(0), None),
        (lambda _, at: (at / "idVendor").chmod(0), "absent"),
        (lambda _, at: to_itself(at / "subsystem"), "absent"),
        (lambda _, at: to_itself(at / "1-1:1.0/driver"), None),
        (lambda tree, _: to_itself(tree.root / "sys/bus/usb/devices/1-1"), "absent"),
        (lambda tree, _: to_itself(tree.root / "sys/class/tty/ttyUSB0"), "absent"),
        (lambda tree, _: shutil.rmtree(tree.root / "sys/class/tty"), "absent"),
        (lambda tree, _: (tree.root / "dev/ttyUSB0").unlink(), "/dev/ttyUSB0 is not there, but the kernel has it"),
        (lambda tree, _: to_itself(tree.root / "dev/ttyUSB0"), "is not there, but"),
        (each(f"{TTY}/dev", "188:1\n"), "/dev/ttyUSB0 is 188:0, the kernel's is 188:1"),
        (each(f"{TTY}/dev", "x:y\n"), "absent"),
        (each(f"{TTY}/dev", "-1:0\n"), "the kernel's is -1:0"),
        (each(f"{TTY}/uevent", "MAJOR=188\nMINOR=0\nDEVNAME=../../etc/passwd\n"), "absent"),
        (each(f"{TTY}/uevent", "MAJOR=188\nMINOR=0\nDEVNAME=/etc/passwd\n"), "absent"),
        (each(f"{TTY}/uevent", "MAJOR=188\nMINOR=0\nDEVNAME=\n"), "absent"),
        (each(f"{TTY}/uevent", "DEVNAME=a\nDEVNAME=ttyUSB0\n"), "absent"),
        (each("busnum", "NaN\n"), None),
        (each("1-1:1.0/bInterfaceNumber", "٣\n"), None),
        (each("1-1:1.0/ttyUSB0/port_number", "../x\n"), None),
    ],
)  # fmt: skip
def test_broken_sysfs_file_or_symlink_loop_never_gives_a_device_another_id(
    tmp_path: Path, change: Callable[[HostTree, Path], None], reason: str | None
) -> None:
    """The device is whole, unhealthy or not there."""
    host = Scans(tmp_path, SERIAL)
    tree = host.tree(ONE)
    change(tree, next((tree.root / "sys/devices").rglob("1-1")))
    found = host.scan(tree)
    if reason == "absent":
        assert found == {}
    else:
        assert list(found) == [f"{PORT}1"]
        assert (reason or "None") in str(found[f"{PORT}1"])


def test_sysfs_files_that_vanish_while_they_are_read_raise_nothing(tmp_path: Path) -> None:
    """Without any one file, a device is whole or not there, and the other one is as it was."""
    tree = Scans(tmp_path, SERIAL).tree(FTDI)
    below = tree.root / "sys/devices/pci0000:00/0000:00:14.0/usb1/1-2"
    for path in sorted(below.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        path.rename(aside := tmp_path / "aside")
        found = Scans(tmp_path, SERIAL).scan(tree)
        aside.rename(path)
        assert f"{PORT}1.4" in found, path
        assert set(found.values()) == {None}, path


def test_sysfs_bus_that_is_a_symlink_loop_is_an_error(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    tree = host.tree(ONE)
    shutil.rmtree(tree.root / "sys/bus")
    (tree.root / "sys/bus").symlink_to("bus")
    assert host.scan(tree) == {}
    assert "symbolic links" in str(host.snapshot.error)
