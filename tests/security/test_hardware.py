"""Attributes of devices, and links that others make, bring no node and tell nothing."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.errors import PreStartError
from devhost.hostfs.files import HostFiles
from devhost.model.device import Snapshot
from tests.security.attack import run_step
from tests.support.devices import reasons
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.scanning import nobody, selected, snapshot_of

pytestmark = needs_root

SCANNER: Final = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2"
NAMED: Final = f"{SCANNER}/1-2:1.0/0003:05E0:1200.0002/input/input7"
TREE: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 046d:c31c bus=1 dev=2
      if 1-1:1.0 030101 usbhid
        hid 0003:046D:C31C.0001 driver=hid-generic
          input input1
            input event0 13:64
    usb 1-2 05e0:1200 bus=1 dev=5 product=Scanner serial=S1
      if 1-2:1.0 030101 usbhid
        hid 0003:05E0:1200.0002 driver=hid-generic
          input input7
            input event1 13:65
link input/by-id/usb-Scanner-event-kbd input/event1
"""
USB: Final = "usb: {device: 05e0:1200, node: input}"
ID: Final = ", id: ['${byId}', '${name}']"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "host")
    tree.hardware(TREE)
    return tree


POLICY: Final = Policy(
    ("/srv/cfg/*",), enforced=True, allow_exec=True, allow_devices=("input", "/srv/cfg/*")
)


def scanner_of(tree: HostTree, source: str, options: str = "") -> Scanner:
    text = f"version: v1\nresources: [{{name: example.com/a, sources: [{{{source}}}]{options}}}]"
    (resource,) = loads(text, policy=POLICY).require().resources
    return Scanner(resource, HostFiles(str(tree.root)), POLICY, "node", settle_s=0.0)


def scan(tree: HostTree, source: str, options: str = "") -> Snapshot:
    return scan_by(scanner_of(tree, source, options))


def scan_by(scanner: Scanner) -> Snapshot:
    return snapshot_of(scanner, selected(scanner), Snapshot(), nobody, 1.0)


def paths(snapshot: Snapshot) -> list[str]:
    return [path for device in snapshot.devices.values() for path in device.paths]


@pytest.mark.parametrize(
    ("source", "end"),
    [(USB, "\n"), ("sysfs: {subsystem: input, name: input7}", "\n"), (USB, "\r"), (USB, "\x85")],
)
def test_uevent_name_brings_no_node(tree: HostTree, source: str, end: str) -> None:
    """The kernel writes it into ``uevent`` as it is, beside the keys of its own."""
    name = end.join(('Scanner"', "MAJOR=13", "MINOR=64", "DEVNAME=input/event0", "X="))
    tree.file(f"{NAMED}/uevent", f'PRODUCT=3/5e0/1200/110\nNAME="{name}"\n')
    assert "/dev/input/event0" not in paths(scan(tree, source))


def test_uevent_with_a_key_in_the_name_of_a_device_is_not_matched(tree: HostTree) -> None:
    source = "sysfs: {subsystem: input, name: event1, parent: {uevent: {PHYS: '*-7/input0*'}}}"
    form = 'PHYS="usb-0000:00:14.0-{}/input0"\n'
    tree.file(f"{NAMED}/uevent", form.format(7))
    assert paths(scan(tree, source)) == ["/dev/input/event1"]
    for text in (f'NAME="x\n{form.format(7)}"\n{form.format(2)}', form.format(2) + form.format(7)):
        tree.file(f"{NAMED}/uevent", text)
        assert not scan(tree, source).devices


@pytest.mark.parametrize("by", ["by-id", "by-path"])
def test_symlink_below_dev_shm_names_no_node(tree: HostTree, by: str) -> None:
    """Everybody may make links below /dev/shm."""
    tree.link(f"/dev/shm/{by}/a", "../../input/event1")
    variable = {"by-id": "byId", "by-path": "byPath"}[by]
    options = f", allocate: {{env: {{LINK: {{value: '${{{variable}}}', optional: true}}}}}}"
    (device,) = scan(tree, USB, f"{options}{ID}").devices.values()
    assert device.id == "/dev/input/by-id/usb-Scanner-event-kbd"
    assert "/dev/shm" not in str(device)


@pytest.mark.parametrize("mode", [0o400, 0o440])
def test_attribute_that_only_root_may_read_is_not_told(tree: HostTree, mode: int) -> None:
    """Examples are a section's address and the board's serial number."""
    where = tree.at(f"{NAMED}/event1/secret")
    where.write_text("secret-4711\n")
    where.chmod(mode)
    chosen = "sysfs: {subsystem: input, name: event1"
    env = ", allocate: {env: {TOLD: '${attr.secret}'}}"
    snapshots = (
        scan(tree, f"{chosen}}}", env),
        scan(tree, f"{chosen}, attr: {{secret: secret-*}}}}"),
        scan(tree, f"{chosen}, attr: {{secret: x}}}}"),
    )
    assert "secret-4711" not in str(snapshots)
    assert [*reasons(snapshots[0]).values()] == ["env TOLD: ${attr.secret} has no value"]
    assert not snapshots[1].devices
    where.chmod(0o444)
    assert scan(tree, f"{chosen}, attr: {{secret: secret-*}}}}").devices


def test_attribute_by_a_symlink_out_of_sys_is_not_told(tree: HostTree) -> None:
    tree.file("/srv/told", "4711\n")
    tree.link(f"{NAMED}/event1/out", "/srv/told")
    env = ", allocate: {env: {TOLD: '${attr.out}'}}"
    snapshot = scan(tree, "sysfs: {subsystem: input, name: event1}", env)
    assert [*reasons(snapshot).values()] == ["env TOLD: ${attr.out} has no value"]


@pytest.mark.parametrize("text", ["a\x1b[2J", "a\n\x7fb"])
def test_attribute_with_control_characters_is_no_value(tree: HostTree, text: str) -> None:
    tree.file(f"{SCANNER}/product", f"{text}\n")
    env = ", allocate: {env: {PRODUCT: {value: '${usb.product}', optional: true}}}"
    (device,) = scan(tree, USB, env).devices.values()
    assert device.healthy
    assert "usb.product" not in device.nodes[0].variables


@pytest.mark.parametrize("variable", ["byId", "input.byId"])
async def test_command_gets_the_node_of_a_symlink(tree: HostTree, variable: str) -> None:
    options = f", preStart: [{{run: [sh, -c, 'echo $$0; exit 1', '${{{variable}}}']}}]"
    (device,) = scan(tree, USB, options).devices.values()
    scanner = scanner_of(tree, USB, options)
    with pytest.raises(PreStartError, match=f": {tree.root}/dev/input/event1$"):
        await run_step(scanner.resource.pre_start[0], device, scanner.files, POLICY)


@pytest.mark.parametrize(
    ("section", "template"), [("mounts", "/srv/cfg/${usb.serial}"), ("devices", "/srv/cfg/${id}")]
)
def test_serial_number_with_slash_is_no_path(tree: HostTree, section: str, template: str) -> None:
    """The path would be deeper below the allowed one than the configuration says."""
    options = f", id: '${{usb.serial}}', allocate: {{{section}: ['{template}']}}"
    assert "'/'" not in (scan(tree, USB, options).devices["S1"].reason or "")
    tree.file(f"{SCANNER}/serial", "a/b/c\n")
    reason = scan(tree, USB, options).devices["a/b/c"].reason or ""
    assert f"{template.rpartition('/')[2]} has a '/': 'a/b/c'" in reason


@pytest.mark.parametrize(
    ("serial", "text"), [(".", "is '.'"), ("..", "is '..'"), ("S/../x", "has a '/': 'S/../x'")]
)
async def test_serial_number_leads_no_path_away(tree: HostTree, serial: str, text: str) -> None:
    """A serial number in a mount or an argument names no directory above."""
    step = "preStart: [{run: ['false', '/srv/cfg/${usb.serial}']}]"
    scanner = scanner_of(tree, USB, f", allocate: {{mounts: ['/srv/cfg/${{usb.serial}}']}}, {step}")
    tree.directory("/srv/cfg")
    tree.file(f"{SCANNER}/serial", f"{serial}\n")
    (device,) = scan_by(scanner).devices.values()
    assert f"${{usb.serial}} {text}" in (device.reason or "")
    healthy = replace(device, verdict=None)
    with pytest.raises(PreStartError, match=re.escape(f"${{usb.serial}} {text}")):
        await run_step(scanner.resource.pre_start[0], healthy, scanner.files, POLICY)
