"""NUMA nodes of devices, from a sysfs below a root."""

import os
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner, placed
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.scanning import selected


class Host:
    """A host's /dev and /sys below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.last = Snapshot()

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

    def scan(self, sources: str, more: str = "") -> dict[str, tuple[int, ...]]:
        text = f"version: v1\nresources:\n- name: e.com/a\n  sources: [{sources}]\n{more}"
        (resource,) = loads(text).require().resources
        scanner = Scanner.of(resource, HostFiles(str(self.root)), Policy(), "n", hold_s=0.0)
        self.last = scanner.snapshot(selected(scanner), self.last, lambda _: None, 0.0)
        return {device.id: device.numa_nodes for device in self.last.devices.values()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two cards in two slots."""
    host = Host(tmp_path)
    for card, slot in enumerate(("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0")):
        host.node(f"card{card}", (240, card))
        host.sysfs((240, card), f"{slot}/accel/card{card}")
        host.numa(slot, card)
    return host


def test_a_character_device_is_where_its_bus_device_is(host: Host) -> None:
    assert host.scan("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_a_block_device_is_where_its_controller_is(host: Host) -> None:
    host.node("sdx", (241, 0), block=True)
    host.sysfs((241, 0), "pci0000:80/0000:80:1f.2/ata1/host0/block/sdx", block=True)
    host.numa("pci0000:80/0000:80:1f.2", 1)
    assert host.scan("dev: sdx") == {"sdx": (1,)}


def test_a_block_device_made_of_others_is_where_these_are(host: Host) -> None:
    dm = host.sysfs((242, 0), "virtual/block/dm-0", block=True)
    (dm / "slaves").mkdir()
    for number in (0, 1):
        disk = host.root / f"sys/devices/disk{number}"
        disk.mkdir()
        (disk / "numa_node").write_text(str(number))
        (dm / "slaves" / f"disk{number}").symlink_to(f"../../../../disk{number}")
    host.node("mapper", (242, 0), block=True)
    assert host.scan("dev: mapper") == {"mapper": (0, 1)}


@pytest.mark.parametrize("odd", ["none", "minus one", "virtual"])
def test_all_devices_of_a_resource_have_a_numa_node_or_none(host: Host, odd: str) -> None:
    """A resource that is mixed could not be aligned."""
    host.node("card2", (240, 2))
    if odd == "minus one":
        host.sysfs((240, 2), "pci0000:00/0000:00:02.0/card2")
        host.numa("pci0000:00/0000:00:02.0", -1)
    elif odd == "virtual":
        host.sysfs((240, 2), "virtual/misc/card2")
    assert host.scan("dev: card.") == {"card0": (), "card1": (), "card2": ()}
    (host.root / "dev/card2").unlink()
    assert host.scan("dev: card.")["card0"] == ()  # it is still listed
    host.last = Snapshot()
    assert host.scan("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_devices_are_placed_again_once_no_other_lacks_a_numa_node(host: Host) -> None:
    """When the odd one has left, also by a scan that asks nothing again of devices as they were."""
    host.node("card2", (240, 2))
    host.scan("dev: card.")
    files = HostFiles(str(host.root))
    left = {one: host.last.devices[one] for one in ("card0", "card1")}
    found, mixed = placed("auto", left, host.last, files, thorough=False)
    assert not mixed
    assert {one: device.numa_nodes for one, device in found.items()} == {
        "card0": (0,),
        "card1": (1,),
    }


def test_a_missing_device_stays_where_it_was(host: Host) -> None:
    host.scan("dev: card.")
    (host.root / "dev/card1").unlink()
    (host.root / "sys/dev/char/240:1").unlink()
    assert host.scan("dev: card.") == {"card0": (0,), "card1": (1,)}


def test_a_device_of_several_nodes_is_where_all_of_them_are(host: Host) -> None:
    assert host.scan("dev: card0, dev: card1", "  group: both\n") == {"both": (0, 1)}


def test_a_number_or_none_may_be_declared(host: Host) -> None:
    """For tokens too, which are nowhere by themselves."""
    assert host.scan("dev: card.", "  topology: 3\n") == {"card0": (3,), "card1": (3,)}
    assert host.scan("dev: card.", "  topology: none\n") == {"card0": (), "card1": ()}
    assert host.scan("dev: card.") == {"card0": (0,), "card1": (1,)}
    host.last = Snapshot()
    assert host.scan("static: 2", "  topology: 1\n") == {"0": (1,), "1": (1,)}
    assert host.scan("static: 2") == {"0": (), "1": ()}
