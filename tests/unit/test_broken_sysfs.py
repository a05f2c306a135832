"""Sysfs as it should not be: nothing of it gives a device another ID, or fails another device."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.scanning import Scans

FTDI: Final = Path(__file__).with_name("trees").joinpath("ftdi.tree").read_text()
SERIAL: Final = "sources: [usb: {device: 0403:6001, node: tty}]"
PORT: Final = "pci-0000:00:14.0-usbv2-0:"
ONE: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 0403:6001 bus=1 dev=2 product=X serial=AH06W0EQ
      if 1-1:1.0 ffffff ftdi_sio
        usb-serial ttyUSB0 driver=ftdi_sio port_number=0
          tty ttyUSB0 188:0
"""

pytestmark = needs_root


def on(place: Path, hardware: str = ONE) -> HostTree:
    tree = HostTree(place)
    tree.hardware(hardware)
    return tree


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
def test_serial_number_no_id_is_skipped(tmp_path: Path, raw: bytes, device: str | None) -> None:
    tree = on(tmp_path / "host")
    next((tree.root / "sys/devices").rglob("serial")).write_bytes(raw)
    for keys, expected in (("id: ${usb.serial}", device), ("", f"{PORT}1")):
        host = Scans(tree.root, f"{SERIAL}\n{keys}")
        assert host.states() == ({} if expected is None else {expected: None})
        assert bool(host.last.skipped) == (expected is None)


@pytest.mark.parametrize(
    ("content", "matched"),
    [(b"\xff\xfe\n", False), (b"a\x01\nb\n", False), (b"x" * 4097, False), (b"x" * 4095, True)],
)
def test_attribute_of_odd_content_is_no_match(
    tmp_path: Path, content: bytes, matched: bool
) -> None:
    source = "sysfs: {subsystem: hwmon, attr: {label: '*'}, uevent: {OF_NAME: gpio}}"
    tree = on(tmp_path / "host", "hwmon hwmon0 200:0 label=x\n")
    (tree.root / "sys/devices/hwmon0/label").write_bytes(content)
    with (tree.root / "sys/devices/hwmon0/uevent").open("ab") as file:
        file.write(b"HID_NAME=\xff\nOF_NAME=gpio\n")
    states = Scans(tree.root, f"sources: [{source}]").states()
    assert states == ({"hwmon0": None} if matched else {})


def test_sysfs_file_vanished_raises_nothing(tmp_path: Path) -> None:
    """Without any one file, a device is whole or not there, and the other one is as it was."""
    tree = on(tmp_path / "host", FTDI)
    below = tree.root / "sys/devices/pci0000:00/0000:00:14.0/usb1/1-2"
    for path in sorted(below.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        path.rename(aside := tmp_path / "aside")
        states = Scans(tree.root, SERIAL).states()
        aside.rename(path)
        assert f"{PORT}1.4" in states, path
        assert set(states.values()) == {None}, path
