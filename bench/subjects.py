"""What is measured: devhost from one or several trees, and plain plugins beside it."""

import compileall
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.build import ROOT, build
from bench.scene import Scene

# Settings of the user that would change what is measured.
_FOREIGN = ("DEVHOST_", "GRPC_", "PYTHON", "GO")

REFERENCE = "reference"


@dataclass(frozen=True)
class Place:
    """The directories of one start."""

    root: Path

    @property
    def plugins(self) -> Path:
        return self.root / "p"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def log(self) -> Path:
        return self.root / "log"


class Subject(Protocol):
    """Something that serves resources."""

    @property
    def name(self) -> str: ...

    @property
    def tree(self) -> Path: ...

    @property
    def is_devhost(self) -> bool: ...

    def prepare(self, scene: Scene, place: Place) -> list[str]:
        """Write what it reads; return the command."""


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}


# Devices change faster here than a kubelet is to be told.
_DEVHOST = """
import importlib.util, runpy
if importlib.util.find_spec("devhost.limits"):
    import devhost.limits
    devhost.limits.LISTS_BURST = devhost.limits.LOG_LINES_BURST = 1e9
runpy.run_module("devhost", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Devhost:
    """``devhost run`` of a tree, with everything switched on that needs no other server."""

    name: str
    tree: Path = ROOT
    is_devhost = True

    def compile(self) -> None:
        """Make the byte code, as an image has it: else the first start would pay for it."""
        compileall.compile_dir(self.tree / "devhost", quiet=1)

    def prepare(self, scene: Scene, place: Place) -> list[str]:
        for directory in ("state", "cdi"):
            (place.root / directory).mkdir()
        place.config.write_text(scene.config())
        options = {
            "--plugin-dir": place.plugins,
            "--state-dir": place.root / "state",
            "--cdi-dir": place.root / "cdi",
            "--listen": "127.0.0.1:0",
            "--allow-path": f"{scene.root}/*",
            "--allow-device": f"{scene.root}/*",
            "--log-format": "json",
        }
        shown = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-c", _DEVHOST, "run", str(place.config), *shown]


@dataclass(frozen=True)
class Plain:
    """A plugin that only serves directories: no configuration, no checks."""

    name: str
    program: Callable[[], list[str]]
    tree: Path = ROOT
    is_devhost = False

    def prepare(self, scene: Scene, place: Place) -> list[str]:
        place.config.write_text(scene.served())
        options = ["--plugin-dir", str(place.plugins), "--resources", str(place.config)]
        return [*self.program(), *options]


def reference() -> Plain:
    """Return the bare Go plugin in `bench/reference`."""
    return Plain(REFERENCE, lambda: [str(build("reference"))])


def bare() -> Plain:
    """Return the least that a plugin on grpc.aio takes (`bench.bare`)."""
    return Plain("bare aio", lambda: [sys.executable, "-m", "bench.bare"])
