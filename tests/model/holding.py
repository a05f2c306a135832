"""No node is given to two living pods, whatever is edited, restarted and started.

Unless ``replicas`` or ``overlap`` says so. Without a state directory nothing is promised of pods that
were there before devhost started.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from devhost.fake_kubelet.kubelet import AdmissionError, Answer
from devhost.node.node import Host
from tests.model.bench import REST_S
from tests.model.declared import Declared, name_of
from tests.model.sequence import Sequence, both_run, kubelet_runs, step

# The path of a node, its inode, and the time of its content: a new file may get a former inode.
Places = frozenset[str | tuple[int, int, int]]

FILES = ("a0", "a1", "k0")  # the last is a symlink to the first
# Few, so that nodes often go from one to another.
DECLARED = st.builds(
    Declared,
    name=st.sampled_from(["example.com/p", "example.com/q"]),
    sources=st.sampled_from([("d0",), ("d0",), ("d0/a*",), ("d1/k*",), ("d1", "d0")]),
    id=st.sampled_from([None, None, "x-${name}"]),
    replicas=st.sampled_from([1, 1, 2]),
    max_devices=st.sampled_from([None, None, 1]),
    overlap=st.sampled_from([False, False, False, True]),
    group=st.sampled_from([False, False, True]),
)
MOSTLY = st.sampled_from([True, True, True, False])
CONFIG = st.lists(DECLARED, min_size=1, max_size=2, unique_by=lambda declared: declared.name)


@dataclass(frozen=True)
class Pod:
    """A living pod: what it was given, and by which process."""

    process: Host
    resource: str
    nodes: dict[str, Places]  # by the ID under which it has them
    overlap: bool


def second_may_come(machine: Sequence) -> bool:
    """Whether a second instance would know what the first one has handed out."""
    bench = machine.bench
    return both_run(machine) and bench.durable and len(bench.hosts) == 1


def two_run(machine: Sequence) -> bool:
    return both_run(machine) and len(machine.bench.hosts) > 1


class HoldingMachine(Sequence):
    """A sequence with pods that live on."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[str, Pod] = {}  # those of `pods`, and former ones
        self.sharing: set[str] = set()  # resources with overlap, now or a moment ago

    @initialize(declared=CONFIG, durable=MOSTLY)
    def begin(self, declared: list[Declared], durable: bool) -> None:
        self.bench.durable = durable

        async def begin() -> None:
            self.path("a0").touch()
            self.path("a1").touch()
            self.path("k0").symlink_to(self.path("a0"))
            await self.start(declared)

        self.run(begin(), f"begin({declared}, {durable=})")

    def note_lists(self) -> None:
        super().note_lists()
        self.sharing = set(self.bench.listener.tolerant)
        if len(self.bench.hosts) > 1:  # each of them may offer a node that no pod has
            self.bench.listener.tolerant = {declared.name for declared in self.here}

    # ── the configuration, and devices ──

    def edit(self, declared: list[Declared]) -> None:
        super().edit(declared)
        self.sharing |= self.bench.listener.tolerant

    @step(declared=st.one_of(CONFIG, CONFIG, CONFIG, st.just([])))
    async def edit_all(self, declared: list[Declared]) -> None:
        await self.edited(declared)

    @step(both_run, declared=CONFIG)
    async def edit_while_devhost_is_down(self, declared: list[Declared]) -> None:
        await self.stop()
        self.edit(declared)
        self.bench.start_host()

    @step(name=st.sampled_from(FILES))
    async def plug(self, name: str) -> None:
        """Or unplug."""
        if self.path(name).is_symlink() or self.path(name).exists():
            self.path(name).unlink()
        elif name == "k0":
            self.path(name).symlink_to(self.path("a0"))
        else:
            self.touch(name)
        self.nudge()

    # ── pods ──

    async def after(self, *, rest: bool) -> None:
        """At rest, ask for what is on offer: it must be nobody's."""
        await super().after(rest=rest)
        if rest and both_run(self):
            for declared in self.here:
                with contextlib.suppress(AdmissionError):
                    await self.admitted(declared.name, 1)
            self.never()

    @step(both_run, changes=False, index=st.integers(0, 1))
    async def admit(self, index: int) -> None:
        """Not at rest, too."""
        if index < len(self.here):
            with contextlib.suppress(AdmissionError):
                await self.admitted(self.here[index].name, 1)
        self.never()

    @step(kubelet_runs)
    async def free_all(self) -> None:
        while self.pods:
            await self.bench.kubelet.free(self.pods.popitem()[0])

    async def admitted(self, resource: str, count: int) -> Answer:
        process, places = self.bench.hosts[0], self._places()
        answer = await super().admitted(resource, count)
        nodes = {
            token: self._nodes(answer, token, places)
            for token in answer["deviceIds"].get(resource, ())
        }
        pod = Pod(process, resource, nodes, resource in self.sharing)
        for name in self.pods.keys() & self.living.keys():
            rival = self.living[name]
            for token, mine in pod.nodes.items():
                for rival_token, rival_nodes in rival.nodes.items():
                    free = mine.isdisjoint(rival_nodes) or self._allowed(
                        pod, token, rival, rival_token
                    )
                    assert free, f"{pod}\n{name}: {rival}\n{self.seen()}"
        self.living[f"pod-{self.number}"] = pod
        return answer

    def _places(self) -> dict[str, Places]:
        """Return where each name leads to, and what is there."""
        places = dict[str, Places]()
        for name in FILES:
            with contextlib.suppress(FileNotFoundError):
                path = self.path(name).resolve(strict=True)
                state = path.stat()
                file = state.st_dev, state.st_ino, state.st_mtime_ns
                places[name] = places[str(path)] = frozenset({str(path), file})
        return places

    def _nodes(self, answer: Answer, device_id: str, places: dict[str, Places]) -> Places:
        named = answer["envs"].get("NODES", name_of(device_id)).split(",")
        return frozenset(place for name in named for place in places[name])

    def _allowed(self, pod: Pod, token: str, rival: Pod, rival_token: str) -> bool:
        """Whether two pods may have a node, by these IDs."""
        if not self.bench.durable and rival.process is not pod.process:
            return True
        if pod.resource == rival.resource:
            return (
                token != rival_token
                and token.rpartition("::")[0] == rival_token.rpartition("::")[0] != ""
            )
        if rival.resource in {declared.name for declared in self.here}:
            return pod.overlap or rival.resource in self.sharing
        return pod.overlap and rival.overlap

    # ── a second instance ──

    @step(second_may_come)
    async def start_second_instance(self) -> None:
        self.bench.listener.tolerant |= {declared.name for declared in self.here}
        self.bench.start_host()

    @step(two_run, index=st.integers(0, 1))
    async def stop_one_instance(self, index: int) -> None:
        await self._stop_one(index)

    async def _stop_one(self, index: int) -> None:
        await self.bench.stop_host(index)
        self.orphaned |= (await self.bench.kubelet.capacity()).keys()

    # ── the end ──

    async def settled(self) -> None:
        """When all pods and the second instance have ended, everything is on offer."""
        if len(self.bench.hosts) > 1 and self.bench.kubelet_is_there:
            await self._stop_one(0)
        await super().settled()
        while self.pods:
            await self.bench.kubelet.free(self.pods.popitem()[0])
        end = time.monotonic() + REST_S
        while left := self._withheld():
            assert time.monotonic() < end, f"{left}\n{self.seen()}"
            await asyncio.sleep(0.01)

    def _withheld(self) -> list[str]:
        runners = self.bench.runners.values()
        return [
            device
            for runner in runners
            for device, held in runner.devices.offered.devices.items()
            if held.is_withheld
        ]
