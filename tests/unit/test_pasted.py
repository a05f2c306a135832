"""What `devhost devices -o yaml` prints offers exactly that device, also after a replug."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.drafts.draft import resource_lines
from devhost.drafts.entries import build_entries
from devhost.drafts.machine import Machine
from devhost.hostfs.files import HostFiles
from devhost.model.device import HostDevice
from tests.support.hardware import HostTree
from tests.support.root import needs_root

TREES: Final = sorted((Path(__file__).parent / "trees").glob("*.tree"))
EVERYTHING: Final = Policy(("*",))
ALL_DISKS: Final = Policy(allow_devices=("block",))
# The kernel's name is all that tells it from others.
COUNTED_ALONE: Final = (("gpiochip1", "gpio"),)
# The kernel uses another function of the group.
KERNELS_OWN: Final = (("0000:86:00.0", "vfio"), ("6", "vfio"))
_USB: Final = re.compile(r"(usb)?([0-9]+)(-.*)?")
_COUNTED: Final = re.compile(r"((?:i2c-)|[A-Za-z_-]*[A-Za-z_-])([0-9]+)(.*)")
_SOUND: Final = re.compile(r"(card|controlC|pcmC|hwC|midiC)([0-9]+)(.*)")

pytestmark = needs_root


class Line:
    """A line of a tree."""

    def __init__(self, text: str, owner: int) -> None:
        self.indent = text[: len(text) - len(text.lstrip())]
        self.subsystem, self.name, *self.rest = text.strip().split(" ")
        self.owner = owner  # the line of the USB device or PCI function that it is below

    @property
    def is_node(self) -> bool:
        """Whether a container can be given it."""
        if self.subsystem in ("usb", "pci"):
            return False
        number = bool(self.rest) and re.fullmatch("[0-9]+:[0-9]+", self.rest[0])
        return self.subsystem == "net" or bool(number)

    def __str__(self) -> str:
        return f"{self.indent}{' '.join((self.subsystem, self.name, *self.rest))}"


def parsed(text: str) -> list[Line]:
    """Return the devices of a tree; links are left out."""
    above: list[tuple[int, int]] = []
    lines: list[Line] = []
    for one in text.splitlines():
        if one.split("#")[0].strip() and one.split()[0] != "link":
            depth = len(one) - len(one.lstrip())
            above = [pair for pair in above if pair[0] < depth]
            if one.split()[0] in ("usb", "pci"):
                above.append((depth, len(lines)))
            lines.append(Line(one, above[-1][1] if above else -1))
    return lines


def links(text: str) -> list[str]:
    """Return the links of a tree that are of /sys."""
    return [one for one in text.splitlines() if one.startswith("link /sys")]


def renumbered(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the same devices after a replug of all, in another order.

    Bus and device numbers are others, and what the kernel counts is counted the other way round,
    but for the nodes of one device.
    """
    others = recounted(lines)
    for line in lines:
        name, rest = line.name, list(line.rest)
        if line.subsystem in ("usb", "if") and (match := _USB.fullmatch(name)):
            name = f"{match[1] or ''}{int(match[2]) + 2}{match[3] or ''}"
            rest = [
                f"bus={int(word[4:]) + 2}" if word.startswith("bus=")
                else f"dev={int(word[4:]) + 40}" if word.startswith("dev=")
                else word
                for word in rest
            ]  # fmt: skip
        elif line.subsystem == "vfio":
            name = f"{name}0"
        elif line.subsystem == "pci":
            rest = [f"{word}0" if word.startswith("group=") else word for word in rest]
        elif (found := family(line)) is not None:
            stem, _, end = parts(line)
            name = f"{stem}{others[found]}{end}"
        yield f"{line.indent}{' '.join((line.subsystem, name, *rest))}"


def recounted(lines: Sequence[Line]) -> dict[tuple[str, int], int]:
    """Return other numbers of what is counted, by family and number."""
    counts: dict[str, dict[int, list[int]]] = {}  # by family and owner
    for line in lines:
        if (found := family(line)) is not None:
            owners = counts.setdefault(found[0], {})
            numbers = owners.setdefault(line.owner, [])
            numbers += [found[1]] if found[1] not in numbers else []
    others: dict[tuple[str, int], int] = {}
    for name, owners in counts.items():
        free = sorted({number for numbers in owners.values() for number in numbers})
        for numbers in reversed(owners.values()):
            for number in sorted(numbers):
                if (name, number) not in others:
                    others[name, number] = free.pop(0) + 1
    return others


def parts(line: Line) -> tuple[str, str, str]:
    pattern = _SOUND if line.subsystem == "sound" else _COUNTED
    match = pattern.fullmatch(line.name)
    return (match[1], match[2], match[3]) if match else ("", "", "")


def family(line: Line) -> tuple[str, int] | None:
    """Return what is counted together, and the number."""
    if line.subsystem in ("usb", "pci", "if", "dir", "platform", "acpi", "pnp", "hid"):
        return None
    stem, number, _ = parts(line)
    return ("sound" if line.subsystem == "sound" else stem, int(number)) if number else None


def offered(entry: str, tree: HostTree, policy: Policy = EVERYTHING) -> list[HostDevice]:
    config = loads(f"version: v1\nresources:\n{entry}").require()
    (found,) = report(config, HostFiles(str(tree.root)), policy, "node")
    return list(found.snapshot.devices.values())


def written(tree: HostTree, what: str) -> tuple[str, bool]:
    """Return the entry for what is named, and whether it is not commented out."""
    machine = Machine(HostFiles(str(tree.root)))
    (entry,) = build_entries(machine, machine.find(what))
    return "\n".join(resource_lines(entry.resource)), entry.active


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_entry_offers_its_node_also_after_a_replug(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    lines = parsed(text)
    before, after = HostTree(tmp_path / "before"), HostTree(tmp_path / "after")
    again = list(renumbered(lines))
    before.hardware("\n".join([*map(str, lines), *links(text)]))
    after.hardware("\n".join([*again, *links(text)]))
    for line, other in zip(lines, again, strict=True):
        if line.subsystem not in ("usb", "pci") and not line.is_node:
            continue
        entry, is_active = written(before, line.name)
        if (line.name, path.stem) in KERNELS_OWN:
            assert not offered(entry, before)
            continue
        (device,) = offered(entry, before)
        assert line.name in names(device), entry
        if (line.name, path.stem) in COUNTED_ALONE:
            assert not is_active
            continue
        assert is_active, entry
        (same,) = offered(entry, after)
        assert other.split()[1] in names(same), entry
        assert same.id == device.id, entry
        assert len(same.nodes) == len(device.nodes), entry


def names(device: HostDevice) -> set[str]:
    """Return the names of its nodes, and its own."""
    units = {node.hardware.label for node in device.nodes if node.hardware is not None}
    return {node.variables["name"] for node in device.nodes} | units


def test_entry_of_one_number_offers_all(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(next(path for path in TREES if path.stem == "ch340").read_text())
    both, _ = written(tree, "1a86:7523")
    assert len(offered(both, tree)) == 2


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
    entry, _ = written(before, "sdb")
    for tree, letter in ((before, "b"), (after, "a")):
        (disk,) = offered(entry, tree, ALL_DISKS)
        assert disk.healthy, disk.reason
        assert (disk.id, disk.nodes[0].key) == ("ata-SCRATCH", f"/dev/sd{letter}")
