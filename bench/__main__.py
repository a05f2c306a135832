"""How quick and how small is devhost, beside a bare Go plugin and the machine's floor?

python -m bench --help
"""

import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import options as known
from bench.figures import Figures, Record
from bench.load import LoadError
from bench.options import Options
from bench.parts import alone, life, work
from bench.scene import Scene, Shape
from bench.stage import Stage, staged
from bench.subjects import Devhost, Subject, bare, reference
from bench.table import FLOOR, table

_SOFT_LIMIT = 1024  # of descriptors, as a container may have it: devhost has to raise it
_SHARED_DEVICES = 1

Part = Callable[[Stage, Record, Options], None]
_PARTS: dict[str, Part] = {
    "start": life.start,
    "sizes": life.sizes,
    "rest": life.rest,
    "events": work.events,
    "burst": work.burst,
    "allocate": work.allocate,
    "preferred": work.preferred,
    "restart": life.restart,
    "reload": life.reload,
}


class Session:
    """Runs what was asked for, again and again, and keeps what was found."""

    def __init__(self, options: Options, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.figures = Figures()
        first, *others = options.trees
        self.subjects: list[Subject] = [Devhost("devhost", first)]
        self.subjects += [Devhost(f"devhost {tree.name}", tree) for tree in others]
        if options.bare:
            self.subjects.append(bare())
        if options.reference:
            self.subjects.append(reference())
        self._scenes: dict[Shape, Scene] = {}

    def scene(self, shape: Shape) -> Scene:
        if shape not in self._scenes:
            self._scenes[shape] = Scene(self.scratch, shape)
        return self._scenes[shape]

    def run(self, number: int) -> None:
        """Do everything once: each shape with one subject after the other."""
        options, parts = self.options, self.options.parts
        self._note(number)
        if "floor" in parts:
            with self._noted(number, FLOOR, "floor"):
                alone.floor(self.scratch, Record(self.figures, FLOOR, number), options)
        asked = [_PARTS[part] for part in known.STAGED if part in parts]
        for shape in options.shapes:
            self._staged(number, shape, asked)
        if "backoff" in parts:
            self._staged(number, Shape(1, options.devices), [life.back_off])
        if "lengths" in parts:
            for shape in options.long_shapes:
                if "events" not in parts or shape not in options.shapes:
                    self._staged(number, shape, [work.events])
        if "shared" in parts:
            for count in options.resources:
                shape = Shape(count, _SHARED_DEVICES, shared=True)
                self._staged(number, shape, [life.start, life.sizes])
        self._alone(number)

    def _staged(self, number: int, shape: Shape, parts: Sequence[Part]) -> None:
        for subject in self.subjects if parts else ():
            with self._noted(number, subject.name, str(shape)):
                record = Record(self.figures, subject.name, number, shape)
                with staged(self.scene(shape), subject, self.scratch) as stage:
                    for part in parts:
                        part(stage, record, self.options)

    def _alone(self, number: int) -> None:
        options, parts = self.options, self.options.parts
        for subject in self.subjects:
            if not subject.is_devhost:
                continue
            for shape in options.shapes if "validate" in parts else ():
                with self._noted(number, subject.name, f"validate {shape}"):
                    record = Record(self.figures, subject.name, number, shape)
                    alone.validate(self.scene(shape), subject, record)
            shapes = dict.fromkeys([*options.shapes, *options.long_shapes])
            for shape in shapes if "scan" in parts else ():
                with self._noted(number, subject.name, f"scan {shape}"):
                    record = Record(self.figures, subject.name, number, shape)
                    alone.scan(self.scene(shape), subject, record, options)

    @contextmanager
    def _noted(self, number: int, subject: str, what: str) -> Iterator[None]:
        """Say what is done; what does not work is noted, and the rest goes on."""
        began = time.monotonic()
        said = f"run {number + 1} of {self.options.runs}: {what}: {subject}"
        try:
            yield
        except LoadError as error:
            self.figures.failures.append(f"{said}: {error}")
            _say(f"{said}: FAILED: {error}")
        else:
            _say(f"{said}: {time.monotonic() - began:.1f} s")
        if self.options.json:
            self.options.json.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def _note(self, number: int) -> None:
        pressure = Path("/proc/pressure/cpu")
        self.figures.conditions.append(
            {
                "run": number,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "load": os.getloadavg(),
                "cpu pressure": pressure.read_text().splitlines()[0] if pressure.exists() else None,
            }
        )

    def report(self) -> str:
        """Return all of it, for people."""
        loads = [one["load"][0] for one in self.figures.conditions]
        runs = f"{len(loads)} of {self.options.runs} runs begun"
        return "\n".join(
            [
                ", ".join(f"{what}: {value}" for what, value in _machine().items()),
                f"{runs}, load {min(loads):.1f} to {max(loads):.1f}\n",
                table(self.figures, [subject.name for subject in self.subjects]),
                *(f"\nFAILED: {failure}" for failure in self.figures.failures),
            ]
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": _machine(),
            "conditions": self.figures.conditions,
            "parts": self.options.parts,
            "failures": self.figures.failures,
            "figures": self.figures.as_json(),
        }


def main() -> int:
    options = known.parse()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_SOFT_LIMIT, hard), hard))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bench", dir=options.scratch) as scratch:
        session = Session(options, Path(scratch))
        for subject in session.subjects:
            if isinstance(subject, Devhost):
                subject.compile()
        try:
            for number in range(options.runs):
                session.run(number)
        except KeyboardInterrupt:
            session.figures.failures.append("interrupted")
    print(session.report(), flush=True)
    return 1 if session.figures.failures else 0


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "protobuf": version("protobuf"),
        "pydantic": version("pydantic"),
        "watchdog": version("watchdog"),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
