"""Hardware that comes, goes and changes: what stays the same, and what kubelet learns of it."""

import random
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.identity import HOLD_S, SWAP_S
from devhost.discovery.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from tests.support.root import needs_root
from tests.unit.scans import FTDI, SERIAL, Scans, without

HERE: Final = Path(__file__).parent

pytestmark = needs_root


STICK: Final = """
    usb {port} 0403:6001 bus=1 dev={dev} manufacturer=FTDI product="FT232R USB UART" serial=AH06W0EQ
      if {port}:1.0 ffffff ftdi_sio
        usb-serial ttyUSB{tty} driver=ftdi_sio port_number=0
          tty ttyUSB{tty} 188:{tty}
"""
GONE: Final = without(FTDI, "1-2")


def with_stick(port: str, dev: int, tty: int) -> str:
    """Return the host of the FTDI example, with its stick plugged in again."""
    lines = GONE.splitlines()
    stick = STICK.format(port=port, dev=dev, tty=tty).strip("\n").splitlines()
    at = next(index for index, line in enumerate(lines) if "usb usb1" in line)
    return "\n".join([*lines[: at + 1], *stick, *lines[at + 1 :]])


def test_a_replugged_stick_keeps_its_id(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, ', id: "${usb.serial}"')
    host.scan(FTDI)
    assert host.scan(GONE)["AH06W0EQ"] == "not found any more"
    assert host.scan(with_stick("1-2", 9, 3))["AH06W0EQ"] is None
    assert host.paths("AH06W0EQ") == ("/dev/ttyUSB3",)


def test_a_quick_replug_is_seen_by_its_number(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, ', id: "${usb.serial}"')
    host.scan(FTDI)
    changed = host.scan(with_stick("1-2", 9, 3), after=1)
    assert changed["AH06W0EQ"] == "another device was found in its place"
    assert host.scan(with_stick("1-2", 9, 3), after=SWAP_S)["AH06W0EQ"] is None


def test_another_port_is_another_device_unless_its_serial_number_is_the_id(tmp_path: Path) -> None:
    by_serial = Scans(tmp_path / "a", SERIAL, ', id: "${usb.serial}"')
    by_port = Scans(tmp_path / "b", SERIAL)
    for host in (by_serial, by_port):
        host.scan(FTDI)
        host.scan(GONE)
    moved = with_stick("1-7", 9, 3)
    assert by_serial.scan(moved)["AH06W0EQ"] is None
    assert by_port.scan(moved) == {
        "pci-0000:00:14.0-usbv2-0:1.4": None,
        "pci-0000:00:14.0-usbv2-0:2": "not found any more",
        "pci-0000:00:14.0-usbv2-0:7": None,
    }


def test_a_twin_keeps_its_id_when_the_other_goes(tmp_path: Path) -> None:
    twins = (HERE / "trees/ch340.tree").read_text()
    host = Scans(tmp_path, "usb: {device: 1a86:7523, node: tty}")
    host.scan(twins)
    assert host.scan(without(twins, "1-3"))["pci-0000:00:14.0-usbv2-0:4"] is None


def test_twins_with_one_serial_number_take_turns(tmp_path: Path) -> None:
    twins = (HERE / "trees/rtl-sdr.tree").read_text()
    host = Scans(tmp_path, "usb: 0bda:2838", ', id: "${usb.serial}"')
    assert host.scan(twins) == {"00000001": None}
    assert host.skipped() == {
        "/dev/bus/usb/001/010": "its ID 00000001 is that of /dev/bus/usb/001/009"
    }
    changed = host.scan(without(twins, "1-1"))
    assert changed == {"00000001": "another device was found in its place"}


def test_a_device_that_changes_its_number_in_its_port_is_the_same(tmp_path: Path) -> None:
    before = (HERE / "trees/coral-usb.tree").read_text()
    after = before.replace("1a6e:089a bus=2 dev=2", "18d1:9302 bus=2 dev=7")
    host = Scans(tmp_path, "usb: [1a6e:089a, 18d1:9302]")
    host.scan(before)
    changed = host.scan(after, after=1)
    assert changed["pci-0000:00:14.0-usbv3-0:1"] == "another device was found in its place"


def test_a_modem_without_its_control_node_is_incomplete(tmp_path: Path) -> None:
    modem = (HERE / "trees/lte-modem.tree").read_text()
    host = Scans(tmp_path, "usb: {device: 1199:9091, node: [tty, usbmisc, net]}")
    name = "pci-0000:00:15.0-usbv3-0:6"
    assert host.scan(modem) == {name: None}
    assert host.scan(without(modem, "cdc-wdm0")) == {name: "incomplete: no usbmisc node"}
    assert "/dev/ttyUSB0" in host.snapshot.devices[name].remaining
    assert host.scan(modem) == {name: None}
    new = Scans(tmp_path / "new", "usb: {device: 1199:9091, node: [tty, usbmisc, net]}")
    assert new.scan(without(modem, "cdc-wdm0")) == {}
    assert new.skipped() == {"2-6": "incomplete: no usbmisc node"}


def test_a_group_is_offered_when_the_kernel_uses_none_of_it(tmp_path: Path) -> None:
    tree = (HERE / "trees/vfio.tree").read_text()
    host = Scans(tmp_path, "pci: {device: 10de:1eb8, node: vfio}")
    assert host.scan(tree) == {}
    bound = tree.replace("driver=snd_hda_intel", "driver=vfio-pci")
    assert host.scan(bound) == {"0000:86:00.0": None}
    assert host.paths("0000:86:00.0") == ("/dev/vfio/6",)


def test_controllers_in_another_order_change_no_id(tmp_path: Path) -> None:
    two = FTDI + (
        "\npci 0000:00:15.0 8086:06ed class=0c0330 driver=xhci_hcd\n"
        "  usb usb2 1d6b:0002 class=090001 bus=2 dev=1\n"
        "    usb 2-1 0403:6001 bus=2 dev=3\n"
        "      if 2-1:1.0 ffffff ftdi_sio\n"
        "        usb-serial ttyUSB5 driver=ftdi_sio port_number=0\n"
        "          tty ttyUSB5 188:5\n"
    )
    swapped = two.translate({}).replace("usb1 ", "usbX ").replace("usb2 ", "usb1 ")
    swapped = swapped.replace("usbX ", "usb2 ")
    for before, after in ((" 1-", " 9-"), (" 2-", " 1-"), (" 9-", " 2-")):
        swapped = swapped.replace(before, after)
    for before, after in (("bus=1", "bus=9"), ("bus=2", "bus=1"), ("bus=9", "bus=2")):
        swapped = swapped.replace(before, after)
    first, second = Scans(tmp_path / "a", SERIAL), Scans(tmp_path / "b", SERIAL)
    assert first.scan(two) == second.scan(swapped)


def test_the_usb_node_and_the_other_nodes_exclude_each_other(tmp_path: Path) -> None:
    """Libusb detaches drivers."""
    whole, tty = Scans(tmp_path / "a", "usb: 0403:6001"), Scans(tmp_path / "b", SERIAL)
    held = {"/dev/ttyUSB0": "example.com/b"}
    assert "pci-0000:00:14.0-usbv2-0:2" not in whole.scan(FTDI, owner_of=held.get)
    assert whole.skipped() == {"1-2": "example.com/b offers nodes of it already"}
    assert len(tty.scan(FTDI)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_files_are_made_makes_no_difference(tmp_path: Path, seed: int) -> None:
    """Members are listed in the order of the directory, which is that of their making on tmpfs."""
    paths = sorted((HERE / "trees").iterdir())
    text = paths[seed % len(paths)].read_text()
    links = [line for line in text.splitlines() if line.startswith("link ")]
    blocks: list[str] = []
    for line in text.splitlines():
        if line.startswith("link "):
            continue
        if line.startswith(" "):
            blocks[-1] += f"\n{line}"
        else:
            blocks.append(line)
    random.Random(seed).shuffle(blocks)
    source = "usb: {device: '*:*', node: [{subsystem: tty, optional: true}, usb]}"
    first, second = Scans(tmp_path / "a", source), Scans(tmp_path / "b", source)
    first.scan(text)
    second.scan("\n".join([*blocks, *links]))
    assert first.snapshot.devices.keys() == second.snapshot.devices.keys()
    for device_id in first.snapshot.devices:
        assert first.paths(device_id) == second.paths(device_id)


def test_files_that_vanish_while_they_are_read(tmp_path: Path) -> None:
    """Without any one file, a device is whole, skipped or not there; nothing is raised."""
    tree = Scans(tmp_path, SERIAL).tree(FTDI)
    below = "sys/devices/pci0000:00/0000:00:14.0/usb1/1-2"
    for path in sorted((tree.root / below).rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        host = Scans(tmp_path / "x", SERIAL)
        target = path.readlink() if path.is_symlink() else path.read_bytes()
        path.unlink()
        found = host.scan_tree(tree)
        assert found.get("pci-0000:00:14.0-usbv2-0:1.4", "absent") is None, path
        for reason in found.values():
            assert reason is None, (path, reason)
        if isinstance(target, bytes):
            path.write_bytes(target)
        else:
            path.symlink_to(target)


def test_a_node_that_is_not_there_or_another(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL)
    tree = host.tree(FTDI)
    tree.remove("/dev/ttyUSB0")
    name = "pci-0000:00:14.0-usbv2-0:2"
    assert host.scan_tree(tree)[name] == "/dev/ttyUSB0 is not there, but the kernel has it"
    tree.char("/dev/ttyUSB0", 188, 1)
    assert host.scan_tree(tree)[name] == "/dev/ttyUSB0 is 188:1, the kernel's is 188:0"


CAMERA: Final = (HERE / "trees/webcam.tree").read_text()
CAMERA_NODES: Final = ("media0", "video0", "video1", "media1", "video2", "video3")
CAMERA_SOURCE: Final = "usb: {class: video, node: [video4linux, media]}"
CAMERA_ID: Final = "pci-0000:00:14.0-usbv2-0:5"


@pytest.mark.parametrize("seed", range(5))
def test_a_camera_is_never_offered_with_fewer_nodes_than_will_come(
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


def test_a_camera_that_comes_back_is_missing_until_it_is_whole(tmp_path: Path) -> None:
    host = Scans(tmp_path, CAMERA_SOURCE, hold_s=HOLD_S)
    assert host.scan(CAMERA) == {CAMERA_ID: None}
    gone = without(CAMERA, "1-5")
    assert host.scan(gone) == {CAMERA_ID: "not found any more"}
    half = without(CAMERA, "video2", "video3")
    assert "more nodes of it may come" in str(host.scan(half, after=1)[CAMERA_ID])
    assert not host.snapshot.devices[CAMERA_ID].replaced
    host.scan(CAMERA, after=0.1)
    assert host.scan(CAMERA, after=HOLD_S) == {CAMERA_ID: None}
    assert len(host.paths(CAMERA_ID)) == len(CAMERA_NODES)


def test_nothing_waits_for_ever_for_nodes_that_flap(tmp_path: Path) -> None:
    host = Scans(tmp_path, CAMERA_SOURCE, hold_s=HOLD_S)
    host.scan(without(CAMERA, "1-5"))
    for turn in range(10):
        host.scan(without(CAMERA, "video3") if turn % 2 else CAMERA, after=0.1)
    assert host.scan(CAMERA, after=0.1) == {CAMERA_ID: None}


def test_a_stick_with_one_interface_does_not_wait(tmp_path: Path) -> None:
    host = Scans(tmp_path, SERIAL, hold_s=HOLD_S)
    host.scan(GONE)
    assert host.scan(FTDI)["pci-0000:00:14.0-usbv2-0:2"] is None


def test_a_link_comes_after_its_node(tmp_path: Path) -> None:
    link = "link serial/by-id/usb-FTDI_FT232R_USB_UART_AH06W0EQ-if00-port0 ttyUSB0\n"
    without_link = FTDI.replace(link, "")
    assert without_link != FTDI
    more = ', allocate: {devices: ["${byId}"]}'
    name = "pci-0000:00:14.0-usbv2-0:2"
    host = Scans(tmp_path / "a", SERIAL, more, hold_s=HOLD_S)
    host.scan(GONE)
    assert name not in host.scan(without_link, after=0.1)
    assert host.scan(FTDI, after=0.1)[name] is None
    never = Scans(tmp_path / "b", SERIAL, more, hold_s=HOLD_S)
    never.scan(GONE)
    never.scan(without_link, after=0.1)
    changed = never.scan(without_link, after=HOLD_S)
    assert changed[name] == "no link below /dev/*/by-id leads to it"


def test_a_vanished_device_says_why(tmp_path: Path) -> None:
    """What it was of is still there."""
    tree = (HERE / "trees/vfio.tree").read_text()
    host = Scans(tmp_path / "vfio", "pci: {device: 8086:1521, node: vfio}")
    assert host.scan(tree)["0000:3b:00.0"] is None
    unbound = tree.replace("driver=vfio-pci group=27", "driver=igb group=27")
    assert host.scan(unbound)["0000:3b:00.0"] == (
        "group 27 holds 0000:3b:00.0 (driver igb): bind all of it to vfio-pci"
    )
    assert host.scan(tree)["0000:3b:00.0"] is None

    name = "pci-0000:00:14.0-usbv2-0:2"
    stick = Scans(tmp_path / "stick", SERIAL)
    assert stick.scan(FTDI)[name] is None
    without_driver = without(
        FTDI.replace("if 1-2:1.0 ffffff ftdi_sio", "if 1-2:1.0 ffffff"), "ttyUSB0"
    )
    assert stick.scan(without_driver)[name] == "no tty node: no driver is bound to 1-2:1.0 (ffffff)"
    refused = without(FTDI.replace("usb 1-2 ", "usb 1-2 authorized=0 "), "1-2:1.0")
    refused = refused.replace("usb 1-2 authorized=0 0403:6001", "usb 1-2 0403:6001 authorized=0")
    assert stick.scan(refused)[name] == "no tty node: it is not authorized (its `authorized` is 0)"
    assert stick.scan(FTDI)[name] is None


def test_a_device_without_a_place_needs_an_id(tmp_path: Path) -> None:
    nowhere = """
dir virtual
  usb usb7 1d6b:0002 class=090001 bus=7 dev=1
    usb 7-1 0403:6001 bus=7 dev=2 serial=A1B2C3
      if 7-1:1.0 ffffff ftdi_sio
        usb-serial ttyUSB0 port_number=0
          tty ttyUSB0 188:0
"""
    plain = Scans(tmp_path / "a", SERIAL)
    assert plain.scan(nowhere) == {}
    assert plain.skipped() == {
        "/dev/ttyUSB0": "nothing above it says where it is plugged in: set `id`"
    }
    assert Scans(tmp_path / "b", SERIAL, ', id: "${usb.serial}"').scan(nowhere) == {"A1B2C3": None}


def test_checks_have_attributes_and_links(tmp_path: Path) -> None:
    """A health check may be all that mentions them."""
    source = "sysfs: {subsystem: tty, name: ttyUSB0}"
    more = ", health: {file: {path: '/run/${attr.own}${byId}', matches: x}}"
    host = Scans(tmp_path, source, more)
    host.scan(FTDI.replace("tty ttyUSB0 188:0", "tty ttyUSB0 188:0 own=7"))
    (device,) = host.snapshot.devices.values()
    variables = device.nodes[0].variables
    assert variables["attr.own"] == "7"
    assert variables["byId"].endswith("AH06W0EQ-if00-port0")


def test_events_of_what_is_above_are_heard() -> None:
    text = (
        "version: v1\nresources: [{name: example.com/a, sources: [sysfs: {subsystem: tty, "
        "parent: {subsystem: usb, driver: ftdi_sio}, exclude: {parent: {subsystem: pci}}}]}]"
    )
    (resource,) = loads(text).require().resources
    scanner = Scanner.of(resource, HostFiles("/"), Policy(), "node", hold_s=0.0)
    heard = frozenset().union(*(root.subsystems for root in scanner.roots))
    assert heard == {"tty", "usb", "pci"}
