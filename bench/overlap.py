"""How long is not everything allocatable when one instance of devhost takes over from another?

python -m bench.overlap --kubelet .tools/kubelet-v1.36.3-… .tools/kubelet-v1.37.1-…
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError
from tests.support.daemon import Daemon
from tests.support.overlap import tokens
from tests.support.realkubelet import RealKubelet

DEVICES = 4
SETTLED_S = 1.5  # all allocatable for so long: nothing more is coming
BESIDE_S = 1.0  # a cluster is no quicker to end the other one
TIMEOUT_S = 60.0
POLL_PAUSE_S = 0.005  # without it the polls take the processor from those they look at
PROBE_PAUSE_S = 0.02


@dataclass
class Run:
    """What one take-over looked like from the kubelet's side; times are seconds."""

    less: float = 0.0  # from the first moment with less than all to the last
    worst: int = 0  # resources that were not wholly allocatable at the same moment
    longest: float = 0.0  # for which one resource was not
    polls: list[float] = field(default_factory=list)
    refused: int = 0
    refused_for: float = 0.0  # from the first refused pod to the next admitted one
    reasons: set[str] = field(default_factory=set)


class Watch:
    """Polls the kubelet, and admits pods that want one device."""

    def __init__(self, kubelet: RealKubelet, resources: list[str]) -> None:
        self.kubelet, self.resources = kubelet, resources
        self.run = Run()
        self.full_since = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._admit())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def settled(self) -> None:
        """Wait until everything has been allocatable for a while."""
        begin = time.monotonic()
        async with asyncio.timeout(TIMEOUT_S):
            while time.monotonic() - max(begin, self.full_since) < SETTLED_S:
                await asyncio.sleep(0.05)
                if self.full_since == 0.0:
                    begin = time.monotonic()

    async def _poll(self) -> None:
        first: float | None = None
        since: dict[str, float] = {}
        before = time.monotonic()
        while True:
            counts = await self.kubelet.capacity()
            now = time.monotonic()
            self.run.polls.append(now - before)
            short = {one for one in self.resources if counts.get(one, (0, 0))[1] < DEVICES}
            if short:
                # It became so after the poll before.
                first, self.full_since = before if first is None else first, 0.0
                self.run.worst = max(self.run.worst, len(short))
            elif self.full_since == 0.0:
                self.full_since = now
                if first is not None:
                    self.run.less = now - first
            for one in short:
                since.setdefault(one, before)
            for one in since.keys() - short:
                self.run.longest = max(self.run.longest, now - since.pop(one))
            await asyncio.sleep(POLL_PAUSE_S)
            before = now

    async def _admit(self) -> None:
        resource = self.resources[len(self.resources) // 2]
        first: float | None = None
        while True:
            try:
                await self.kubelet.admit("probe", {"app": {resource: 1}})
            except AdmissionError as error:
                first = first or time.monotonic()
                self.run.refused += 1
                self.run.reasons.add(_short(str(error)))
            else:
                if first is not None:
                    self.run.refused_for = max(self.run.refused_for, time.monotonic() - first)
                    first = None
                await self.kubelet.free("probe")
            await asyncio.sleep(PROBE_PAUSE_S)


def _short(error: str) -> str:
    for known in ("has been stopped", "no healthy devices", "Unavailable", "Canceled"):
        if known in error:
            return known
    return error


@dataclass
class Scene:
    """A kubelet, and how instances are started on it."""

    directory: Path
    config: str
    resources: int

    async def start(self) -> Daemon:
        daemon = Daemon(self.directory)
        await daemon.start(self.config)
        return daemon

    async def registered(self, daemon: Daemon) -> None:
        await daemon.until(State.REGISTERED, self.resources)

    async def second(self, older: Daemon) -> Daemon:
        """Start a newer one; return when it has taken over."""
        newer = await self.start()
        await self.registered(newer)
        await older.until(State.WAITING, self.resources)
        await asyncio.sleep(BESIDE_S)
        return newer


async def surge(scene: Scene, older: Daemon) -> Daemon:
    newer = await scene.second(older)
    await older.stop()
    return newer


async def stop_then_start(scene: Scene, older: Daemon) -> Daemon:
    older.signal(signal.SIGTERM)
    newer = await scene.start()  # immediately, as the image is there
    await older.ended()
    return newer


async def older_killed(scene: Scene, older: Daemon) -> Daemon:
    newer = await scene.second(older)
    await older.kill()
    return newer


async def newer_stopped(scene: Scene, older: Daemon) -> Daemon:
    newer = await scene.second(older)
    await newer.stop()
    return older


async def newer_killed(scene: Scene, older: Daemon) -> Daemon:
    newer = await scene.second(older)
    await newer.kill()
    return older


SCENARIOS = {
    "surge: newer starts, then older is stopped": surge,
    "no surge: older is stopped, newer starts immediately": stop_then_start,
    "older is killed, newer is running": older_killed,
    "newer is stopped, older is running": newer_stopped,
    "newer is killed, older is running": newer_killed,
}


async def measure(
    binary: Path, act: Callable[[Scene, Daemon], Awaitable[Daemon]], count: int
) -> Run:
    directory = Path(tempfile.mkdtemp(prefix="dh"))
    (directory / "plugins").mkdir()
    names = {f"r{index}": DEVICES for index in range(count)}
    scene = Scene(directory, tokens("me", **names), count)
    resources = [f"example.com/{name}" for name in names]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        kubelet = await stack.enter_async_context(RealKubelet(binary, directory / "plugins"))
        older = await scene.start()
        stack.push_async_callback(older.kill)
        await scene.registered(older)
        for one in resources:
            await kubelet.wait(one, DEVICES, DEVICES, timeout=TIMEOUT_S)
        async with Watch(kubelet, resources) as watch:
            survivor = await act(scene, older)
            stack.push_async_callback(survivor.kill)
            await scene.registered(survivor)
            await watch.settled()
        return watch.run


def line(what: str, runs: list[Run]) -> str:
    def ms(values: list[float]) -> str:
        return f"{statistics.median(values) * 1000:5.0f} / {max(values) * 1000:5.0f}"

    return (
        f"| {what:<49} | {ms([run.less for run in runs])} | {ms([run.longest for run in runs])} "
        f"| {max(run.worst for run in runs):3} | {ms([run.refused_for for run in runs])} "
        f"| {sum(run.refused for run in runs):3} "
        f"| {', '.join(sorted(set().union(*(run.reasons for run in runs)))) or '-'} |"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubelet", nargs="+", type=Path, required=True, metavar="BINARY")
    parser.add_argument("--resources", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="in what is measured")
    options = parser.parse_args()
    for binary in options.kubelet:
        loads, polls = [], []
        print(
            f"\n{binary.name}: {options.resources} resources, {options.runs} runs; ms, median / max"
        )
        print("| what | less than all | one resource | most at once | refused for | times | why |")
        for what, act in SCENARIOS.items():
            if options.only not in what:
                continue
            runs = []
            for _ in range(options.runs):
                runs.append(await measure(binary, act, options.resources))
                loads.append(os.getloadavg()[0])
                polls += runs[-1].polls
            print(line(what, runs), flush=True)
        took = f"{statistics.median(polls) * 1000:.1f} ms, at most {max(polls) * 1000:.0f}"
        load = f"{min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"
        print(f"from poll to poll {took}; load {load}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
