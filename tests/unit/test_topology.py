"""NUMA nodes of devices, from a sysfs below a root."""

import os
from pathlib import Path

import pytest

from devhost.discovery.scan import placed
from devhost.hostfs.files import HostFiles
from devhost.model.device import Snapshot
from tests.support.scanning import Scans


class Host(Scans):
    """A host's /dev and /sys below a directory."""

    def node(self, name: str, number: tuple[int, int], *, block: bool = False) -> None:
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, 0o060660 if block else 0o020666, os.makedev(*number))

    def sysfs(self, number: tuple[int, int], place: str, *, block: bool = False) -> Path:
        """Make what sysfs has for a device node; ``place`` is below /sys/devices."""
        device = self.root / "sys/devices" / place
        device.mkdir(parents=True, exist_ok=True)
        links = self.root / "sys/dev" / ("block" if block else "char")
        links.mkdir(parents=True, exist_ok=True)
        (links / f"{number[0]}:{number[1]}").symlink_to(f"../../devices/{place}")
        return device

    def numa(self, place: str, number: int) -> None:
        device = self.root / "sys/devices" / place
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{number}\n")

    def found(self, sources: str, more: str = "") -> dict[str, tuple[int, ...]]:
        """Return the NUMA nodes of the devices of some sources."""
        self.configure(f"sources: [{sources}]\n{more}")
        return {device.id: device.numa_nodes for device in self.scan().devices.values()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two cards in two slots."""
    host = Host(tmp_path, "sources: [static: 0]")
    for card, slot in enumerate(("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0")):
        host.node(f"card{card}", (240, card))
        host.sysfs((240, card), f"{slot}/accel/card{card}")
        host.numa(slot, card)
    return host


def test_numa_node_of_a_character_device_is_of_its_bus(host: Host) -> None:
    assert host.found("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_numa_node_of_a_block_device_is_of_its_controller(host: Host) -> None:
    host.node("sdx", (241, 0), block=True)
    host.sysfs((241, 0), "pci0000:80/0000:80:1f.2/ata1/host0/block/sdx", block=True)
    host.numa("pci0000:80/0000:80:1f.2", 1)
    assert host.found("dev: sdx") == {"sdx": (1,)}


def test_numa_nodes_of_a_device_mapper_are_of_its_disks(host: Host) -> None:
    dm = host.sysfs((242, 0), "virtual/block/dm-0", block=True)
    (dm / "slaves").mkdir()
    for number in (0, 1):
        disk = host.root / f"sys/devices/disk{number}"
        disk.mkdir()
        (disk / "numa_node").write_text(str(number))
        (dm / "slaves" / f"disk{number}").symlink_to(f"../../../../disk{number}")
    host.node("mapper", (242, 0), block=True)
    assert host.found("dev: mapper") == {"mapper": (0, 1)}


@pytest.mark.parametrize("odd", ["none", "minus one", "virtual"])
def test_numa_nodes_are_of_all_devices_of_a_resource_or_none(host: Host, odd: str) -> None:
    """A resource that is mixed could not be aligned."""
    host.node("card2", (240, 2))
    if odd == "minus one":
        host.sysfs((240, 2), "pci0000:00/0000:00:02.0/card2")
        host.numa("pci0000:00/0000:00:02.0", -1)
    elif odd == "virtual":
        host.sysfs((240, 2), "virtual/misc/card2")
    assert host.found("dev: card.") == {"card0": (), "card1": (), "card2": ()}
    (host.root / "dev/card2").unlink()
    assert host.found("dev: card.")["card0"] == ()  # it is still listed
    host.last = Snapshot()
    assert host.found("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_numa_nodes_return_once_no_device_lacks_one(host: Host) -> None:
    """When the odd one has left, also by a scan that asks nothing again of devices as they were."""
    host.node("card2", (240, 2))
    host.found("dev: card.")
    files = HostFiles(str(host.root))
    left = {one: host.last.devices[one] for one in ("card0", "card1")}
    found, mixed = placed("auto", left, host.last, files, thorough=False)
    assert not mixed
    assert {one: device.numa_nodes for one, device in found.items()} == {
        "card0": (0,),
        "card1": (1,),
    }


def test_numa_node_of_a_missing_device_stays(host: Host) -> None:
    host.found("dev: card.")
    (host.root / "dev/card1").unlink()
    (host.root / "sys/dev/char/240:1").unlink()
    assert host.found("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_numa_nodes_of_a_group_are_of_all_its_nodes(host: Host) -> None:
    assert host.found("dev: card0, dev: card1", "group: both") == {"both": (0, 1)}


def test_numa_node_may_be_declared(host: Host) -> None:
    """For tokens too, which are nowhere by themselves."""
    assert host.found("dev: card.", "topology: 3") == {"card0": (3,), "card1": (3,)}
    assert host.found("dev: card.", "topology: none") == {"card0": (), "card1": ()}
    assert host.found("dev: card.") == {"card0": (0,), "card1": (1,)}
    host.last = Snapshot()
    assert host.found("static: 2", "topology: 1") == {"0": (1,), "1": (1,)}
    assert host.found("static: 2") == {"0": (), "1": ()}
