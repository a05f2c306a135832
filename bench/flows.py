"""How many modules of devhost a reader has to follow for what happens most, and how many calls."""

import asyncio
import logging
import os
import stat
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import devhost
from devhost.allocation.policy import Policy
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.node import resource_status
from devhost.observe.logs import LogQueue
from tests.support.daemon import until
from tests.support.hardware import HostTree, Kernel
from tests.support.hosting import Hosting

_PACKAGE: Final = os.path.dirname(devhost.__file__) + os.sep
# The kubelet's part, what makes the devices, and the equality of values, as of dataclasses.
_NOT_COUNTED: Final = ("api/", "fake_kubelet/", "testing/")
_NAME: Final = "bench.example/device"
_PATIENCE_S: Final = 60.0
_SOURCES: Final = {
    "a file comes": "directory: {path: /dev/bench, types: file}",
    "a node comes": "directory: {path: /dev/bench, types: char}",
    "a USB stick comes": "usb: {device: 0403:6001, node: tty}",
}
_STICK: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-{0} 0403:6001 bus=1 dev=1{0} manufacturer=FTDI product=FT232R serial=A{0}
      if 1-{0}:1.0 ffffff ftdi_sio
        usb-serial ttyUSB{0} driver=ftdi_sio port_number=0
          tty ttyUSB{0} 188:{0}
"""


class Profile:
    """Counts the calls of devhost's functions by module, in all threads of this process."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    def __call__(self, frame: object, event: str, _argument: object) -> None:
        """Count a call."""
        file: str = frame.f_code.co_filename  # type: ignore[attr-defined]
        module = file.removeprefix(_PACKAGE)
        if event == "call" and module != file and not module.startswith(_NOT_COUNTED):
            self.calls[module] += 1


@asynccontextmanager
async def profiled(times: list[Counter[str]]) -> AsyncIterator[None]:
    """Add the calls of what happens meanwhile."""
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    yield
    sys.setprofile(None)
    threading.setprofile(None)
    times.append(profile.calls)


@dataclass(frozen=True)
class Flow:
    """The calls of devhost's functions by module, each time that something happened."""

    times: Sequence[Counter[str]]

    @property
    def modules(self) -> set[str]:
        """Those of each time, as something else may run meanwhile."""
        return set.intersection(*(set(calls) for calls in self.times))

    @property
    def calls(self) -> float:
        return statistics.median(calls.total() for calls in self.times)


async def allocate(directory: Path, *, recorded: bool) -> Flow:
    """From kubelet's call until the container has its answer, and it is logged and counted."""
    sources = ", ".join(f'dev: "{name}"' for name in ("null", "zero", "full", "random", "urandom"))
    config = f"version: v1\nresources: [{{name: {_NAME}, sources: [{sources}]}}]"
    async with _host(directory) as (kubelet, hosting):
        state = directory / "state" if recorded else None
        hosting.start(config, policy=Policy(enforced=True), state_dir=state)
        await kubelet.wait(_NAME, 5, 5, timeout=_PATIENCE_S)
        times: list[Counter[str]] = []
        for number in range(5):  # another device each time
            async with profiled(times):
                await kubelet.admit(f"pod-{number}", {"app": {_NAME: 1}})
    return Flow(times)


async def event(directory: Path, what: str) -> Flow:
    """From the kernel's event until a device is listed, logged and counted."""
    tree = HostTree(directory / "host")
    tree.directory("/dev/bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource_status, "_EVERY_S", 0.0)
        kernel = Kernel(patch)

        def plug(number: int) -> None:
            if what == "a USB stick comes":
                tree.hardware(_STICK.format(number))
                kernel.send("add", "tty")
            else:
                kind = stat.S_IFCHR if what == "a node comes" else stat.S_IFREG
                os.mknod(tree.at(f"/dev/bench/{number}"), 0o600 | kind, os.makedev(240, number))

        config = f"version: v1\nresources: [{{name: {_NAME}, sources: [{_SOURCES[what]}]}}]"
        async with _host(directory) as (kubelet, hosting):
            host = hosting.start(config, root=tree.root)
            times: list[Counter[str]] = []
            for count in range(1, 8):
                async with profiled(times):
                    plug(count)
                    await kubelet.wait(_NAME, count, count, timeout=_PATIENCE_S)
                    (served,) = host.resources
                    await until(lambda: served.devices.change_log._logged is served.devices.offered)  # noqa: B023, SLF001
        kernel.close()
    return Flow(times[2:])  # some is done once


@asynccontextmanager
async def _host(directory: Path) -> AsyncIterator[tuple[SimulatedKubelet, Hosting]]:
    (directory / "plugins").mkdir()
    hosting = Hosting(directory)
    kubelet = SimulatedKubelet(hosting.plugins, hosting.pod_resources)
    await kubelet.start()
    yield kubelet, hosting
    await hosting.close()
    await kubelet.stop()


async def report() -> None:
    """Print a table."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [LogQueue(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))]
    flows: dict[str, Callable[[Path], Awaitable[Flow]]] = {
        what: partial(event, what=what)
        for what in _SOURCES
        if what == "a file comes" or not os.geteuid()
    }
    flows["Allocate, without a state directory"] = partial(allocate, recorded=False)
    flows["the first Allocate of a device, which is recorded"] = partial(allocate, recorded=True)
    print("\n| in devhost | modules | calls |\n| --- | --- | --- |")
    for what, measure in flows.items():
        with tempfile.TemporaryDirectory(prefix="bench") as scratch:
            flow = await measure(Path(scratch))
        print(f"| {what} | {len(flow.modules)} | {flow.calls:.0f} |")


if __name__ == "__main__":
    asyncio.run(report())
