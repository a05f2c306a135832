"""The real process, `devhost run`, and what can be seen of it from outside."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from tests.support import waiting
from tests.support.hosting import Kubelet

# What devhost looks at every half a minute would hide the loss of an event.
BY_EVENTS = {"node.config_file.POLL_S": 3600.0, "node.reconciler.RESCAN_S": 3600.0}
# Tests change much in a short time.
UNBOUND = {
    "model.limits.LISTS_BURST": 1e9,
    "node.resource_status._EVERY_S": 0.0,
    "custody.custody._WAIT_S": 5.0,  # the machine may be busy
    "custody.holders.POLL_S": 0.05,
}
LAUNCH = str(Path(__file__).with_name("launch.py"))
PATIENCE = waiting.PATIENCE
LONGEST_LINE = 16 * 1024 * 1024

Line = dict[str, Any]


@dataclass(frozen=True)
class Figures:
    descriptors: int
    threads: int
    watches: int  # of inotify
    sockets: int  # in the plugin directory
    rss: int  # bytes


class Daemon:
    """`devhost run` on a configuration, a plugin and a state directory below one directory.

    Attributes:
        constants: Other times and limits, by their path in devhost; see `launch.py`.
        code: Python that runs in the process before devhost does.
        bound: Whether its lists and log lines have the bounds that they have for users.
        wrapper: A command that starts the process, for example in a namespace.
        flags: More of the command line.
        stderr: A descriptor for the log, which is then not read here.
        lines: What the process has logged, in all its runs.
    """

    def __init__(self, directory: Path) -> None:
        self.plugins, self.state = directory / "plugins", directory / "state"
        self.pod_resources = directory / "pr.sock"
        self.config = directory / "etc" / "config.yaml"
        self.constants: dict[str, float] = BY_EVENTS
        self.code = ""
        self.bound = False
        self.wrapper: Sequence[str] = ()
        self.flags: list[str] = []
        self.stderr = PIPE
        self.lines: list[Line] = []
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    # ── its life ──

    async def start(self, config: str | None = None) -> None:
        """Start the process; does not wait until it does anything."""
        assert self._process is None, "it is running"
        self.config.parent.mkdir(exist_ok=True)
        if config is not None:
            self.config.write_text(config)
        constants = self.constants if self.bound else UNBOUND | self.constants
        begin = [LAUNCH, json.dumps(constants), self.code]
        if not (constants or self.code):
            begin = ["-m", "devhost"]
        self._process = await asyncio.create_subprocess_exec(
            *(*self.wrapper, sys.executable, *begin, "run", str(self.config)),
            *("--plugin-dir", str(self.plugins), "--state-dir", str(self.state)),
            *("--pod-resources", str(self.pod_resources), "--log-format", "json", *self.flags),
            stdout=DEVNULL,
            stderr=self.stderr,
            limit=LONGEST_LINE,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self.ended()

    async def ended(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        async with asyncio.timeout(PATIENCE):
            status = await self._process.wait()
            await self._reader
        self._process = None
        return status

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def write(self, config: str) -> None:
        """Put another configuration in place, as an editor does: by a rename."""
        fresh = self.config.with_name(".fresh")
        fresh.write_text(config)
        fresh.replace(self.config)

    # ── what it says ──

    def found(self, message: str, since: int = 0, **fields: object) -> list[Line]:
        """Return the lines with a text in their message or reason, and with these fields."""
        return [
            line
            for line in self.lines[since:]
            if message in f"{line.get('msg')}\n{line.get('reason')}"
            and all(line.get(key) == value for key, value in fields.items())
        ]

    async def logged(self, message: str, since: int = 0, **fields: object) -> Line:
        try:
            async with asyncio.timeout(PATIENCE), self._news:
                while not (lines := self.found(message, since, **fields)):
                    assert self._reader
                    assert not self._reader.done(), f"it has ended:\n{self._tail()}"
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not logged: {message} {fields}\n{self._tail()}") from None
        return lines[0]

    async def until(self, state: State, count: int) -> None:
        """Wait until so many resources are in a state."""
        try:
            async with asyncio.timeout(PATIENCE), self._news:
                await self._news.wait_for(
                    lambda: list(self._states().values()).count(state) >= count
                )
        except TimeoutError:
            raise AssertionError(f"not {state}: {self._states()}\n{self._tail()}") from None

    def _states(self) -> dict[str, str]:
        changes = (line for line in self.lines if line.get("msg") == "state")
        return {line["resource"]: line["state"] for line in changes}

    def _tail(self) -> str:
        return "\n".join(json.dumps(line) for line in self.lines[-40:])

    async def _read(self, process: Process) -> None:
        if process.stderr is None:
            return
        async for raw in process.stderr:
            try:
                line = json.loads(raw)
            except ValueError:
                line = {"msg": raw.decode(errors="replace").rstrip(), "level": "raw"}
            async with self._news:
                self.lines.append(line)
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    # ── what it holds ──

    def sockets(self) -> set[str]:
        return {path.name for path in self.plugins.glob("devhost-*.sock")}

    def figures(self) -> Figures:
        place = Path(f"/proc/{self.pid}")
        descriptors = watches = 0
        for info in (place / "fdinfo").iterdir():
            try:
                text = info.read_text()
            except OSError:
                continue  # closed meanwhile
            descriptors += 1
            watches += text.count("inotify wd:")
        return Figures(
            descriptors,
            threads=len(list((place / "task").iterdir())),
            watches=watches,
            sockets=len(self.sockets()),
            rss=int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
        )


async def until(true: Any, event: str = "what was awaited") -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never: {event}") from None


async def ids_of(kubelet: Kubelet, resource: str) -> set[str]:
    """Return the IDs of the healthy devices that a kubelet has."""
    if isinstance(kubelet, SimulatedKubelet):
        return {key for key, health in kubelet.devices(resource).items() if health == "Healthy"}
    return set(await kubelet.healthy_devices(resource))


async def at_rest(kubelet: Kubelet, daemon: Daemon, declared: Mapping[str, Iterable[str]]) -> None:
    """Wait until what the kubelet has is what is declared and present, and nothing else."""
    wanted = {name: set(ids) for name, ids in declared.items()}
    counts = {name: (len(ids), len(ids)) for name, ids in wanted.items()}
    seen: dict[str, tuple[int, int]] = {}
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                # What a dead process served is counted, but not offered, for five minutes.
                capacity = await kubelet.capacity()
                seen = {name: n for name, n in capacity.items() if name in wanted or n[1]}
                if (
                    seen == counts
                    and len(daemon.sockets()) == len(wanted)
                    and all([await ids_of(kubelet, name) == ids for name, ids in wanted.items()])
                ):
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{seen}; sockets: {daemon.sockets()}\n{daemon._tail()}") from None


def directories(place: Path, *names: str) -> str:
    """Return a configuration with a resource per directory of `place`."""
    resources = "".join(
        f"  - {{name: example.com/{name}, sources: [directory: {place / name}],"
        " removeMissingAfter: 100ms}\n"
        for name in names
    )
    return f"version: v1\nresources:\n{resources}"


def tokens(**counts: int) -> str:
    entry = "\n  - {{name: example.com/{}, sources: [static: {}]}}"
    resources = "".join(entry.format(*pair) for pair in counts.items())
    return f"version: v1\nresources:{resources or ' []'}\n"


def numbers(count: int) -> set[str]:
    return {str(number) for number in range(count)}
