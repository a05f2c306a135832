"""How many modules of devhost a reader has to follow for what happens most."""

import asyncio
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

import devhost
from devhost.allocation.policy import Policy
from devhost.host import resource
from devhost.host.resource import ServedResource
from devhost.observe.logs import LogQueue
from devhost.standin.kubelet import SimulatedKubelet
from devhost.watch.threads import IDLE_MAX, in_thread
from tests.support.daemon import until
from tests.support.hardware import HostTree, Kernel
from tests.support.hosting import Hosting
from tests.support.root import needs_root

PACKAGE: Final = os.path.dirname(devhost.__file__) + os.sep
NULL: Final = "example.com/null"
CONFIG: Final = f"""
version: v1
resources:
  - name: {NULL}
    sources: [dev: "null"]
    allocate:
      env: {{NULL_IDS: "${{id}}"}}
"""
# The fewer the better: who follows a device reads them.
ALLOCATE_MODULES: Final = 12
EVENT_MODULES: Final = 22
STICK: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-{0} 0403:6001 bus=1 dev=1{0} manufacturer=FTDI product=FT232R serial=A{0}
      if 1-{0}:1.0 ffffff ftdi_sio
        usb-serial ttyUSB{0} driver=ftdi_sio port_number=0
          tty ttyUSB{0} 188:{0}
"""
EQUALITY: Final = "model/immutable.py"  # of values: what `dataclass` would make, nobody's next step
FILES: Final = "example.com/files"


class Modules:
    """Notes the modules of devhost whose functions run, in all threads."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call."""
        file = frame.f_code.co_filename
        module = file.removeprefix(PACKAGE)
        ours = file.startswith(PACKAGE) and module != EQUALITY
        if event == "call" and ours and not module.startswith(("standin/", "testing/")):
            self.seen.add(module)

    async def begin(self) -> None:
        """Note what runs from now on."""
        threading.setprofile(self)
        sys.setprofile(self)
        for _ in range(2):  # one may have been about to be idle
            await self._in_idle_threads(self)
        self.seen.clear()

    async def end(self) -> None:
        """Note nothing more."""
        threading.setprofile(None)
        sys.setprofile(None)
        await self._in_idle_threads(None)

    async def _in_idle_threads(self, profile: "Modules | None") -> None:
        """Have those note, or not, that are there already: each is held until all are."""
        held = threading.Barrier(IDLE_MAX)

        def switch() -> None:
            sys.setprofile(profile)
            held.wait(60)

        await asyncio.gather(*(in_thread("profile", switch) for _ in range(IDLE_MAX)))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Log to nowhere, as `devhost run` does to stderr."""
    lines = LogQueue(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging.getLogger(), "handlers", [lines])


async def test_allocate_crosses_few_modules(
    directory: Path, hosting: Hosting, standin: SimulatedKubelet, logged: None
) -> None:
    """From kubelet's call until the container has its answer, and it is logged and counted."""
    hosting.start(CONFIG, policy=Policy(enforced=True))
    await standin.wait(NULL, 1, 1)
    crossed = []
    for number in range(5):
        crossed.append(Modules())
        await crossed[-1].begin()
        assert await standin.admit(f"pod-{number}", {"app": {NULL: 1}})
        await crossed[-1].end()
        await standin.free(f"pod-{number}")
    # Each time, as something else may run meanwhile.
    modules = set.intersection(*(one.seen for one in crossed))
    assert "hostfs/files.py" in modules
    assert len(modules) <= ALLOCATE_MODULES, " ".join(sorted(modules))


async def logged_and_counted(served: ServedResource, count: int) -> None:
    """Wait until so many devices are counted, and the log says so."""
    await until(lambda: served.count.found == count and served._logged is served.snapshot)


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    "kind",
    ["file", pytest.param("char", marks=needs_root), pytest.param("usb", marks=needs_root)],
)
async def test_device_added_crosses_few_modules(
    directory: Path,
    hosting: Hosting,
    standin: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """From the kernel's event until it is listed, logged and counted, and nothing more happens."""
    monkeypatch.setattr(resource, "_LOG_EVERY_S", 0.0)
    tree, kernel = HostTree(directory / "host"), Kernel(monkeypatch)
    tree.directory("/dev/colas")
    source = "usb: {device: 0403:6001, node: tty}"
    if kind != "usb":
        source = f"directory: {{path: /dev/colas, types: {kind}}}"

    def plug(number: int) -> None:
        if kind == "usb":
            tree.hardware(STICK.format(number))
            kernel.send("add", "tty")
        else:
            mode = stat.S_IFCHR if kind == "char" else stat.S_IFREG
            node = tree.at(f"/dev/colas/{number}")
            os.mknod(node, 0o600 | mode, os.makedev(240, number))

    plug(1)
    config = f"version: v1\nresources: [{{name: {FILES}, sources: [{source}]}}]"
    host = hosting.start(config, root=tree.root)
    await standin.wait(FILES, 1, 1)
    (served,) = host.resources
    crossed = []
    for count in range(2, 8):
        await standin.wait(FILES, count - 1, count - 1)
        await logged_and_counted(served, count - 1)
        crossed.append(Modules())
        await crossed[-1].begin()
        plug(count)
        await standin.wait(FILES, count, count)
        await logged_and_counted(served, count)
        await crossed[-1].end()
    kernel.close()
    # Each time, as something else may run meanwhile. At the first, some is done once.
    modules = set.intersection(*(one.seen for one in crossed[1:]))
    assert {"discovery/scan.py", "observe/logs.py"} <= modules
    assert len(modules) <= EVENT_MODULES, " ".join(sorted(modules))
