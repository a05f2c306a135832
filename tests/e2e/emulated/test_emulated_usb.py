"""Sticks that come, go and change places, before kubelet's own device manager.

The kernel, its drivers, sysfs, the events and the nodes are real; only the sticks are QEMU's.
Devhost finds changes by events alone here: its rescan is off.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.e2e.emulated.sticks import PATIENCE, Sticks, place, stick
from tests.support.daemon import Daemon, ids_of, until
from tests.support.realkubelet import RealKubelet

PORTS: Final = "example.com/port"
SERIALS: Final = "example.com/serial"
CONFIG: Final = f"""
version: v1
resources:
  - name: {PORTS}
    sources: [usb: {{device: "0403:6001", node: tty}}]
    removeMissingAfter: never
    overlap: allow
    allocate: {{env: {{SERIAL: "${{usb.serial}}"}}}}
  - name: {SERIALS}
    sources: [usb: {{device: "0403:6001", node: tty}}]
    removeMissingAfter: never
    overlap: allow
    id: ${{usb.serial}}
    allocate: {{env: {{SERIAL: "${{usb.serial}}"}}}}
"""


# The source of each kind of device, its ID, and its node in a pod.
KINDS: Final = {
    "example.com/keyboard": ("usb: {class: hid, node: hidraw}", place("2.3"), r"/dev/hidraw\d+"),
    "example.com/sound": ("usb: {class: audio, node: sound}", place("3"), r"/dev/snd/controlC\d+"),
    "example.com/disk": ("usb: {class: storage, node: block}", place("4", usb=3), r"/dev/sd[a-z]"),
}


@dataclass
class Node:
    """A node with kubelet and devhost."""

    kubelet: RealKubelet
    daemon: Daemon

    async def start(self, config: str) -> None:
        """Start devhost, and wait until kubelet has its resources."""
        await self.daemon.start(config)
        for resource in yaml.safe_load(config)["resources"]:
            await self.kubelet.wait(resource["name"], 0, 0, timeout=PATIENCE)

    async def has(self, resource: str, healthy: set[str], unhealthy: int = 0) -> None:
        """Wait for the counts of a resource, and check the IDs."""
        total = len(healthy) + unhealthy
        await self.kubelet.wait(resource, total, len(healthy), timeout=PATIENCE)
        assert await ids_of(self.kubelet, resource) == healthy

    async def admitted(self, resource: str, count: int) -> dict[str, str]:
        """Give each device to a pod; return the nodes by the serial numbers in the pods' variables."""
        nodes = {}
        for number in range(count):
            pods = await self.kubelet.admit(f"{resource[-4:]}{number}", {"c": {resource: 1}})
            answer = pods["c"]
            (device,) = answer["devices"]
            nodes[answer["envs"]["SERIAL"]] = device["hostPath"]
        for number in range(count):
            await self.kubelet.free(f"{resource[-4:]}{number}")
        return nodes


@pytest.fixture
async def node(
    real_binary: Path, directory: Path, daemon: Daemon, sticks: Sticks
) -> AsyncIterator[Node]:
    """kubelet; devhost is not started, and no stick is plugged in."""
    del sticks
    async with RealKubelet(real_binary, directory / "plugins", daemon.pod_resources) as kubelet:
        yield Node(kubelet, daemon)
        await daemon.kill()


def nodes_of(*serials: str) -> dict[str, str]:
    """Return the nodes of sticks, as the kernel says."""
    return {serial: f"/dev/{next(stick(serial).rglob('ttyUSB*')).name}" for serial in serials}


async def test_stick_in_the_same_or_another_port_keeps_its_id(node: Node, sticks: Sticks) -> None:
    await node.start(CONFIG)
    sticks.serial("A", "1")
    await node.has(PORTS, {place("1")})
    await node.has(SERIALS, {"A"})
    assert await node.admitted(SERIALS, 1) == nodes_of("A")

    sticks.unplug("A")
    await node.has(PORTS, set(), unhealthy=1)
    await node.has(SERIALS, set(), unhealthy=1)

    sticks.serial("A", "1")
    await node.has(PORTS, {place("1")})
    await node.has(SERIALS, {"A"})

    sticks.unplug("A")
    await node.has(PORTS, set(), unhealthy=1)
    sticks.serial("A", "3")
    await node.has(PORTS, {place("3")}, unhealthy=1)
    await node.has(SERIALS, {"A"})


async def test_sticks_that_change_places_change_their_nodes(node: Node, sticks: Sticks) -> None:
    await node.start(CONFIG)
    sticks.serial("A", "1")
    await node.has(SERIALS, {"A"})
    sticks.serial("B", "2")
    await node.has(SERIALS, {"A", "B"})
    before = nodes_of("A", "B")
    assert await node.admitted(PORTS, 2) == await node.admitted(SERIALS, 2) == before

    sticks.unplug("A")
    sticks.unplug("B")
    await node.has(PORTS, set(), unhealthy=2)
    await node.has(SERIALS, set(), unhealthy=2)
    sticks.serial("B", "1")  # which has A's node then, so that A has to leave the list
    # The kernel would number two that come at the same time in any order.
    await node.has(PORTS, {place("1")}, unhealthy=1)
    sticks.serial("A", "2")
    await node.has(PORTS, {place("1"), place("2")})
    await node.has(SERIALS, {"A", "B"})
    after = nodes_of("A", "B")
    assert after == {"A": before["B"], "B": before["A"]}
    assert await node.admitted(PORTS, 2) == await node.admitted(SERIALS, 2) == after


async def test_stick_withdrawn_or_without_a_driver_is_unhealthy_until_it_is_back(
    node: Node, sticks: Sticks
) -> None:
    await node.start(CONFIG)
    sticks.serial("A", "1")
    sticks.serial("B", "2")
    await node.has(SERIALS, {"A", "B"})
    authorized, driver = stick("A") / "authorized", Path("/sys/bus/usb/drivers/ftdi_sio")
    interface = f"{stick('A').name}:1.0"
    for file, away, back, again in (
        (authorized, "0", "1", authorized),
        (driver / "unbind", interface, interface, driver / "bind"),
    ):
        file.write_text(away)
        await node.has(PORTS, {place("2")}, unhealthy=1)
        await node.has(SERIALS, {"B"}, unhealthy=1)
        again.write_text(back)
        await node.has(PORTS, {place("1"), place("2")})
        await node.has(SERIALS, {"A", "B"})


async def test_stick_with_a_loose_contact_is_offered_in_the_end(node: Node, sticks: Sticks) -> None:
    await node.start(CONFIG)
    sticks.serial("A", "1")
    await node.has(SERIALS, {"A"})
    for _ in range(10):
        sticks.unplug("A")
        sticks.serial("A", "1")
    sticks.serial("B", "2")  # a later event: what came of those before is known then
    await node.has(SERIALS, {"A", "B"})
    await node.has(PORTS, {place("1"), place("2")})
    assert await node.admitted(SERIALS, 2) == nodes_of("A", "B")


async def test_stick_by_the_entry_that_devhost_prints_is_the_only_one(
    node: Node, sticks: Sticks
) -> None:
    sticks.serial("A", "1")
    sticks.serial("B", "2")
    await until(Path("/dev/ttyUSB1").exists, "both sticks")
    path = nodes_of("A")["A"]
    printed = [sys.executable, "-m", "devhost", "devices", path, "-o", "yaml"]
    (entry,) = yaml.safe_load(await asyncio.to_thread(subprocess.check_output, printed))
    name = entry["name"]
    await node.daemon.start(yaml.dump({"version": "v1", "resources": [entry]}))
    await node.kubelet.wait(name, 1, 1, timeout=PATIENCE)
    (device,) = await ids_of(node.kubelet, name)
    sticks.unplug("A")
    await node.has(name, set(), unhealthy=1)
    sticks.serial("A", "1")
    await node.has(name, {device})


async def test_keyboard_sound_card_and_disk_have_their_nodes(node: Node, sticks: Sticks) -> None:
    resources = [
        f"  - {{name: {name}, sources: [{source}], removeMissingAfter: never}}\n"
        for name, (source, *_) in KINDS.items()
    ]
    node.daemon.flags = ["--allow-device", "hidraw", "--allow-device", "/dev/sd*"]
    await node.start(f"version: v1\nresources:\n{''.join(resources)}")
    sticks.plug("hub", "usb-hub", "2")
    sticks.plug("keyboard", "usb-kbd", "2.3")
    sticks.plug("sound", "usb-audio", "3", audiodev="silence")
    sticks.disk("disk", "4")
    for name, (_, device, pattern) in KINDS.items():
        await node.has(name, {device})
        answer = (await node.kubelet.admit(name[-4:], {"c": {name: 1}}))["c"]
        nodes = [device["hostPath"] for device in answer["devices"]]
        assert any(re.fullmatch(pattern, path) for path in nodes), nodes
    for name in KINDS:
        sticks.unplug(name.partition("/")[2])
        await node.has(name, set(), unhealthy=1)
