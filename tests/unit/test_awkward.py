"""Hardware as it should not be: odd texts, broken links, numbers that come again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.unit.scans import FTDI, SERIAL, Scans, without

CONTROLLER: Final = (
    "pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd\n"
    "  usb usb1 1d6b:0002 class=090001 bus=1 dev=1\n"
)
BY_SERIAL: Final = ', id: "${usb.serial}"'
PORT: Final = "pci-0000:00:14.0-usbv2-0:"

pytestmark = needs_root


def stick(port: int, tty: int, serial: str = "A1B2") -> str:
    return (
        f"    usb 1-{port} 0403:6001 bus=1 dev={2 + tty} product=X serial={serial}\n"
        f"      if 1-{port}:1.0 ffffff ftdi_sio\n"
        f"        usb-serial ttyUSB{tty} driver=ftdi_sio port_number=0\n"
        f"          tty ttyUSB{tty} 188:{tty}\n"
    )


ONE: Final = CONTROLLER + stick(1, 0)


def test_a_hub_goes_with_what_is_behind_it(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    assert host.scan(FTDI) == {f"{PORT}1.4": None, f"{PORT}2": None}
    assert host.scan(without(FTDI, "1-1")) == {f"{PORT}1.4": "not found any more", f"{PORT}2": None}
    assert host.scan(FTDI) == {f"{PORT}1.4": None, f"{PORT}2": None}


@pytest.mark.parametrize(
    ("raw", "device"),
    [
        (b"a/b c\n", "a/b c"),
        (b"../..\n", "../.."),
        (b"${usb.port}\n", "${usb.port}"),
        ("Ünï®\n".encode(), "Ünï®"),
        (b"L" * 200, f"{'L' * 52}-0e80123cc7"),
        (b"x::y\n", None),
        (b"", None),
        (b" \n", None),
        (b"a\0b\n", None),
        (b"a\nb\n", None),
        (b"\xff\n", None),
        ("\u202e\n".encode(), None),
    ],
)
def test_serial_numbers(tmp_path: Path, raw: bytes, device: str | None) -> None:
    """Those that are no IDs are skipped, and by its port each device is offered."""
    for more, expected in ((BY_SERIAL, device), ("", f"{PORT}1")):
        host = Scans(tmp_path / f"by-{bool(more)}", SERIAL, more)
        tree = host.tree(ONE)
        next((tree.root / "sys/devices").rglob("serial")).write_bytes(raw)
        assert host.scan_tree(tree) == ({} if expected is None else {expected: None})
        assert bool(host.skipped()) == (expected is None)


def test_a_number_that_comes_again_is_another_device(tmp_path: Path) -> None:
    """The stick that was unplugged is missing, though its path and number are another one's."""
    host = Scans(tmp_path, SERIAL)
    host.scan(ONE)
    found = host.scan(CONTROLLER + stick(2, 0, "B1B2"), after=1)
    assert found == {f"{PORT}1": "not found any more", f"{PORT}2": None}
    assert not host.snapshot.devices[f"{PORT}1"].replaced
    assert host.scan(CONTROLLER + stick(2, 0, "B1B2") + stick(1, 1), after=60)[f"{PORT}1"] is None


TWO_PORTS: Final = f"""{CONTROLLER}
    usb 1-1 0403:6010 bus=1 dev=4
      if 1-1:1.0 ffffff ftdi_sio
        usb-serial ttyUSB0 port_number=0
          tty ttyUSB0 188:0
      if 1-1:1.1 ffffff ftdi_sio
        usb-serial ttyUSB1 port_number=0
          tty ttyUSB1 188:1
"""


def test_one_of_two_ports_goes(tmp_path: Path) -> None:
    whole = Scans(tmp_path / "whole", "usb: {device: 0403:6010, node: tty}")
    assert whole.scan(TWO_PORTS) == {f"{PORT}1": None}
    assert whole.scan(without(TWO_PORTS, "ttyUSB0"))[f"{PORT}1"] is not None
    each = Scans(tmp_path / "each", "usb: {device: 0403:6010, node: tty, split: true}")
    first, second = f"{PORT}1:1.0-port0", f"{PORT}1:1.1-port0"
    assert each.scan(TWO_PORTS) == {first: None, second: None}
    assert each.scan(without(TWO_PORTS, "ttyUSB0")) == {first: "not found any more", second: None}
    assert each.scan(TWO_PORTS) == {first: None, second: None}


PF: Final = "pci 0000:3b:00.0 8086:1572 class=020000 driver=i40e numa=0\n  net ens1f0\n"


def virtual(index: int) -> str:
    at, pf = f"/sys/devices/pci0000:3b/0000:3b:02.{index}", "/sys/devices/pci0000:3b/0000:3b:00.0"
    return (
        f"pci 0000:3b:02.{index} 8086:154c class=020000 driver=iavf numa=0\n"
        f"link {at}/physfn {pf}\nlink {pf}/virtfn{index} {at}\n"
    )


def test_virtual_functions_come_and_go(tmp_path: Path) -> None:
    host = Scans(tmp_path, "pci: {pf: ens1f0, node: none}")
    first, second = "0000:3b:02.0", "0000:3b:02.1"
    assert host.scan(PF) == {}
    assert host.scan(PF + virtual(0) + virtual(1)) == {first: None, second: None}
    assert host.scan(PF + virtual(0)) == {first: None, second: "not found any more"}
    assert host.scan(PF + virtual(0) + virtual(1)) == {first: None, second: None}


def test_the_node_of_a_group_comes_after_its_driver(tmp_path: Path) -> None:
    host = Scans(tmp_path, "pci: {device: 8086:1521, node: vfio}")
    bound = "pci 0000:00:05.0 8086:1521 class=020000 driver=vfio-pci group=3\n"
    node = "dir virtual\n  vfio 3 243:0\n"
    said = []
    for text in (bound.replace("driver=vfio-pci ", ""), bound, bound + node):
        host.scan(text)
        said.append(host.skipped().get("0000:00:05.0"))
    assert said == [
        "not bound to vfio-pci",
        "bound to vfio-pci, but the kernel has no node of group 3",
        None,
    ]
    tree = host.tree(bound + node)
    tree.remove("/dev/vfio/3")
    assert "is not there, but the kernel has it" in str(host.scan_tree(tree)["0000:00:05.0"])


def to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def each(pattern: str, text: str) -> Callable[[HostTree, Path], None]:
    def change(_tree: HostTree, device: Path) -> None:
        (path,) = device.glob(pattern)
        path.write_text(text)

    return change


UEVENT: Final = "1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent"
DEV: Final = "1-1:1.0/ttyUSB0/tty/ttyUSB0/dev"


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
        (lambda tree, _: to_itself(tree.root / "dev/ttyUSB0"), "is not there, but"),
        (each(DEV, "x:y\n"), "absent"),
        (each(DEV, "-1:0\n"), "the kernel's is -1:0"),
        (each(UEVENT, "MAJOR=188\nMINOR=0\nDEVNAME=../../etc/passwd\n"), "absent"),
        (each(UEVENT, "MAJOR=188\nMINOR=0\nDEVNAME=/etc/passwd\n"), "absent"),
        (each(UEVENT, "MAJOR=188\nMINOR=0\nDEVNAME=\n"), "absent"),
        (each(UEVENT, "DEVNAME=a\nDEVNAME=ttyUSB0\n"), "absent"),
        (each("busnum", "NaN\n"), None),
        (each("1-1:1.0/bInterfaceNumber", "٣\n"), None),
        (each("1-1:1.0/ttyUSB0/port_number", "../x\n"), None),
    ],
)  # fmt: skip
def test_files_and_links_that_are_broken(
    tmp_path: Path, change: Callable[[HostTree, Path], None], reason: str | None
) -> None:
    """The device is whole, unhealthy or not there; it never gets another ID."""
    host = Scans(tmp_path, SERIAL)
    tree = host.tree(ONE)
    change(tree, next((tree.root / "sys/devices").rglob("1-1")))
    found = host.scan_tree(tree)
    if reason == "absent":
        assert found == {}
    else:
        assert list(found) == [f"{PORT}1"]
        assert (reason or "None") in str(found[f"{PORT}1"])


def test_a_subsystem_that_loops_is_a_failure(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    tree = host.tree(ONE)
    shutil.rmtree(tree.root / "sys/bus")
    (tree.root / "sys/bus").symlink_to("bus")
    assert host.scan_tree(tree) == {}
    assert "symbolic links" in str(host.snapshot.error)


def test_deep_below_hubs(tmp_path: Path) -> None:
    text, port, indent = CONTROLLER, "1", "    "
    for number in range(5):
        text += f"{indent}usb 1-{port} 2109:2813 class=090002 bus=1 dev={10 + number}\n"
        port, indent = f"{port}.7", f"{indent}  "
    text += (
        f"{indent}usb 1-{port} 0403:6001 bus=1 dev=99\n"
        f"{indent}  if 1-{port}:255.255 ffffff ftdi_sio\n"
        f"{indent}    usb-serial ttyUSB300 port_number=15\n"
        f"{indent}      tty ttyUSB300 188:300\n"
    )
    host = Scans(tmp_path, "usb: {interface: 255, node: tty, split: true}")
    assert host.scan(text) == {f"{PORT}1.7.7.7.7.7:255.255-port15": None}


def test_a_name_with_a_slash(tmp_path: Path) -> None:
    """The kernel writes it as an exclamation mark."""
    host = Scans(tmp_path, "sysfs: {subsystem: misc, name: 'acme*'}")
    assert host.scan("dir virtual\n  misc acme!c0 10:99\n") == {"acme!c0": None}
    assert host.paths("acme!c0") == ("/dev/acme/c0",)
