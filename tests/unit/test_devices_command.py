"""``devhost devices``: what a host has, and entries that are ready to paste."""

import os
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.support.hardware import HostTree
from tests.support.root import needs_root

HERE: Final = Path(__file__).parent
TREES: Final = sorted((HERE / "trees").glob("*.tree"))

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def devices(tree: HostTree, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["devices", *arguments, "--root", str(tree.root)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_everything_is_listed(path: Path, tree: HostTree) -> None:
    text = path.read_text()
    tree.hardware(text)
    shown = devices(tree, "--usb", "--pci", "--all")
    for line in text.splitlines():
        kind, name, *_ = line.split()
        assert kind not in ("usb", "pci") or f"\n{name} " in f"\n{shown}"


def test_all_that_is_known_of_a_node(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/ftdi.tree").read_text())
    tree.file("/etc/group", "root:x:0:\ndialout:x:20:me\n")
    os.chown(tree.root / "dev/ttyUSB0", 0, 20)
    os.chown(tree.root / "dev/ttyUSB1", 7, 21)
    shown = devices(tree, "/dev/ttyUSB1")
    assert shown.startswith("/dev/ttyUSB1 (char 188:1, 7 21 0660)\n")
    shown = devices(tree, "/dev/ttyUSB0")
    assert shown.startswith("/dev/ttyUSB0 (char 188:0, root dialout (20) 0660)\n")
    for line in (
        "usb.serial         AH06W0EQ",
        "usb.port           pci-0000:00:14.0-usbv2-0:2",
        "driver             ftdi_sio",
    ):
        assert f"  {line}\n" in shown


@pytest.mark.parametrize(
    ("what", "title", "entry"),
    [
        (
            "/dev/serial/by-id/usb-FTDI_FT232R_USB_UART_AH06W0EQ-if00-port0",
            "/dev/ttyUSB0 (",
            "usb:",
        ),
        ("00:14.0", "0000:00:14.0\n", "pci:"),
        ("nvidia0", "/dev/nvidia0 (char 195:0", "- /dev/nvidia0\n"),
    ],
)
def test_a_device_is_meant_by_a_link_a_short_address_or_a_node_that_sysfs_lacks(
    tree: HostTree, what: str, title: str, entry: str
) -> None:
    tree.hardware((HERE / "trees/ftdi.tree").read_text())
    tree.char("/dev/nvidia0", 195, 0)
    assert devices(tree, what).startswith(title)
    assert entry in devices(tree, what, "-o", "yaml")


def test_twins_are_told_apart_by_their_port(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/ch340.tree").read_text())
    assert "port: pci-0000:00:14.0-usbv2-0:3" in devices(tree, "1-3", "-o", "yaml")


def test_what_is_not_there_is_an_error(tree: HostTree) -> None:
    result = CliRunner().invoke(main, ["devices", "--root", str(tree.root)])
    assert (result.exit_code, "there is no /sys" in result.stderr) == (1, True)
    tree.directory("/sys/devices")
    result = CliRunner().invoke(main, ["devices", "ttyUSB9", "--root", str(tree.root)])
    assert (result.exit_code, "no device ttyUSB9" in result.stderr) == (1, True)


def test_a_hosts_own_devices(tree: HostTree) -> None:
    """Whatever the machine is on which the tests run."""
    result = CliRunner().invoke(main, ["devices", "--all"])
    assert result.exit_code == 0, result.output
