"""How many modules of devhost a reader has to follow for what happens most."""

import asyncio
import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import devhost
from devhost.allocation.declaration import Declaration
from devhost.allocation.policy import Policy
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.servicer import Servicer
from devhost.standin.kubelet import SimulatedKubelet
from devhost.watch.threads import IDLE_MAX, in_thread
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
ALLOCATE_MODULES: Final = 12
EVENT_MODULES: Final = 22  # the fewer the better: who follows a device reads them
NODE_MODULES: Final = 25  # where containers are given it: its path, number and place are read
EQUALITY: Final = "model/immutable.py"  # of values: what `dataclass` would make, nobody's next step
FILES: Final = "example.com/files"


class Modules:
    """Notes the modules of devhost whose functions run."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Note a call."""
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE):
            self.seen.add(file.removeprefix(PACKAGE))
            self.seen.discard(EQUALITY)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what runs in this thread until the block ends."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)


async def test_an_allocate_crosses_few_modules(
    directory: Path, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the servicer to its answer, in the event loop and in the thread that reads the host.

    What is logged and counted comes after the answer.
    """
    serve, allocate, crossed = Servicer.Allocate, Declaration.allocate, []

    async def served(self: Servicer, request: Any, context: Any) -> Any:
        crossed.append(Modules())
        with crossed[-1].noted():
            return await serve(self, request, context)

    def allocated(self: Declaration, *arguments: Any) -> Any:
        with crossed[-1].noted():
            return allocate(self, *arguments)

    monkeypatch.setattr(Servicer, "Allocate", served)
    monkeypatch.setattr(Declaration, "allocate", allocated)
    kubelet = SimulatedKubelet(directory / "plugins")
    await kubelet.start()
    hosting.start(CONFIG, policy=Policy(enforced=True))
    await kubelet.wait(NULL, 1, 1)
    for number in range(5):
        pod = f"pod-{number}"
        assert await kubelet.admit(pod, {"app": {NULL: 1}})
        await kubelet.free(pod)
    await kubelet.stop()
    # Each time, as something else may run meanwhile.
    modules = set.intersection(*(one.seen for one in crossed))
    assert "hostfs/files.py" in modules
    assert len(modules) <= ALLOCATE_MODULES, " ".join(sorted(modules))


class EventModules(Modules):
    """Notes modules in all threads, until the bytes of the list are there."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call."""
        if event == "return" and frame.f_code is DeviceList.begin_send.__code__:
            self._ended = True
        ours = os.sep + "standin" + os.sep not in frame.f_code.co_filename
        if event == "call" and ours and not self._ended:
            super().__call__(frame, event, argument)

    async def begin(self) -> None:
        """Note what runs from now on."""
        threading.setprofile(self)
        sys.setprofile(self)
        await self._in_idle_threads(self)
        self.seen.clear()

    async def end(self) -> None:
        """Note nothing more."""
        threading.setprofile(None)
        sys.setprofile(None)
        await self._in_idle_threads(None)

    async def _in_idle_threads(self, profile: "EventModules | None") -> None:
        """Have those note, or not, that are there already: each is held until all are."""
        held = threading.Barrier(IDLE_MAX)

        def switch() -> None:
            sys.setprofile(profile)
            held.wait(60)

        await asyncio.gather(*(in_thread("profile", switch) for _ in range(IDLE_MAX)))


@pytest.mark.parametrize(
    ("kind", "most"),
    [("file", EVENT_MODULES), pytest.param("char", NODE_MODULES, marks=needs_root)],
)
async def test_a_device_that_comes_crosses_few_modules(
    directory: Path, hosting: Hosting, standin: SimulatedKubelet, kind: str, most: int
) -> None:
    """From inotify to the bytes for the stream; what is logged and counted comes after them."""

    def plug(name: str) -> None:
        mode = stat.S_IFCHR if kind == "char" else stat.S_IFREG
        os.mknod(directory / "colas" / name, 0o600 | mode, os.makedev(240, ord(name)))

    plug("a")
    source = f"directory: {{path: {directory}/colas, types: {kind}}}"
    hosting.start(f"version: v1\nresources: [{{name: {FILES}, sources: [{source}]}}]")
    await standin.wait(FILES, 1, 1)
    plug("b")  # what is done once, such as to index the devices
    await standin.wait(FILES, 2, 2)
    crossed = []
    for count, name in enumerate("cdefg", 3):
        crossed.append(EventModules())
        await crossed[-1].begin()
        plug(name)
        await standin.wait(FILES, count, count)
        await crossed[-1].end()
    # Each time, as something else may run meanwhile.
    modules = set.intersection(*(one.seen for one in crossed))
    assert "discovery/scan.py" in modules
    assert len(modules) <= most, " ".join(sorted(modules))
