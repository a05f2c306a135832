"""How quick and how small is devhost, beside a bare plugin in Python and one in Go?

python -m bench --help
"""

import argparse
import asyncio
import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from bench import flows
from bench.kubelet import Kubelet
from bench.process import rss_mib
from bench.scene import Scene, Shape, full_name
from tools import golang

ROOT = Path(__file__).resolve().parents[1]
DEVHOST, PYTHON, GO = "devhost", "bare Python", "bare Go"
_ENDED_S = 30.0
_RESTARTS = 5
# Settings of the user that would change what is measured.
_FOREIGN = ("DEVHOST_", "GRPC_", "PYTHON", "GO")
# Devices change faster here than kubelet is to be sent lists.
_DEVHOST = """
import runpy
import devhost.model.limits
devhost.model.limits.LISTS_BURST = devhost.model.limits.LOG_LINES_BURST = 1e9
runpy.run_module("devhost", run_name="__main__", alter_sys=True)
"""
Figures = dict[tuple[str, str], float]
"""By what was measured and the subject: milliseconds, or MiB."""


@dataclass
class Bench:
    """One run of one shape.

    Attributes:
        options: What was asked for.
        figures: What was measured.
    """

    options: argparse.Namespace
    figures: Figures = field(default_factory=dict)

    async def measure(self, subject: str, scene: Scene, scratch: Path) -> None:
        """Start a subject, and measure it."""
        scratch.mkdir()
        plugins = scratch / "p"
        plugins.mkdir()
        kubelet = Kubelet(plugins)
        await kubelet.start()
        names = list(map(full_name, scene.shape.names))

        def complete() -> bool:
            return all(kubelet.counts.get(name, -1) >= scene.shape.devices for name in names)

        config = scratch / "config.yaml"
        config.write_text(scene.config() if subject == DEVHOST else scene.served())
        began = time.perf_counter()
        async with started(command(subject, config, plugins, scene.root), scratch) as process:
            await kubelet.until(complete)
            self._put("start", subject, time.perf_counter() - began)
            changed = full_name(scene.changed)
            before = kubelet.counts[changed]

            async def counted(count: int) -> None:
                await kubelet.until(lambda: kubelet.counts[changed] == count)

            comes: list[float] = []
            goes: list[float] = []
            path = scene.device(scene.changed, "new")
            for _ in range(self.options.events):
                comes.append(await timed(lambda: scene.plug(path), counted(before + 1)))
                goes.append(await timed(path.unlink, counted(before)))
            self._put("a device comes", subject, statistics.median(comes))
            self._put("a device goes", subject, statistics.median(goes))
            calls = [
                await timed(
                    lambda: None,
                    kubelet.allocate(changed, scene.device(scene.changed, "00000").name),
                )
                for _ in range(self.options.events)
            ]
            self._put("Allocate", subject, statistics.median(calls))
            if subject == DEVHOST:
                fresh = config.with_suffix(".new")
                fresh.write_text(scene.config(changed=True))
                reload = await timed(lambda: fresh.rename(config), counted(before + 1))
                self._put("a reload of one resource", subject, reload)
            restarts = []
            for _ in range(_RESTARTS):
                await kubelet.stop()
                await kubelet.start()
                restarts.append(await timed(lambda: None, kubelet.until(complete)))
            self._put("first kubelet restart", subject, restarts[0])
            self._put("kubelet restarts", subject, statistics.median(restarts))
            self.figures["memory (MiB)", subject] = rss_mib(process.pid)
        await kubelet.stop()

    def _put(self, figure: str, subject: str, seconds: float) -> None:
        self.figures[f"{figure} (ms)", subject] = seconds * 1000


async def timed(cause: Callable[[], object], effect: Awaitable[None]) -> float:
    """Return how many seconds it takes from a cause to its effect."""
    began = time.perf_counter()
    cause()
    await effect
    return time.perf_counter() - began


def command(subject: str, config: Path, plugins: Path, devices: Path) -> list[str]:
    """Return the command that serves a scene."""
    if subject != DEVHOST:
        program = (
            [str(golang.build(ROOT / "bench", "reference", "bench-reference", ROOT / ".tools"))]
            if subject == GO
            else [sys.executable, "-m", "bench.bare"]
        )
        return [*program, "--plugin-dir", str(plugins), "--resources", str(config)]
    options = {
        "--plugin-dir": plugins,
        "--pod-resources": plugins / "pod-resources.sock",
        "--state-dir": config.parent / "state",
        "--listen": "127.0.0.1:0",
        "--allow-path": f"{devices}/*",
        "--allow-device": f"{devices}/*",
        "--log-format": "json",
    }
    words = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-c", _DEVHOST, "run", str(config), *words]


@asynccontextmanager
async def started(words: list[str], scratch: Path) -> "AsyncIterator[subprocess.Popen[bytes]]":
    """Run a command; end it with the context."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_ENDED_S)


def rows(runs: list[Figures], subjects: list[str]) -> Iterator[list[str]]:
    """Yield a table: medians of the runs, and of their ratios to the bare plugin in Python."""
    yield ["", *subjects, f"{DEVHOST} / {PYTHON}"]
    for figure in dict.fromkeys(key for key, _ in itertools.chain.from_iterable(runs)):
        shown = [figure]
        for subject in subjects:
            measured = [run[figure, subject] for run in runs if (figure, subject) in run]
            shown.append(f"{statistics.median(measured):.3g}" if measured else "")
        ratios = [
            run[figure, DEVHOST] / run[figure, PYTHON]
            for run in runs
            if {(figure, DEVHOST), (figure, PYTHON)} <= run.keys()
        ]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        shown.append(f"{statistics.median(ratios):.2f} ({spread})" if ratios else "")
        yield shown


async def main() -> None:
    """Measure, and print a table for each shape."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--resources", default="1,100", help="how many; several with commas")
    parser.add_argument("--devices", type=int, default=10, help="of each resource")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--events", type=int, default=40, help="and calls, in each run")
    parser.add_argument("--no-go", action="store_true", help="without the plugin in Go")
    options = parser.parse_args()
    subjects = [DEVHOST, PYTHON] if options.no_go else [DEVHOST, PYTHON, GO]
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"grpcio {version('grpcio')}, load {os.getloadavg()[0]:.1f}"
    )
    for count in map(int, options.resources.split(",")):
        shape = Shape(count, options.devices)
        runs: list[Figures] = []
        for run in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="bench") as scratch:
                scene, bench = Scene(Path(scratch), shape), Bench(options)
                for number, subject in enumerate(subjects):
                    print(f"run {run + 1}: {shape}: {subject}", file=sys.stderr)
                    await bench.measure(subject, scene, Path(scratch) / str(number))
                runs.append(bench.figures)
        print(f"\n{shape} devices, median of {options.runs} runs\n")
        head, *body = rows(runs, subjects)
        for row in (head, ["---"] * len(head), *body):
            print("|", " | ".join(row), "|")
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    await flows.report()


if __name__ == "__main__":
    asyncio.run(main())
