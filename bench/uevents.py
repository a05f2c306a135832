"""What do the kernel's events of devices cost, beside those of files? As root.

python -m bench.uevents [event] [burst] [scan] [plug] [--turns 40]

``event``: a device comes and goes, by turns a loop device and a node in a directory, until kubelet
has the list. ``burst``: 10,000 events that concern no resource. ``scan``: a scan of a host with 20
USB devices for 100 `usb` resources. ``plug``: there, one of the devices comes and goes, until
kubelet has the lists of the 5 resources that offer it.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import stat
import statistics
import sys
import tempfile
import threading
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc

from bench.latency import Kubelet
from bench.process import Process
from devhost.allocation.policy import Policy
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from devhost.testing import HostTree
from devhost.watch import uevents

FILE, DEVICE = "example.com/file", "example.com/device"
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
LOOP: Final = 78
NULL: Final = Path("/sys/devices/virtual/mem/null/uevent")
TTY: Final = Path("/sys/class/tty/tty63/uevent")
NULL_NUMBER: Final = os.makedev(1, 3)
EVENTS: Final = 10_000
PAUSE_S: Final = 0.3  # devhost waits for 0.1 s between two looks
LIST_S: Final = 10.0
STICKS, RESOURCES = 20, 100

Change = Callable[[], object]


class Lists(Kubelet):
    """Notes when a list of a resource has come."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.came: asyncio.Queue[float] = asyncio.Queue()

    def received(self, _resource: str) -> None:
        self.came.put_nowait(time.perf_counter())

    async def next(self, count: int = 1) -> float:
        """Return when so many lists have come."""
        async with asyncio.timeout(LIST_S):
            return [await self.came.get() for _ in range(count)][-1]

    def forget(self) -> None:
        """Forget the lists that have come."""
        while not self.came.empty():
            self.came.get_nowait()


class Listener:
    """Notes when the kernel tells of the loop device: its removal goes on for long after that."""

    def __init__(self) -> None:
        self._socket = uevents.open_socket()
        self._socket.setblocking(True)
        self.told = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            if f"/block/loop{LOOP}\0".encode() in self._socket.recv(8192):
                self.told = time.perf_counter()


def lay_out(root: Path, config: str) -> None:
    for directory in ("plugins", "state"):
        (root / directory).mkdir(parents=True)
    (root / "config.yaml").write_text(config)


@contextlib.asynccontextmanager
async def running(
    root: Path, config: str, count: int, *flags: str
) -> AsyncIterator[tuple[Lists, Process]]:
    """Run devhost before a kubelet, until that has so many resources."""
    lay_out(root, config)
    kubelet, server = Lists(root / "plugins"), grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{root}/plugins/kubelet.sock")
    await server.start()
    devhost = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "devhost", "run", str(root / "config.yaml")),
        *("--plugin-dir", str(root / "plugins"), "--state-dir", str(root / "state")),
        *flags,
        stderr=DEVNULL,
        stdout=DEVNULL,
    )
    try:
        await kubelet.until(count)
        await asyncio.sleep(PAUSE_S)
        yield kubelet, Process(devhost.pid)
    finally:
        devhost.terminate()
        await devhost.wait()
        await server.stop(None)


async def measure(root: Path, parts: list[str], turns: int) -> None:
    files, node = root / "nodes", root / "nodes" / "a"
    files.mkdir()
    allowed = ("--allow-path", f"/dev/loop{LOOP}", "--allow-path", f"{files}/*")
    flags = (*allowed, "--allow-device", f"{files}/*")
    config = f"""
version: v1
resources:
  - name: {FILE}
    sources: [directory: {{path: {files}, types: char}}]
    removeMissingAfter: never
  - name: {DEVICE}
    sources: [sysfs: {{subsystem: block, name: loop{LOOP}, inUse: true}}]
    removeMissingAfter: never
"""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        async with running(root / "devhost", config, 2, *flags) as (kubelet, process):
            if "event" in parts:
                changes: dict[str, Sequence[Change]] = {
                    FILE: (lambda: os.mknod(node, 0o600 | stat.S_IFCHR, NULL_NUMBER), node.unlink),
                    DEVICE: (
                        lambda: fcntl.ioctl(control, LOOP_CTL_ADD, LOOP),
                        lambda: fcntl.ioctl(control, LOOP_CTL_REMOVE, LOOP),
                    ),
                }
                await events(kubelet, process, changes, turns)
            if "burst" in parts:
                for action in ("change", "add"):
                    await burst(process, action)
    finally:
        with contextlib.suppress(OSError):
            fcntl.ioctl(control, LOOP_CTL_REMOVE, LOOP)
        os.close(control)


async def events(
    kubelet: Lists, process: Process, changes: Mapping[str, Sequence[Change]], turns: int
) -> None:
    """Print the medians of both ways, and their ratio."""
    took: dict[tuple[int, str], list[tuple[float, float]]] = {}
    listener = Listener()
    for _ in range(turns):
        for resource, pair in changes.items():
            for which, change in enumerate(pair):
                kubelet.forget()
                before = process.cpu_ms()
                await asyncio.to_thread(change)
                changed = time.perf_counter()
                came = await kubelet.next()
                await asyncio.sleep(PAUSE_S)
                told = min(changed, listener.told) if resource == DEVICE else changed
                spent = process.cpu_ms() - before
                took.setdefault((which, resource), []).append(((came - told) * 1000, spent))
    for which, what in enumerate(("comes", "goes")):
        (file, file_cpu), (device, device_cpu) = (
            map(statistics.median, zip(*took[which, one], strict=True)) for one in (FILE, DEVICE)
        )
        print(
            f"until the list, if one {what}: a node {file:.2f} ms, a loop device {device:.2f} ms, "
            f"{device / file:.2f} times as long; CPU {file_cpu:.2f} and {device_cpu:.2f} ms, "
            f"{device_cpu / file_cpu:.2f} times as much ({said()})"
        )


async def burst(process: Process, action: str) -> None:
    """Have the kernel send events that no resource is interested in."""
    before, began = process.cpu_ms(), time.perf_counter()
    write = os.open(NULL, os.O_WRONLY)
    for _ in range(EVENTS):
        os.write(write, action.encode())
    os.close(write)
    wrote = time.perf_counter() - began
    await asyncio.sleep(1.0)
    cpu = process.cpu_ms() - before
    print(
        f"{EVENTS} events `{action}` of another subsystem: {cpu:.0f} ms of CPU; written in "
        f"{wrote * 1000:.0f} ms ({said()})"
    )


def host(root: Path) -> tuple[HostTree, str]:
    """Return a host with USB devices, and resources of which each has one of them."""
    tree = HostTree(root / "host")
    lines = ["pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd"]
    lines.append("  usb usb1 1d6b:0002 class=090001 bus=1 dev=1")
    for number in range(STICKS):
        lines += [
            f"    usb 1-{number} 0403:6001 bus=1 dev={number + 2} manufacturer=F serial=S{number}",
            f"      if 1-{number}:1.0 ffffff ftdi_sio",
            f"        usb-serial ttyUSB{number} driver=ftdi_sio port_number=0",
            f"          tty ttyUSB{number} 188:{number}",
        ]
    tree.hardware("\n".join(lines))
    resources = "".join(
        f"- {{name: a.b/r{number}, overlap: allow, removeMissingAfter: never,"
        f" sources: [usb: {{device: 0403:6001, serial: S{number % STICKS}, node: tty}}]}}\n"
        for number in range(RESOURCES)
    )
    return tree, f"version: v1\nresources:\n{resources}"


def scan(tree: HostTree, text: str, turns: int) -> None:
    """Scan a host for all resources together, as at the start and as after an event."""
    config = loads(text, "bench.yaml").require()
    files, policy = HostFiles(str(tree.root)), Policy(enforced=False)
    scanners = [Scanner.of(one, files, policy, "node", hold_s=0.0) for one in config.resources]
    costs = []
    for _ in range(turns):
        began, cpu = time.perf_counter(), time.process_time()
        roots = dict.fromkeys(root for one in scanners for root in one.roots)
        readings = read_all(tuple(roots), files)
        read = time.process_time()
        snapshots = [
            one.snapshot(one.select(readings), Snapshot(), lambda _: None, 1.0) for one in scanners
        ]
        ended = time.process_time()
        costs.append((time.perf_counter() - began, ended - cpu, read - cpu))
        assert all(len(one.devices) == 1 for one in snapshots)
    wall, cpu, read = (statistics.median(column) * 1000 for column in zip(*costs, strict=True))
    print(
        f"{RESOURCES} resources on a host with {STICKS} USB devices: a scan of all takes "
        f"{wall:.1f} ms, {cpu:.1f} ms of CPU, {read:.1f} of it to read ({said()})"
    )


async def plug(root: Path, tree: HostTree, text: str, turns: int) -> None:
    """Have a device of that host come and go; the events are the kernel's, of another device."""
    link = tree.root / "sys/bus/usb/devices/1-0"
    target = link.readlink()
    took: dict[str, list[tuple[float, float]]] = {"goes": [], "comes": []}
    async with running(root, text, RESOURCES, "--root", str(tree.root)) as (kubelet, process):
        await asyncio.sleep(LIST_S)  # the start goes on
        for _ in range(turns):
            for what, action in (("goes", "remove"), ("comes", "add")):
                kubelet.forget()
                before = process.cpu_ms()
                if what == "goes":
                    link.unlink()
                else:
                    link.symlink_to(target)
                began = time.perf_counter()
                TTY.write_text(action)
                came = await kubelet.next(RESOURCES // STICKS)
                await asyncio.sleep(2 * PAUSE_S)
                took[what].append(((came - began) * 1000, process.cpu_ms() - before))
    for what, each in took.items():
        wall, cpu = map(statistics.median, zip(*each, strict=True))
        print(
            f"a device of {RESOURCES // STICKS} of {RESOURCES} resources {what}: {wall:.1f} ms "
            f"until the last list, {cpu:.1f} ms of CPU ({said()})"
        )


def said() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["event", "burst", "scan", "plug"])
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dh") as directory:
        root = Path(directory)
        if {"event", "burst"} & set(options.parts):
            asyncio.run(measure(root, options.parts, options.turns))
        tree, text = host(root)
        if "scan" in options.parts:
            scan(tree, text, options.turns)
        if "plug" in options.parts:
            asyncio.run(plug(root / "plug", tree, text, options.turns))


if __name__ == "__main__":
    main()
