"""Hardware that the examples do not have: what is found of it, and what a template gets."""

import os
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot, variables
from tests.support.hardware import HostTree
from tests.support.root import needs_root

pytestmark = needs_root

HERE: Final = Path(__file__).parent
CONTROLLER: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
"""
COMPOSITE: Final = f"""{CONTROLLER}
    usb 1-1 2109:2813 class=090002 bus=1 dev=2 product="Hub"
      if 1-1:1.0 090002 hub
      usb 1-1.2 2109:2813 class=090002 bus=1 dev=3
        if 1-1.2:1.0 090002 hub
        usb 1-1.2.3 1209:0001 class=ef0201 bus=1 dev=4 product=" Both  " serial=A,1
          if 1-1.2.3:1.0 020201 cdc_acm
            tty ttyACM0 166:0
          if 1-1.2.3:1.1 0a0000 cdc_acm
          if 1-1.2.3:1.2 0e0100 uvcvideo
            video4linux video0 81:0 index=0
            video4linux video1 81:1 index=1
          if 1-1.2.3:1.10 010100 snd-usb-audio
            sound card0
              sound pcmC0D0c 116:6
              sound controlC0 116:7
"""
BOTH: Final = "pci-0000:00:14.0-usbv2-0:1.2.3"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def scanned(tree: HostTree, source: str, more: str = "") -> Snapshot:
    """Return what a resource with one source finds."""
    text = f"version: v1\nresources: [{{name: example.com/a, sources: [{source}]{more}}}]"
    (resource,) = loads(text).require().resources
    files = HostFiles(str(tree.root))
    scanner = Scanner.of(resource, files, Policy(("/dev/*",)), "node", hold_s=0.0)
    found = scanner.select(read_all(scanner.roots, files))
    return scanner.snapshot(found, Snapshot(), lambda _: None, 0.0)


def devices(tree: HostTree, source: str, more: str = "") -> dict[str, list[str]]:
    """Return the nodes of each device, as they are shown."""
    snapshot = scanned(tree, source, more)
    return {one.id: [n.shown for n in one.nodes] for one in snapshot.devices.values()}


def values(tree: HostTree, source: str, more: str = "") -> dict[str, str]:
    """Return the variables of the first node of the only device."""
    (device,) = scanned(tree, source, more).devices.values()
    return variables(device.nodes[0], device.id, device.nodes)


def skipped(tree: HostTree, source: str, more: str = "") -> dict[str, str]:
    """Return what is not offered, and why."""
    return {one.candidate: one.reason for one in scanned(tree, source, more).skipped}


def test_each_node_is_offered_by_split_though_some_share_a_place(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    found = devices(
        tree, "{usb: {device: 1209:0001, node: [video4linux, sound, tty], split: true}}"
    )
    assert found == {
        f"{BOTH}:1.0": ["/dev/ttyACM0"],
        f"{BOTH}:1.2-0": ["/dev/video0"],
        f"{BOTH}:1.2-1": ["/dev/video1"],
        f"{BOTH}:1.10-0": ["/dev/snd/controlC0"],
        f"{BOTH}:1.10-1": ["/dev/snd/pcmC0D0c"],
    }


def test_strings_have_no_blanks_at_their_ends_and_numbers_are_decimal(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    found = values(tree, "{usb: {product: Both, serial: 'A,1', node: sound, interface: 10}}")
    assert (found["usb.product"], found["usb.interface"]) == ("Both", "10")
    assert found["usb.hub"] == "pci-0000:00:14.0-usbv2-0:1.2"
    assert found["driver"] == "snd-usb-audio"


def test_class_interface_and_driver_are_about_one_interface(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    nodes = "node: [{subsystem: tty, optional: true}, {subsystem: video4linux, optional: true}]"
    assert devices(tree, f"{{usb: {{class: video, driver: cdc_acm, {nodes}}}}}") == {}
    assert devices(tree, f"{{usb: {{class: video, driver: uvc*, {nodes}}}}}") == {
        BOTH: ["/dev/video0", "/dev/video1"]
    }
    assert devices(tree, f"{{usb: {{class: [video, cdc], interface: [0, 1], {nodes}}}}}") == {
        BOTH: ["/dev/ttyACM0"]
    }
    assert devices(tree, "{usb: {class: misc, node: [tty, video4linux]}}") == {
        BOTH: ["/dev/ttyACM0", "/dev/video0", "/dev/video1"]
    }
    assert devices(tree, "{usb: {class: misc, interface: 0, node: tty}}") == {}


def test_nodes_without_an_interface_are_not_those_of_a_class(tree: HostTree) -> None:
    tree.hardware(f"""{CONTROLLER}
    usb 1-3 0bda:2838 class=ff0000 bus=1 dev=3
      if 1-3:1.0 ffffff
      dvb dvb0.frontend0 212:0
""")
    assert devices(tree, "{usb: {device: 0bda:2838, node: dvb}}") != {}
    assert devices(tree, "{usb: {class: vendor, node: dvb}}") == {}


def test_hubs_are_found_and_excluded_by_what_they_are(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    source = "{usb: {class: hub, exclude: [1d6b:*, {product: Hub}]}}"
    assert list(devices(tree, source)) == ["pci-0000:00:14.0-usbv2-0:1.2"]
    assert skipped(tree, source) == {"usb1": "excluded", "1-1": "excluded"}


def test_a_role_and_an_optional_node(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    source = "usb: {device: '1209:*', node: [tty, {subsystem: hidraw, optional: true}]}"
    found = values(tree, f"{{{source}}}")
    assert (found["tty.path"], "hidraw.path" in found) == ("/dev/ttyACM0", False)
    named = "usb: {device: 1209:0001, node: {subsystem: video4linux, name: video*}}, as: camera"
    assert values(tree, f"{{{named}}}")["camera.name"] == "video0"


def test_a_group_of_two_sources_is_complete_or_not_offered(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    group = ', group: "${usb.port}"'
    two = "{usb: {device: 1209:0001, node: tty}, as: modem}, {usb: {class: video, node: [video4linux%s]}, as: %s}"
    assert devices(tree, two % ("", "camera"), group) == {
        BOTH: ["/dev/ttyACM0", "/dev/video0", "/dev/video1"]
    }
    lacking = two.replace(", as: %s}", "}") % ", media"
    assert devices(tree, lacking, group) == {}
    reasons = skipped(tree, lacking, group).values()
    assert any("no media node" in reason for reason in reasons)


def test_a_group_with_the_usb_node_of_a_device_that_is_partly_offered(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    text = (
        "version: v1\nresources: [{name: example.com/a, sources: [usb: 1209:0001],"
        ' group: "${usb.port}"}]'
    )
    (resource,) = loads(text).require().resources
    files = HostFiles(str(tree.root))
    scanner = Scanner.of(resource, files, Policy(), "node", hold_s=0.0)
    found = scanner.select(read_all(scanner.roots, files))
    held = {"/dev/ttyACM0": "example.com/b"}
    snapshot = scanner.snapshot(found, Snapshot(), held.get, 0.0)
    assert snapshot.devices == {}


VFS: Final = """
pci 0000:3a:00.0 8086:2030 class=060400 driver=pcieport
  pci 0000:3b:00.0 8086:1572 class=020000 driver=i40e numa=0
    net ens1f0
  pci 0000:3b:02.0 8086:154c class=020000 driver=iavf numa=0
  pci 0000:3b:02.1 8086:154c class=020000 numa=0
pci 0001:3b:00.0 8086:1572 class=020000 driver=i40e numa=1
link /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.0/physfn /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0
link /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.1/physfn /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0
link /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/virtfn0 /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.0
link /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/virtfn1 /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.1
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("pf: '3b:00.*'", ["0000:3b:02.0", "0000:3b:02.1"]),
        ("pf: '3B:00.0'", ["0000:3b:02.0", "0000:3b:02.1"]),
        ("pf: ens1*", ["0000:3b:02.0", "0000:3b:02.1"]),
        ("pf: ENS1*", []),
        ("pf: '0001:*'", []),
        ("driver: none", ["0000:3b:02.1"]),
        ("driver: '*', device: 8086:154C", ["0000:3b:02.0"]),
        ("driver: 'n*'", []),
        ("driver: [none, iavf]", ["0000:3b:02.0", "0000:3b:02.1"]),
        ("address: '3b:00.*'", ["0000:3b:00.0"]),
        ("address: '*:3b:00.0'", ["0000:3b:00.0", "0001:3b:00.0"]),
        ("address: '0001:3B:00.0'", ["0001:3b:00.0"]),
        ("address: '3b:*', exclude: {pf: '*'}", ["0000:3b:00.0"]),
        ("class: network, exclude: [8086:154c, {address: '0001:*'}]", ["0000:3b:00.0"]),
        ("class: bridge, exclude: {device: '8086:2030'}", []),
    ],
)  # fmt: skip
def test_functions(options: str, found: list[str], tree: HostTree) -> None:
    tree.hardware(VFS)
    assert list(devices(tree, f"{{pci: {{{options}, node: none}}}}")) == found


def test_what_a_function_without_a_node_gives(tree: HostTree) -> None:
    tree.hardware(VFS)
    found = values(tree, "{pci: {pf: ens1f0, driver: none, node: none}}")
    assert (found["pci.pf"], found["pci.vf"]) == ("0000:3b:00.0", "1")
    assert (found["place"], found["subsystem"]) == ("pci-0000:3b:02.1", "pci")
    assert found["syspath"].endswith("/0000:3b:02.1")


def test_a_group_without_an_iommu(tree: HostTree) -> None:
    tree.hardware("""
pci 0000:00:05.0 8086:1521 class=020000 driver=vfio-pci group=0
pci 0000:00:06.0 8086:1521 class=020000 driver=vfio-pci
dir virtual
  vfio noiommu-0 243:0
""")
    source = "{pci: {device: 8086:1521, node: vfio}}"
    assert devices(tree, source) == {"0000:00:05.0": ["/dev/vfio/noiommu-0"]}
    assert skipped(tree, source) == {"0000:00:06.0": "has no IOMMU group: the IOMMU is off"}
    assert values(tree, source)["place"] == "pci-0000:00:05.0"


def test_the_head_of_a_multipath_disk_without_its_partitions(tree: HostTree) -> None:
    tree.hardware("""
pci 0000:2a:00.0 1e0f:0013 class=010802 driver=nvme numa=1
  nvme nvme2 240:2
    block nvme2c2n1
pci 0000:01:00.0 1e0f:0013 class=010802 driver=nvme numa=0
  nvme nvme0 240:0
    block nvme0n1 259:0 DEVTYPE=disk
      block nvme0n1p1 259:1 DEVTYPE=partition partition=1
dir virtual
  dir nvme-subsystem
    nvme-subsystem nvme-subsys2
      block nvme2n1 259:9 DEVTYPE=disk
        block nvme2n1p1 259:10 DEVTYPE=partition partition=1
""")
    assert devices(tree, "{pci: {class: nvme, node: block, inUse: true}}") == {
        "0000:01:00.0": ["/dev/nvme0n1"],
        "0000:2a:00.0": ["/dev/nvme2n1"],
    }


def test_a_disk_in_use_is_not_given_by_another_node_of_it(tree: HostTree) -> None:
    tree.hardware("""
pci 0000:01:00.0 1e0f:0013 class=010802 driver=nvme numa=0
  nvme nvme0 240:0
    block nvme0n1 259:0 DEVTYPE=disk
""")
    tree.file("/proc/1/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n")
    source = "{pci: {class: nvme, node: [nvme, block]}}"
    assert devices(tree, source) == {}
    assert skipped(tree, source)["/dev/nvme0n1"].startswith("in use: ")


def test_a_controller_of_the_platform(tree: HostTree) -> None:
    tree.hardware("""
dir platform
  platform xhci-hcd.0.auto driver=xhci-hcd
    usb usb3 1d6b:0003 class=090003 bus=3 dev=1 version=3.20
      usb 3-1 0403:6001 bus=3 dev=2
        if 3-1:1.0 ffffff ftdi_sio
          usb-serial ttyUSB0 port_number=0
            tty ttyUSB0 188:0
          usb-serial ttyUSB1 port_number=1
            tty ttyUSB1 188:1
""")
    found = devices(tree, "{usb: {device: 0403:6001, node: tty, split: true}}")
    assert found == {
        "platform-xhci-hcd.0.auto-usbv3-0:1:1.0-port0": ["/dev/ttyUSB0"],
        "platform-xhci-hcd.0.auto-usbv3-0:1:1.0-port1": ["/dev/ttyUSB1"],
    }
    assert devices(tree, "{usb: {serial: '*', node: tty}}") == {}


def test_values_that_are_no_text(tree: HostTree) -> None:
    tree.hardware("hwmon hwmon0 200:0 label=x other=y long=z\n")
    at = "/sys/devices/hwmon0"
    (tree.root / at[1:] / "label").write_bytes(b"\xff\xfe\n")
    (tree.root / at[1:] / "other").write_bytes(b"a\x01\nb\n")
    tree.file(f"{at}/long", "x" * 4097)
    for name in ("label", "other", "long"):
        assert devices(tree, f"{{sysfs: {{subsystem: hwmon, attr: {{{name}: '*'}}}}}}") == {}
    with (tree.root / at[1:] / "uevent").open("ab") as file:
        file.write(b"HID_NAME=\xff\nOF_NAME=gpio\n")
    found = devices(tree, "{sysfs: {subsystem: hwmon, uevent: {OF_NAME: gpio}}}")
    assert found == {"hwmon0": ["/dev/hwmon0"]}


def test_attributes_below_directories_and_links(tree: HostTree) -> None:
    tree.hardware("""
dir platform
  platform board.0
    misc thing 10:60 own=1
""")
    at = "/sys/devices/platform/board.0"
    tree.file(f"{at}/misc/thing/queue/model", " X2\n")
    tree.file(f"{at}/misc/state", "up\n")
    tree.link(f"{at}/misc/thing/link", "..")
    tree.file("/etc/secret", "up\n")
    tree.link(f"{at}/misc/thing/out", "../../../../../../etc")
    tree.link(f"{at}/misc/thing/far", "/etc/secret")
    for attr, there in (
        ("queue/model: X2", True),
        ("link/state: up", True),
        ("out/secret: up", False),
        ("far: up", False),
        ("queue: '*'", False),
    ):
        found = devices(tree, f"{{sysfs: {{subsystem: misc, attr: {{{attr}}}}}}}")
        assert bool(found) == there, attr
    assert values(tree, "{sysfs: misc}", ", allocate: {env: {A: '${attr.own}'}}")["attr.own"] == "1"


def test_each_of_several_parents_is_above(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    source = "{sysfs: {subsystem: tty, parent: [%s]}}"
    usb = "{subsystem: usb, attr: {idVendor: '1209'}}"
    pci = "{subsystem: pci, driver: xhci_hcd, uevent: {PCI_ID: '8086:*'}}"
    assert list(devices(tree, source % f"{usb}, {pci}")) == ["ttyACM0"]
    both = "{subsystem: usb, driver: xhci_hcd}"
    assert devices(tree, source % f"{usb}, {both}") == {}
    excluded = "{sysfs: {subsystem: tty, exclude: {parent: %s}}}"
    assert devices(tree, excluded % usb) == {}
    assert list(devices(tree, excluded % both)) == ["ttyACM0"]


def test_the_driver_of_a_sysfs_source_is_the_nearest_above_that_devices_shows(
    tree: HostTree,
) -> None:
    tree.hardware(COMPOSITE)
    assert list(devices(tree, "{sysfs: {subsystem: tty, driver: cdc_acm}}")) == ["ttyACM0"]
    assert devices(tree, "{sysfs: {subsystem: tty, driver: xhci_hcd}}") == {}
    assert devices(tree, "{sysfs: {subsystem: tty, exclude: {driver: cdc_acm}}}") == {}


def test_a_usb_port_is_also_the_kernels_name(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    assert list(devices(tree, "{usb: {port: 1-1.2.3}}")) == [BOTH]


def test_pci_functions_are_in_hexadecimal_order(tree: HostTree) -> None:
    addresses = ("0000:01:00.0", "0000:0a:00.0", "0000:00:1f.3", "0000:00:02.0")
    tree.hardware("\n".join(f"pci {one} 144d:a80a class=010802" for one in addresses))
    assert list(devices(tree, "{pci: {class: nvme, node: none}}")) == sorted(addresses)


def test_a_path_with_a_slash_at_its_end_is_that_path(tree: HostTree) -> None:
    tree.char("/dev/ttyUSB0")
    assert devices(tree, "/dev/ttyUSB0/") == {"ttyUSB0": ["/dev/ttyUSB0"]}


def test_a_node_of_sysfs_knows_the_usb_device_above_it(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    found = values(tree, "{sysfs: {subsystem: video4linux, attr: {index: '0'}}}")
    assert (found["usb.device"], found["usb.interface"]) == ("1209:0001", "2")
    assert found["place"] == f"{BOTH}:1.2"


def test_a_subsystem_that_is_a_class_and_a_bus(tree: HostTree) -> None:
    """CONFIG_GPIO_SYSFS: /sys/class/gpio is not where the nodes are."""
    tree.hardware("gpio gpiochip0 254:0\n")
    tree.directory("/sys/devices/gpiochip0/gpio/gpiochip512")
    tree.link("/sys/class/gpio/gpiochip512", "../../devices/gpiochip0/gpio/gpiochip512")
    assert devices(tree, "{sysfs: gpio}") == {"gpiochip0": ["/dev/gpiochip0"]}


def test_rubbish_in_numbers_is_no_failure(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    below = next((tree.root / "sys/devices").rglob("1-1.2.3:1.0"))
    (below / "bInterfaceNumber").write_text("what\n")
    tty = next((tree.root / "sys/devices").rglob("ttyACM0"))
    (tty / "uevent").write_text("MAJOR=x\nMINOR=\nDEVNAME=ttyACM0\n")
    (tty / "dev").write_text("x:\n")
    snapshot = scanned(tree, "{usb: {device: 1209:0001, node: tty}}")
    assert (snapshot.error, snapshot.devices) == (None, {})


def test_long_places_have_short_ids(tree: HostTree) -> None:
    tree.hardware(f"""
dir platform
  platform {"a" * 60}.usb
    usb usb1 1d6b:0002 class=090001 bus=1 dev=1
      usb 1-1 0403:6001 bus=1 dev=2
""")
    (device_id,) = devices(tree, "{usb: 0403:6001}")
    assert len(device_id) == 63


def test_a_class_that_is_not_there_yet_is_not_missing(tree: HostTree) -> None:
    tree.hardware(COMPOSITE)
    snapshot = scanned(tree, "{usb: {device: 0403:6001, node: hidraw}}")
    assert snapshot.notes == ()
    assert snapshot.why_none() == ("none of 1 is usb 0403:6001, node hidraw: 1-1.2.3",)


def warnings(tree: HostTree, source: str, more: str = "") -> tuple[str, ...]:
    """Return the warnings of `plan`."""
    text = f"version: v1\nresources: [{{name: example.com/a, sources: [{source}]{more}}}]"
    (found,) = report(loads(text).require(), HostFiles(str(tree.root)), Policy(), "node")
    return found.warnings


def test_what_is_surely_not_meant(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/zigbee.tree").read_text())
    assert (
        "usb 10c4:ea60 has tty nodes, but the USB node is handed out: node: tty gives /dev/ttyUSB0"
    ) in warnings(tree, "{usb: 10c4:ea60}")
    assert not any("tty" in one for one in warnings(tree, "{usb: {device: 10c4:ea60, node: usb}}"))


def test_a_plan_knows_what_the_usb_node_claims(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/ftdi.tree").read_text())
    text = (
        "version: v1\nresources:\n- {name: example.com/a, sources: [usb: 0403:6001]}\n"
        "- {name: example.com/b, sources: [{usb: {device: 0403:6001, node: tty}}]}\n"
    )
    first, second = report(loads(text).require(), HostFiles(str(tree.root)), Policy(), "node")
    assert (len(first.snapshot.devices), len(second.snapshot.devices)) == (2, 0)
    reasons = {one.reason for one in second.snapshot.skipped}
    assert reasons == {"example.com/a offers nodes of it already"}


def explained(tree: HostTree, source: str) -> list[str]:
    """Return what `plan --explain` says of each candidate."""
    text = f"version: v1\nresources: [{{name: example.com/a, sources: [{source}]}}]"
    config, files = loads(text).require(), HostFiles(str(tree.root))
    (planned,) = report(config, files, Policy(), "node", explained=True)
    (one,) = planned.more["explain"]
    return [
        f"{found['candidate']}: {', '.join(found['paths'])}; {'; '.join(found['reasons'])}"
        for found in one["candidates"]
    ]


def test_why_there_is_no_tty(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/not-found.tree").read_text())
    first, second, *_ = explained(tree, "{usb: {device: 10c4:ea60, product: CP2102*, node: tty}}")
    assert "no driver is bound to 1-1:1.0" in first
    assert "it is not authorized" in second


def test_who_may_open_a_node_and_why_it_is_unhealthy(tree: HostTree) -> None:
    tree.hardware((HERE / "trees/ftdi.tree").read_text())
    tree.file("/etc/group", "dialout:x:20:\n")
    os.chown(tree.root / "dev/ttyUSB1", 0, 20)
    tree.remove("/dev/ttyUSB0")
    first, second = sorted(explained(tree, "{usb: {device: 0403:6001, node: tty}}"))
    assert "/dev/ttyUSB1;" in first
    assert "supplementalGroups: [20], or inject: cdi" in first
    assert "is not there, but the kernel has it" in second
