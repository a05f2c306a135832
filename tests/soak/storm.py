"""A long storm of everything on the real process, with moments of rest in which all must agree."""

import asyncio
import contextlib
import itertools
import random
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.soak.rogues import Rogues
from tests.soak.world import Wanted, World
from tests.support.daemon import Daemon, Figures, ids_of
from tests.support.hosting import Kubelet
from tests.support.realkubelet import KubeletDied, KubeletError

LEAVE_AFTER_S = 10.0  # of devhost, unless a run asks for less
REST_MAX_S = 60.0  # beyond the time for leaving IDs
T = TypeVar("T")


class AwayError(Exception):
    """The kubelet was killed on purpose while it was asked something."""


class MismatchError(Exception):
    """What the kubelet has is not what is declared and present, or something died."""


class Soak:
    """One run.

    Attributes:
        events: What has happened, and how often.
        faults: The part of it that a process has to survive.
        checks: How often all agreed.
        mistakes: The tracebacks that devhost has logged.
        took: How long it took to agree, the last time.
        lives: The figures at each rest, by process: seconds since the start, what it held.
    """

    def __init__(
        self, directory: Path, kubelet: Kubelet, lots: random.Random, leave_after: float | None
    ) -> None:
        self.kubelet, self._lots = kubelet, lots
        self.world = World(directory / "host", lots)
        self._mount = directory / "etc"
        self._mount.mkdir()
        self._versions = itertools.count()
        self.daemon = Daemon(directory)
        self._sibling = Daemon(directory)
        self._sibling.state = directory / "state-2"
        self._leave_after = LEAVE_AFTER_S if leave_after is None else leave_after
        for one in (self.daemon, self._sibling):
            one.flags = ["--root", str(self.world.root), "--node-name", "node-1"]
            one.flags.append("--assume-free")  # devices are renamed, and edits rename them
            if leave_after is not None:
                one.constants = one.constants | {"kubelet.device_list.LEAVE_AFTER_S": leave_after}
        self._rogues = Rogues(self.daemon.plugins, lots)
        self.events: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.checks = 0
        self.mistakes: list[str] = []
        self.took = 0.0
        self.lives: dict[int, list[tuple[float, Figures]]] = {}
        self._down = self._murdered = False  # the kubelet and devhost, on purpose
        self._kills = 0
        self._pods: set[str] = set()
        self._numbers = itertools.count()
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._until = self._began

    # ── from the first to the last moment ──

    async def begin(self) -> None:
        """Start everything, and come to the first rest."""
        self._publish(self.world.whole())
        await self.kubelet.start()
        await self.daemon.start()
        await self.rest()

    async def round(self, seconds: float, *, deadly: bool, alone: bool) -> Figures:
        """Storm for so long, then come to rest; return what the process holds then.

        Args:
            seconds: How long.
            deadly: Whether devhost itself may be killed.
            alone: Whether no second instance comes.
        """
        self._until = self._clock() + seconds
        works = [self._files, self._edits, self._kubelet_faults, self._clients]
        works += [self._admissions] * 4
        works += [self._murder] if deadly else []
        works += [] if alone else [self._siblings]
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work())
        return await self.rest()

    async def end(self) -> None:
        """End everything that is still there, and look that devhost does so in order."""
        if await self.daemon.stop() != 0:
            raise MismatchError("devhost did not end with 0 on SIGTERM")
        if left := self.daemon.sockets():
            raise MismatchError(f"devhost left sockets: {left}")

    async def close(self) -> None:
        """Leave nothing behind, whatever has happened."""
        await self._rogues.go()
        for one in (self._sibling, self.daemon):
            await one.kill()
        await self.kubelet.kill()

    # ── what happens ──

    async def _again(self, longest: float) -> bool:
        """Wait for a moment; return whether the storm goes on."""
        pause = self._lots.uniform(0, longest)
        await asyncio.sleep(min(pause, max(0.0, self._until - self._clock())))
        return self._clock() < self._until

    async def _files(self) -> None:
        while await self._again(0.1):
            for _ in range(self._lots.choice((1, 1, 1, 2, 30))):
                self.events[self.world.plug()] += 1
            if self._lots.random() < 0.03:
                self.faults[self.world.upheaval()] += 1

    async def _edits(self) -> None:
        while await self._again(1.5):
            if self._lots.random() < 0.25:
                self._publish(self.world.bad())
                self.faults["bad configuration"] += 1
            else:
                for _ in range(self._lots.choice((1, 1, 1, 5))):
                    self._publish(self.world.edit())
                    self.events["edit"] += 1
            if self._lots.random() < 0.2 and self.daemon.running:
                self._hang_up()

    def _hang_up(self) -> None:
        """Send SIGHUP, as soon as the process can take it: before, it is deadly by default."""
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        if int(status.partition("SigCgt:")[2].split()[0], 16) >> signal.SIGHUP - 1 & 1:
            self.daemon.signal(signal.SIGHUP)
            self.events["SIGHUP"] += 1

    async def _kubelet_faults(self) -> None:
        while await self._again(12):
            if self._lots.random() < 0.3:
                (self.daemon.plugins / "kubelet.sock").unlink(missing_ok=True)
                self.faults["kubelet.sock removed"] += 1
                await self._again(3)
            for _ in range(self._lots.choice((1, 1, 1, 3))):
                await self._restart_kubelet(self._lots.choice((0, 0, 0.05, 1, 3)))

    async def _restart_kubelet(self, pause: float) -> None:
        self._look_alive()
        self._down = True
        self._kills += 1
        await self.kubelet.kill()
        await asyncio.sleep(pause)
        await self.kubelet.start()
        self._down = False
        self.faults["kubelet killed"] += 1

    async def _siblings(self) -> None:
        while await self._again(12):
            await self._sibling.start()
            await self._again(6)
            if not self._sibling.running:  # it came to a bad configuration, and had no good one
                await self._sibling.kill()
                self.faults["second instance gave up"] += 1
            elif self._lots.random() < 0.5:
                await self._sibling.kill()
                self.faults["second instance killed"] += 1
            else:
                await self._sibling.stop()
                self.faults["second instance stopped"] += 1

    async def _clients(self) -> None:
        while await self._again(1):
            self.faults[await self._rogues.come()] += 1
            if self._lots.random() < 0.05:
                await self._rogues.go()

    async def _murder(self) -> None:
        await self._again(max(0.0, self._until - self._clock()))
        self._look_alive()
        self._murdered = True
        await self.daemon.kill()
        self.faults["devhost killed"] += 1
        await asyncio.sleep(self._lots.choice((0, 0.3, 2)))
        await self.daemon.start()
        self._murdered = False

    def _publish(self, text: str) -> None:
        """Do as the kubelet does for a ConfigMap: a new directory, and one rename of ..data."""
        data = self._mount / "..data"
        former = data.resolve() if data.exists() else None
        fresh = self._mount / f"..v{next(self._versions)}"
        fresh.mkdir()
        (fresh / "config.yaml").write_text(text)
        link = self._mount / "..data_tmp"
        link.symlink_to(fresh.name)
        link.rename(data)
        if former is None:
            (self._mount / "config.yaml").symlink_to("..data/config.yaml")
        else:
            shutil.rmtree(former)

    # ── pods ──

    async def _asked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the kubelet; a death that was not on purpose ends the run."""
        kills = self._kills
        if self._down:
            raise AwayError
        try:
            return await work()
        except (KubeletDied, RuntimeError, KeyError):
            if self._kills == kills:
                raise
            raise AwayError from None

    async def _admissions(self) -> None:
        while await self._again(0.1):
            with contextlib.suppress(AwayError):
                if self._pods and self._lots.random() < 0.5:
                    await self._free(self._lots.choice(sorted(self._pods)))
                else:
                    await self._admit()

    async def _admit(self) -> None:
        # Only what has devices: the scheduler sees to that.
        seen = await self._asked(self.kubelet.capacity)
        known = [name for name, (_, allocatable) in sorted(seen.items()) if allocatable]
        if not known:
            return
        names = self._lots.sample(known, min(self._lots.randint(1, 2), len(known)))
        wanted = {name: self._lots.randint(1, 2) for name in names}
        pod = f"pod-{next(self._numbers)}"
        try:
            await self._asked(lambda: self.kubelet.admit(pod, {"app": wanted}))
        except AdmissionError:
            self.events["pod refused"] += 1
        except AwayError:
            self._pods.add(pod)  # it may be there after the restart
            raise
        else:
            self._pods.add(pod)
            self.events["pod admitted"] += 1

    async def _free(self, pod: str) -> None:
        self._pods.discard(pod)
        try:
            # Else it is one that was cut short by a kill: it may be known or not.
            await self._asked(lambda: self.kubelet.free(pod))
            self.events["pod freed"] += 1
        except AwayError:
            self._pods.add(pod)
            raise
        except (KubeletError, KeyError):
            self.events["pod lost"] += 1

    # ── rest ──

    async def rest(self) -> Figures:
        """Put everything in place, wait until all agree, and see what the process holds."""
        await self._rogues.go()
        if not (self.daemon.plugins / "kubelet.sock").exists():
            await self._restart_kubelet(0)
        for pod in sorted(self._pods):
            await self._free(pod)
        self._publish(self.world.whole())
        await self._agreement()
        await self._hand_out()
        if self._lots.random() < 0.5:
            self._publish(self.world.bad())
            self.faults["bad configuration"] += 1
            await asyncio.sleep(1)
            if (different := await self._different()) is not None:
                raise MismatchError(f"a bad configuration has changed something: {different}")
        self._note_tracebacks()
        self.checks += 1
        figures = self.daemon.figures()
        self.lives.setdefault(self.daemon.pid, []).append((self._clock() - self._began, figures))
        return figures

    async def _agreement(self) -> None:
        began = self._clock()
        while (different := await self._different()) is not None:
            if self._clock() > began + self._leave_after + REST_MAX_S:
                raise MismatchError(f"{different}\n{self.daemon._tail()}")
            await asyncio.sleep(0.1)
        self.took = self._clock() - began

    async def _different(self) -> str | None:
        """Say where the kubelet and the world differ."""
        self._look_alive()
        wanted = self.world.wanted()
        seen = await self.kubelet.capacity()
        for name, (capacity, allocatable) in seen.items():
            count = wanted.get(name, Wanted(0, frozenset())).count
            if capacity != count or allocatable != count:
                return f"{name}: {count} are there, the kubelet has {allocatable} of {capacity}"
        for name, want in wanted.items():
            ids = await ids_of(self.kubelet, name)
            if name not in seen or not ids <= want.ids or len(ids) != want.count:
                return (
                    f"{name}: {sorted(want.ids)[:40]} are there, the kubelet has {sorted(ids)[:40]}"
                )
        sockets = len(self.daemon.sockets())
        return None if sockets == len(wanted) else f"{len(wanted)} resources, {sockets} sockets"

    async def _hand_out(self) -> None:
        """See that what is advertised is handed out."""
        for name, want in self.world.wanted().items():
            if want.count:
                pod = f"pod-{next(self._numbers)}"
                answer = (await self.kubelet.admit(pod, {"app": {name: 1}}))["app"]
                (device_id,) = answer["deviceIds"][name]
                (given,) = answer["envs"].values()
                if device_id not in want.ids or device_id.rpartition("::")[0] not in ("", given):
                    raise MismatchError(f"{name}: {device_id} became {given}")
                await self.kubelet.free(pod)
                self.events["pod admitted"] += 1

    def _look_alive(self) -> None:
        if not self.daemon.running and not self._murdered:
            raise MismatchError(f"devhost has died\n{self.daemon._tail()}")
        if isinstance(self.kubelet, SimulatedKubelet):
            if self.kubelet.panics:
                raise MismatchError(f"the kubelet would have died: {self.kubelet.panics}")
        elif not self.kubelet.alive and not self._down:  # else it was killed, and comes again
            raise MismatchError(f"the kubelet has died\n{self.kubelet.log}")

    def _note_tracebacks(self) -> None:
        """Keep what devhost has logged of mistakes of its own, and forget the rest."""
        for one in (self.daemon, self._sibling):
            shown = [f"{line.get('msg')} {line.get('traceback', '')}" for line in one.lines]
            for number, text in enumerate(shown):
                if "Traceback" in text:
                    self.mistakes.append("\n".join(shown[max(0, number - 2) : number + 30]))
            one.lines.clear()
