"""An entry of `devhost devices -o yaml` offers exactly that device, also after a replug."""

from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.drafts.draft import DOMAIN, yaml_lines
from devhost.drafts.host_draft import build_host_entries
from devhost.drafts.machine import Machine
from devhost.hostfs.files import HostFiles
from devhost.model.device import HostDevice
from tests.support.hardware import HostTree
from tests.support.renumbering import others, parsed, renumbered
from tests.support.root import needs_root

TREES: Final = sorted((Path(__file__).parent / "trees").glob("*.tree"))
EVERYTHING: Final = Policy(("*",))
ALL_DISKS: Final = Policy(allow_devices=("block",))
# The kernel's name is all that tells it from others.
COUNTED_ALONE: Final = (("gpiochip1", "gpio"),)
# The kernel uses another function of the group.
KERNELS_OWN: Final = (("0000:86:00.0", "vfio"), ("6", "vfio"))
pytestmark = needs_root


def offered(entry: str, tree: HostTree, policy: Policy = EVERYTHING) -> list[HostDevice]:
    config = loads(f"version: v1\nresources:\n{entry}").require()
    (planned,) = report(config, HostFiles(str(tree.root)), policy, "node")
    return list(planned.snapshot.devices.values())


def written(tree: HostTree, wanted: str) -> list[tuple[str, bool]]:
    """Return the entries for what is named, and whether they are not commented out."""
    machine = Machine(HostFiles(str(tree.root)))
    entries = build_host_entries(machine, DOMAIN, machine.find(wanted))
    return [("\n".join(yaml_lines([entry.resource])), entry.active) for entry in entries]


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_entry_offers_its_node_also_after_a_replug(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    lines, rest = parsed(text), [text_line for text_line in others(text) if "/sys" in text_line]
    before, after = HostTree(tmp_path / "before"), HostTree(tmp_path / "after")
    again = renumbered(lines)
    before.hardware("\n".join([*map(str, lines), *rest]))
    after.hardware("\n".join([*again, *rest]))
    for line, later in zip(lines, again, strict=True):
        if line.subsystem not in ("usb", "pci") and not line.is_node:
            continue
        for entry, is_active in written(before, line.name):
            if (line.name, path.stem) in KERNELS_OWN:
                assert not offered(entry, before)
                continue
            if "split: true" in entry:
                assert {line.name} == set.union(*map(units, offered(entry, before)))
                continue
            (device,) = offered(entry, before)
            assert line.name in names(device), entry
            if (line.name, path.stem) in COUNTED_ALONE or (
                path.stem == "camera-csi" and line.subsystem == "video4linux"
            ):
                assert not is_active
                continue
            assert is_active, entry
            (same,) = offered(entry, after)
            assert later.split()[1] in names(same), entry
            assert same.id == device.id, entry
            assert len(same.nodes) == len(device.nodes), entry


def names(device: HostDevice) -> set[str]:
    """Return the names of its nodes, and its own."""
    return {node.variables["name"] for node in device.nodes} | units(device)


def units(device: HostDevice) -> set[str]:
    return {node.hardware.label for node in device.nodes if node.hardware is not None}


def test_entry_for_a_disk_follows_it_to_another_letter(tmp_path: Path) -> None:
    trees = []
    for letters in ("ab", "ba"):
        tree = HostTree(tmp_path / letters)
        first, second = letters
        tree.hardware(
            f"""
            pci 0000:00:17.0 8086:9dd3 class=010601 driver=ahci
              dir ata1
                scsi 0:0:0:0 driver=sd
                  block sd{first} 8:0 DEVTYPE=disk
              dir ata2
                scsi 1:0:0:0 driver=sd
                  block sd{second} 8:16 DEVTYPE=disk
            link disk/by-id/ata-PHOTOS sd{first}
            link disk/by-id/ata-SCRATCH sd{second}
            """
        )
        trees.append(tree)
    before, after = trees
    ((entry, _),) = written(before, "sdb")
    for tree, letter in ((before, "b"), (after, "a")):
        (disk,) = offered(entry, tree, ALL_DISKS)
        assert disk.healthy, disk.reason
        assert (disk.id, disk.nodes[0].key) == ("ata-SCRATCH", f"/dev/sd{letter}")
