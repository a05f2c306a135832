"""Devices of files and hardware: hardware/*.txt has trees, sources, and the devices of each.

A line ``$ …`` has the sources of a resource, and behind ``|`` its further options; ``+ …`` is a
second resource of the same file. ``? …`` shows the variables of templates too. What is found is below.
`DEVHOST_TEST_WRITE=1 pytest …` writes what is found now.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from devhost.allocation.policy import Policy
from devhost.allocation.variables import PCI_VARIABLES, SYSFS_VARIABLES, USB_VARIABLES
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.hostfs.nvidia import NvidiaClass
from devhost.model.device import HostDevice
from devhost.model.device_node import Node, NodeId
from devhost.model.template import variables
from tests.support.devices import reason_of
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.scanning import look

INTERFACES: Final = """
pci 0000:00:03.0 8086:10fb class=020000
  net eth0 ifindex=2 dev_port=0 dev_id=0x0
  net eth1 ifindex=3 dev_port=1 dev_id=0x0
pci 0000:00:04.0 1d50:606f class=0c0900
  net can0 ifindex=4 dev_port=0 dev_id=0x0
  net can1 ifindex=5 dev_port=0 dev_id=0x0
dir virtual
  net dummy0 ifindex=6 dev_port=0 dev_id=0x0
  net dummy1 ifindex=7 dev_port=0 dev_id=0x0
"""
# Of each kind one device that differs from all others in each of its facts.
FACTS: Final = """
pci 0000:00:14.0 8086:a36d class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 0403:6001 bus=1 dev=2 class=ff0000 serial=A1 manufacturer=FTDI product=UART
      if 1-1:1.0 ff0000 ftdi_sio
        usb-serial ttyUSB0 port_number=0
          tty ttyUSB0 188:0
    usb 1-2 1a40:0101 class=090001 bus=1 dev=3
      usb 1-2.1 0403:6002 bus=1 dev=4 class=020000
        if 1-2.1:1.1 020201 cdc_acm
          tty ttyACM0 166:0
          usbmisc cdc-wdm0 180:0
pci 0000:3a:00.0 8086:2030 class=060400 driver=pcieport
  pci 0000:3b:00.0 8086:1572 class=020100 driver=i40e
  pci 0000:3b:02.0 8086:154c class=020000 driver=iavf sub=8086:0002 group=5
    net lan0
  pci 0000:3b:02.1 8086:154d class=020001 driver=iavf2
    hwmon hwmon1
  pci 0000:3c:00.0 8086:1572 class=020100 driver=i40e
  pci 0000:3c:02.1 8086:154d class=020001 driver=iavf2
    net lan1
link serial/by-id/usb-A1 ttyUSB0
"""
FUNCTIONS: Final = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:"
SELECTED: Final = {"usb": "serial: A1, node: tty", "pci": "device: 8086:154c, node: net"}
# What selects by a variable, other than an option with its name.
OPTIONS: Final = {
    **{
        name: f"device: '*:*', node: {{subsystem: NODE, {name}: VALUE}}"
        for name in ("name", "place", "driver")
    },
    "usb.name": "port: VALUE, node: NODE",
}
NO_OPTION: Final = {
    "usb.busnum": "another one after a boot",
    "usb.devnum": "another one after a replug",
    "pci.group": "another one after a boot",
    "subsystem": "`node` selects by it",
    "parent": "it follows from the node, which has other options",
    "syspath": "it has counted names; `place` is what stays",
    "byId": "`glob` finds links",
    "byPath": "`glob` finds links",
    "pci.uuid": "an option: hardware/nvidia.txt selects by it",
    "pci.model": "an option: hardware/nvidia.txt selects by it",
}
GOLDEN: Final = sorted(Path(__file__).with_name("hardware").iterdir())

pytestmark = needs_root


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_sources_find_what_the_golden_file_of_a_host_shows(golden: Path, tmp_path: Path) -> None:
    text = golden.read_text()
    head, hardware, body = re.split("^==.*\n", text, flags=re.MULTILINE)
    tree = HostTree(tmp_path / "host")
    tree.directory("/dev")
    tree.hardware(hardware)
    shown = "".join(
        _shown(block, tree) for block in re.findall(r"(?:#.*\n)*[$?] .*\n(?:\+ .*\n)*", body)
    )
    seen = text.removesuffix(body) + shown
    assert head
    if os.environ.get("DEVHOST_TEST_WRITE"):
        golden.write_text(seen)
    assert seen == text


def _shown(block: str, tree: HostTree) -> str:
    shown = "".join(f"  {line}\n" for line in _found(block, tree))
    return block + shown.replace(str(tree.root), "$ROOT")


def _found(block: str, tree: HostTree) -> Iterator[str]:
    config = "version: v1\nresources:\n"
    for sign, sources, options in re.findall(r"^([$?+]) (.*?)(?: [|] (.*))?$", block, re.MULTILINE):
        shown = sources if sources[0] in "{/" else f"{{{sources}}}"
        name = "b" if sign == "+" else "a"
        config += f"- {{name: example.com/{name}, sources: [{shown}], {options}}}\n"
    for resource in report(loads(config).require(), HostFiles(str(tree.root)), Policy(), "node"):
        for device in resource.snapshot.devices.values():
            reason = reason_of(device)
            unhealthy = f" ({reason})" if reason else ""
            nodes = ", ".join(node.shown or "no node" for node in device.nodes)
            yield f"{device.id}: {nodes}{unhealthy}"
            yield from _variables(device) if "\n?" in f"\n{block}" else ()
        skipped = resource.snapshot.skipped
        yield from (f"skipped {entry.candidate}: {reason_of(entry)}" for entry in skipped)
        yield from (f"error: {error}" for error in (resource.snapshot.error,) if error)
        yield from (f"warning: {w}" for w in resource.warnings if "--allow-device" not in w)


def _variables(device: HostDevice) -> Iterator[str]:
    """Yield those of the first node; of what a role repeats, the path."""
    by_name = variables(device.nodes[0], device.id, device.nodes)
    roles = tuple(
        f"{name.removesuffix('realpath')}" for name in by_name if name.endswith(".realpath")
    )
    for name, value in sorted(by_name.items()):
        if not name.startswith(roles) or name.endswith(".path"):
            yield f"  {name}={value}"


@pytest.mark.parametrize(
    ("kind", "variables_of_kind"), [("usb", USB_VARIABLES), ("pci", PCI_VARIABLES)]
)
def test_each_variable_is_an_option(
    kind: str, variables_of_kind: frozenset[str], tmp_path: Path
) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(FACTS)
    for port, number in (("3b", 0), ("3b", 1), ("3c", 0), ("3c", 1)):
        tree.link(f"{FUNCTIONS}{port}:00.0/virtfn{number}", f"../0000:{port}:02.{number}")
        tree.link(f"{FUNCTIONS}{port}:02.{number}/physfn", f"../0000:{port}:00.0")
    (node,) = look(tree.root, f"{kind}: {{{SELECTED[kind]}}}").nodes
    values, wrong = variables(node, None), dict[str, tuple[Node, ...]]()
    for name in (variables_of_kind | SYSFS_VARIABLES | {"name"}) - NO_OPTION.keys():
        option = OPTIONS.get(name, f"{name.rpartition('.')[2]}: VALUE, node: NODE")
        option = option.replace("VALUE", f"'{values[name]}'").replace("NODE", str(node.role))
        nodes = look(tree.root, f"{kind}: {{{option}}}").nodes
        wrong |= {option: nodes} if [peer.id for peer in nodes] != [node.id] else {}
    assert not wrong


def without_file(tree: HostTree, subsystem: str = "net") -> dict[str, NodeId]:
    """Return the identity of each device of a class, by the kernel's name."""
    nodes = look(tree.root, f"sysfs: {{subsystem: {subsystem}, node: none}}").nodes
    return {node.variables["name"]: node.id for node in nodes}


def same(before: dict[str, NodeId], after: dict[str, NodeId], *, same_boot: bool) -> set[str]:
    """Return which names before and after may be of one device."""
    return {
        f"{name} {later}"
        for name, former in before.items()
        for later, node_id in after.items()
        if not former.keys_in(same_boot=same_boot).isdisjoint(node_id.keys)
    }


def test_interfaces_that_swap_their_names_are_the_same(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(INTERFACES)
    before = without_file(tree)
    assert same(before, before, same_boot=True) == {f"{name} {name}" for name in before}
    for kind in ("eth", "can", "dummy"):
        tree.rename_interface(f"{kind}0", "rename0")
        tree.rename_interface(f"{kind}1", f"{kind}0")
        tree.rename_interface("rename0", f"{kind}1")
    after = without_file(tree)
    assert before["eth0"] == after["eth1"]
    assert before["eth1"] == after["eth0"]
    for name, peer in (("can0", "can1"), ("can1", "can0"), ("dummy0", "dummy1")):
        assert before[name].entity == after[peer].entity


# Hardware that is unplugged and comes again, perhaps as other hardware, and which devices may be the same.
COME_BACK: Final = {
    "by the port, or by the name": (
        INTERFACES,
        re.sub("eth(.)", r"lan\1", re.sub(r"ifindex=(.)", r"ifindex=1\1", INTERFACES)),
        {"eth0 lan0", "eth1 lan1", "can0 can0", "can1 can1", "dummy0 dummy0", "dummy1 dummy1"},
    ),
    "not the next one, where nothing carries it": (
        "dir virtual\n  net tap0 ifindex=2 dev_port=0\n",
        "dir virtual\n  net tap1 ifindex=3 dev_port=0\n",
        set[str](),
    ),
    "by what carries it, where it is counted": (
        "platform serial0\n  bluetooth hci0\nplatform serial1\n  bluetooth hci1\n",
        "platform serial0\n  bluetooth hci1\nplatform serial1\n  bluetooth hci2\n",
        {"hci0 hci1", "hci1 hci2"},
    ),
}


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize(("hardware", "later", "pairs"), COME_BACK.values(), ids=COME_BACK)
def test_device_without_a_file_comes_back(
    hardware: str, later: str, pairs: set[str], same_boot: bool, tmp_path: Path
) -> None:
    tree, subsystem = HostTree(tmp_path / "host"), "bluetooth" if "hci" in hardware else "net"
    tree.hardware(hardware)
    before = without_file(tree, subsystem)
    for name in before:
        tree.unplug(name)
    tree.hardware(later)
    assert same(before, without_file(tree, subsystem), same_boot=same_boot) == pairs


def test_interface_is_the_same_when_another_comes_to_its_port(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(INTERFACES)
    tree.unplug("can1")
    before = without_file(tree)
    tree.rename_interface("can0", "can7")
    tree.hardware("pci 0000:00:04.0 1d50:606f\n  net can1 ifindex=9 dev_port=0 dev_id=0x0\n")
    twins = without_file(tree)
    assert same({"can0": before["can0"]}, twins, same_boot=True) == {"can0 can7"}
    tree.unplug("can7")
    assert same({"can7": twins["can7"]}, without_file(tree), same_boot=True) == set()


def test_gpu_is_not_woken_again_by_reading_what_its_driver_says(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.hardware("pci 0000:00:06.0 10de:2330")
    gpu = "/proc/driver/nvidia/gpus/0000:00:06.0/information"
    tree.file(gpu, "GPU UUID: GPU-1\nDevice Minor: 0\n")
    first = NvidiaClass(HostFiles(str(tree.root)))
    with patch("builtins.open", side_effect=AssertionError):
        again = NvidiaClass(HostFiles(str(tree.root)))
    assert again.links == first.links != {}
