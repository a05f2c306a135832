"""How many modules of devhost a reader has to follow for what happens most."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import devhost
from devhost.allocation.declaration import Declaration
from devhost.allocation.policy import Policy
from devhost.kubelet.servicer import Servicer
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.hosting import Hosting

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


class Modules:
    """Notes the modules of devhost whose functions run."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Note a call."""
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE):
            self.seen.add(file.removeprefix(PACKAGE))

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

    What is logged and counted comes after the answer. ``${index}`` in a text would need the
    templates too.
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
    # Each time, as something else may run in the event loop meanwhile.
    modules = set.intersection(*(one.seen for one in crossed))
    assert "hostfs/files.py" in modules
    assert len(modules) <= ALLOCATE_MODULES, " ".join(sorted(modules))
