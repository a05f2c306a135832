"""One subject at work before one load generator."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import Load, LoadError
from bench.process import Process
from bench.scene import Scene
from bench.subjects import Place, Subject, environment

TIMEOUT_MS = 120_000
_LISTED_WAIT_S = 10.0
_LOG_LINES = 5
_ENDED = ("exit status 0", "signal: terminated")  # the reference has no handler


@dataclass
class Stage:
    """A subject that is up, with every resource listed.

    Attributes:
        started_ms: From exec to the last resource's list, by the load generator's clock.
        started_cpu_ms: The subject's CPU time at that moment.
    """

    scene: Scene
    subject: Subject
    place: Place
    load: Load
    process: Process
    started_ms: float
    started_cpu_ms: float

    def do(self, command: str, **arguments: object) -> Any:
        """Have the load generator do something that has to end in time."""
        return self.load.do(command, timeout_ms=TIMEOUT_MS, **arguments)

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.load.do("counters")
        return found

    @property
    def listening(self) -> str:
        """The address of devhost's HTTP side, from its log."""
        limit = time.monotonic() + _LISTED_WAIT_S
        while time.monotonic() < limit:
            for line in self.place.log.read_text().splitlines():
                if '"listening"' in line:
                    return str(json.loads(line)["address"])
            time.sleep(0.1)
        raise LoadError("devhost does not say where it listens")


@contextmanager
def staged(scene: Scene, subject: Subject, scratch: Path) -> Iterator[Stage]:
    """Start a subject in a directory of its own, and end it.

    Raises:
        LoadError: Something did not work; with the end of the subject's log.
    """
    place = Place(Path(tempfile.mkdtemp(prefix="s", dir=scratch)))
    place.plugins.mkdir()
    try:
        with Load(place.plugins) as load:
            yield _start(load, scene, subject, place)
            _end(load)
    except LoadError as error:
        raise LoadError(f"{error}{_end_of(place.log)}") from None
    finally:
        shutil.rmtree(place.root, ignore_errors=True)


def _start(load: Load, scene: Scene, subject: Subject, place: Place) -> Stage:
    started = load.do(
        "start",
        argv=subject.prepare(scene, place),
        env=[f"{key}={value}" for key, value in environment().items()],
        directory=str(subject.tree),
        log=str(place.log),
        resources=scene.shape.resources,
        devices=scene.shape.devices,
        timeout_ms=TIMEOUT_MS,
    )
    process = Process(started["pid"])
    cpu_ms = process.cpu_ms()
    return Stage(scene, subject, place, load, process, started["us"] / 1000, cpu_ms)


def _end(load: Load) -> None:
    ended = load.do("kill", timeout_ms=TIMEOUT_MS)["status"]
    if ended not in _ENDED:
        raise LoadError(f"ended with {ended}")


def _end_of(log: Path) -> str:
    """Return what a log says last, of what went wrong if it tells of that."""
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()
    wrong = [line for line in lines if '"level": "info"' not in line]
    return "".join(f"\n    {line}" for line in (wrong or lines)[-_LOG_LINES:])
