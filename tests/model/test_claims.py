"""Each node has one owner, whatever is edited, unplugged, restarted and booted.

In virtual time and without a kubelet, so that many sequences are tried; `test_model` runs few on
everything.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S
from devhost.custody.holders import CONFIRM_S, POLL_S
from devhost.model.advertised import AdvertisedName
from devhost.model.device_node import NodeId
from tests.support.claims import TICK_S, Finds, Node, PodList, Process, resource

EXAMPLES: Final = int(os.environ.get("DEVHOST_MODEL_EXAMPLES", "0"))
A, B, SHARING = "example.com/a", "example.com/b", "example.com/sharing"
NUMBERS: Final = {"/dev/x": 64, "/dev/y": 65, "/dev/second-x": 64}
BOOTED: Final = [dict(zip(NUMBERS, order, strict=True)) for order in ((65, 64, 66), (66, 65, 64))]
ALL: Final = (A, B, SHARING)
NAMES: Final = st.sampled_from([A, A, B, B, SHARING])
SERVED: Final = st.sampled_from([ALL, ALL, ALL, (A, B), (B, SHARING), (A,), (B,), ()])
MOSTLY: Final = st.sampled_from([True, True, False])
REPLICAS: Final = st.sampled_from([1, 1, 2])
# No resource finds both names of one node: it would take them for two devices, as the file says.
FINDS: Final = st.dictionaries(
    st.sampled_from(["1", "2"]),
    st.sampled_from([("/dev/x",), ("/dev/y",), ("/dev/second-x",), ("/dev/x", "/dev/y")]),
    max_size=2,
).filter(lambda finds: is_distinct(finds.values()))


def is_distinct(finds: Iterable[tuple[str, ...]]) -> bool:
    numbers = [NUMBERS[path] for paths in finds for path in paths]
    return len(numbers) == len(set(numbers))


def step(
    **strategies: st.SearchStrategy[Any],
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a coroutine a rule."""

    def decorate(work: Callable[..., Any]) -> Callable[..., None]:
        def run(self: "ClaimsMachine", **values: Any) -> None:
            self.run(work(self, **values))

        run.__name__ = work.__name__
        made: Callable[..., None] = rule(**strategies)(run)  # type: ignore[call-overload]
        return made

    return decorate


class ClaimsMachine(RuleBasedStateMachine):
    """One sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner, self.patches = asyncio.Runner(), contextlib.ExitStack()
        # What the sources match, in whichever process.
        self.finds: dict[str, Finds] = {A: {"1": ("/dev/x",), "2": ("/dev/y",)}, B: {}, SHARING: {}}
        self.recorded: dict[Process, set[tuple[AdvertisedName, NodeId]]] = {}
        self.ended: dict[tuple[AdvertisedName, NodeId], float] = {}  # when
        self.present = set[AdvertisedName]()

    @initialize(disk_fills=st.booleans())
    def begin(self, disk_fills: bool) -> None:
        # What could not be written before the end of a process is known by pod-resources alone,
        # and of a device by its ID: so it keeps that.
        self.disk_fills = disk_fills
        if self.disk_fills:
            self.finds |= {B: {"1": ("/dev/second-x",)}, SHARING: {"1": ("/dev/y",)}}
        self.node = Node(self.directory / "state", NUMBERS)
        self.patches.enter_context(self.node.virtual_time(self.runner.get_loop()))
        self.run(self.start(ALL))

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        async def whole() -> None:
            await work
            await self.node.tick()
            self.check()

        self.runner.run(whole())

    def teardown(self) -> None:
        self.run(self.end_all())
        self.runner.close()
        self.patches.close()
        shutil.rmtree(self.directory)

    async def end_all(self) -> None:
        for process in tuple(self.node.processes):
            await self.node.end(process)

    async def start(self, names: Iterable[str], replicas: int = 1) -> None:
        self.configure(await self.node.start(), names, replicas)

    def configure(self, process: Process, names: Iterable[str], replicas: int) -> None:
        taken = {
            name
            for running in self.node.processes
            if running is not process
            for name in running.served
        }
        specs = [
            resource(resource_name, replicas=replicas, overlap=resource_name == SHARING)
            for resource_name in sorted(names)
        ]
        process.configure(*(spec for spec in specs if spec.name not in taken))
        for name in process.served:
            process.find(name, self.finds[name])

    def let_find(self, name: str, finds: Finds) -> None:
        if self.disk_fills:
            return
        self.finds[name] = finds
        if process := self.server(name):
            process.find(name, finds)

    def server(self, name: str) -> Process | None:
        return next((process for process in self.node.processes if name in process.served), None)

    def cannot_tell_others(self) -> bool:
        """Whether what one process hands out is known to another from kubelet's list alone."""
        serving = [process for process in self.node.processes if process.served]
        return self.node.disk_is_full and len(serving) > 1

    # ── what happens ──

    @step(name=NAMES, finds=FINDS)
    async def find(self, name: str, finds: Finds) -> None:
        self.let_find(name, finds)

    @step()
    async def exchange(self) -> None:
        """Give each of two resources the devices of the other."""
        finds_a, finds_b = self.finds[A], self.finds[B]
        for name, finds in ((A, finds_b), (B, finds_a)):
            self.let_find(name, finds)

    @step(path=st.sampled_from(sorted(NUMBERS)), present=MOSTLY)
    async def plug(self, path: str, present: bool) -> None:
        """Or unplug."""
        self.node.host.present -= {path}
        self.node.host.present |= {path} if present else set()
        for process in self.node.processes:
            for served in process.served.values():
                served.request_scan()

    @step(names=SERVED, replicas=REPLICAS)
    async def edit(self, names: Iterable[str], replicas: int) -> None:
        for process in self.node.processes[:1]:
            self.configure(process, names, replicas)

    @step(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=3))
    async def admit(self, numbers: list[int]) -> None:
        for number in numbers:
            free = [(name, token) for name in ALL for token in self.node.kubelet.free_ids(name)]
            if free:
                name, advertised_id = free[number % len(free)]
                if (process := self.server(name)) and not self.cannot_tell_others():
                    await self.node.kubelet.admit(process, name, advertised_id)

    @step(index=st.integers(0, 3))
    async def end_pod(self, index: int) -> None:
        pods = self.node.kubelet.pods
        if pods:
            del pods[sorted(pods)[index % len(pods)]]

    @step(seconds=st.sampled_from([1.0, CONFIRM_S, LEAVE_AFTER_S, 25.0, 25.0, 45.0]))
    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            await self.node.tick()
            self.check()

    @step(away=st.sampled_from([0.0, 25.0]), hidden=st.sampled_from([0.0, 4.0, POLL_S - 1]))
    async def restart_kubelet(self, away: float, hidden: float) -> None:
        """With an API server that may be away."""
        away, hidden = (0.0, 0.0) if self.disk_fills else (away, hidden)
        self.node.kubelet.restart(away, hidden)

    @step(available=st.booleans())
    async def answer_pod_resources(self, available: bool) -> None:
        """Or no more."""
        self.node.kubelet.available = available or self.disk_fills

    @step(full=st.booleans())
    async def fill_disk(self, full: bool) -> None:
        """Or empty it."""
        self.node.fill_disk(full=full and self.disk_fills)

    @step(names=SERVED, replicas=REPLICAS, kill=st.booleans())
    async def restart(self, names: Iterable[str], replicas: int, kill: bool) -> None:
        if self.node.processes:
            await self.node.end(self.node.processes[-1], kill=kill)
        await self.start(names, replicas)

    @step(names=SERVED)
    async def start_second(self, names: Iterable[str]) -> None:
        if len(self.node.processes) < 2:
            await self.start(names)

    @step(numbers=st.sampled_from(BOOTED), names=SERVED)
    async def boot(self, numbers: dict[str, int], names: Iterable[str]) -> None:
        """Since then every path leads to a node of its own."""
        await self.node.boot(numbers)
        await self.start(names)

    # ── what holds ──

    def check(self) -> None:
        self.no_node_has_two_names()
        self.no_claim_ends_early()

    def no_node_has_two_names(self) -> None:
        pods = [(pod.name, pod.numbers(self.node.host)) for pod in self.node.kubelet.pods.values()]
        for holding, rival in itertools.combinations(pods, 2):
            assert may_have(*holding, *rival), f"{holding} and {rival} are in pods"
        for process in self.node.processes:
            offered = list(process.allocatable())
            for holding, rival in itertools.combinations(offered, 2):
                assert holding[0] == rival[0] or may_have(*holding, *rival), (
                    f"{holding}, {rival} are offered"
                )
            for holding, rival in itertools.product(offered, pods):
                alone = len(self.node.processes) == 1
                fine = holding[0] == rival[0] or may_have(*holding, *rival) or not alone
                assert fine, f"{holding} is offered, {rival} is in a pod"

    def no_claim_ends_early(self) -> None:
        """A process that drops a record has to know; other processes, and the file, may follow later."""
        before, self.recorded = self.recorded, {}
        # A record may have ended in this tick before the device left.
        present, self.present = self.present, set()
        self.present.update(*(process.present() for process in self.node.processes))
        present = present | self.present
        for process in self.node.processes:
            self.recorded[process] = {
                (handout.name, node.id) for handout in process.handouts for node in handout.nodes
            }
        for process, records in self.recorded.items():
            kept = {(owner, key) for owner, node in records for key in node.keys}
            for owner, node in before.get(process, set()) - records:
                # Another process may read that it is recorded when it has ended, and end it again.
                ended_at = self.ended.get((owner, node), -1.0)
                is_known = ended_at >= self.node.kubelet.allocated_at.get(owner, 0.0)
                if not is_known and not any((owner, key) in kept for key in node.keys):
                    self.has_ended(owner, present)
                self.ended[owner, node] = self.node.kubelet.now

    def has_ended(self, owner: AdvertisedName, present: AbstractSet[AdvertisedName]) -> None:
        kubelet = self.node.kubelet
        allocated_at = kubelet.allocated_at.get(owner, 0.0)
        if kubelet.refused_at.get(owner, -1.0) >= allocated_at:
            return  # another process may have read what was withdrawn with the refusal
        if owner not in present:  # else what is withheld is refused: no time has to pass
            assert kubelet.is_settled(owner, kubelet.now), f"kubelet can allocate {owner}"
        # Of one kubelet: that it has restarted is known to a process by its next list.
        lists = [listed for listed in kubelet.pod_lists if listed.at >= allocated_at]
        by_kubelet = [
            [listed for listed in lists if listed.kubelet == number]
            for number in range(1, kubelet.number + 1)
        ]
        assert any(shows_free(owner, answers) for answers in by_kubelet), f"{owner}: {lists}"


def shows_free(owner: AdvertisedName, lists: list[PodList]) -> bool:
    """Return whether no pod has a device by the last list, and by one some time before it."""
    last = lists[-1:]
    before = [listed for answer in last for listed in lists if listed.at <= answer.at - CONFIRM_S]
    return bool(before) and not any(owner in shown.names for shown in (*before[-1:], *last))


def may_have(
    name: AdvertisedName, nodes: set[int], rival: AdvertisedName, rival_nodes: set[int]
) -> bool:
    """Whether two names may be in pods at the same time."""
    shares = name == rival and name.shared
    return shares or SHARING in (name.resource, rival.resource) or nodes.isdisjoint(rival_nodes)


def test_any_sequence_leaves_each_node_to_one_name() -> None:
    chosen = settings(
        max_examples=EXAMPLES or 150,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=list(Phase) if "DEVHOST_MODEL_SHRINK" in os.environ else [Phase.generate],
    )
    run_state_machine_as_test(ClaimsMachine, settings=chosen)
