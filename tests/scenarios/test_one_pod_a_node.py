"""Whatever is edited, restarted and started: one node is never given to two living pods.

Unless ``replicas`` or ``overlap`` says so. Without a state directory nothing is promised of the
pods that were there before devhost started.
"""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.host.host import Host
from devhost.loading.loader import loads
from devhost.model.config import Config
from devhost.model.immutable import immutable
from devhost.standin.kubelet import AdmissionError, PodResourcesLister, SimulatedKubelet
from tests.support.hosting import Hosting

pytestmark = pytest.mark.slow

NAMES: Final = ("example.com/a", "example.com/b")
NODES: Final = ("x", "y")
EXAMPLES: Final = 12
POLL_S: Final = 0.05
PARTIAL_S: Final = 0.04  # a kubelet that has just started lists none of its pods


@immutable
class Declared:
    """One resource of a file."""

    name: str
    keys: tuple[str, ...]

    def text(self, directory: Path) -> str:
        keys = "".join(f", {key}" for key in self.keys if key)
        source = f"sources: [directory: {directory}/colas]"
        return f"  - {{name: {self.name}, {source}, allocate: {{env: {{NODES: '${{realpath}}'}}}}{keys}}}"


@immutable
class Pod:
    """A living pod."""

    name: str
    process: int
    resource: str
    ids: frozenset[str]
    nodes: frozenset[str]
    overlap: bool


Action = tuple[str, Any]
Round = tuple[Action, list[Action], list[Action]]

declared = st.builds(
    Declared,
    st.sampled_from(NAMES),
    st.tuples(
        st.sampled_from(["", "id: 'new-${name}'", "group: both"]),
        st.sampled_from(["", "", "replicas: 2", "replicas: 3"]),
        st.sampled_from(["", "", "overlap: allow"]),
        st.sampled_from(["", "", "maxDevices: 1"]),
    ),
)
files = st.lists(declared, min_size=1, max_size=2, unique_by=lambda one: one.name)
disruptions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("edit"), files),
    st.tuples(st.just("edit while down"), files),
    st.sampled_from([("edit", []), ("restart", None), ("kubelet", None), ("nothing", None)]),
)
pods = st.lists(st.tuples(st.just("pod"), st.integers(0, 1)), min_size=1, max_size=2)
ends = st.lists(st.tuples(st.just("end"), st.integers(0, 3)), max_size=1)
rounds = st.lists(st.tuples(disruptions, pods, ends), min_size=2, max_size=5)


class World:
    """A kubelet with pods, and a devhost whose file is edited."""

    def __init__(self, directory: Path, *, asked: bool, durable: bool) -> None:
        self.directory, self.asked, self.durable = directory, asked, durable
        self.hosting = Hosting(directory)
        self.hosting.leave_after = 0.05
        self.kubelet = SimulatedKubelet(directory / "plugins", directory / "pr.sock")
        self.config = self.parsed([Declared(NAMES[0], ())])
        self.pods: list[Pod] = []
        self.processes = 0
        self._numbers = itertools.count()

    def parsed(self, resources: Sequence[Declared]) -> Config:
        lines = [one.text(self.directory) for one in resources]
        return loads(
            "\n".join(["version: v1", "resources:", *lines] if lines else [EMPTY])
        ).require()

    @property
    def host(self) -> Host:
        return self.hosting.hosts[-1]

    async def start(self) -> None:
        self.processes += 1
        self.hosting.run(
            self.config,
            state_dir=self.directory / "state" if self.durable else None,
            pod_resources=self.directory / "pr.sock" if self.asked else None,
            assume_free=False,
        )
        while not self.host.configured:
            await asyncio.sleep(0)

    async def do(self, action: str, value: Any) -> None:
        match action:
            case "edit" | "edit while down":
                down, config = action != "edit", self.parsed(value)
                if down:
                    await self.hosting.stop()
                elif self.host.refused(config):
                    return
                self.config = config
                if down:
                    await self.start()
                else:
                    self.host.apply(config)
            case "restart":
                await self.hosting.stop()
                await self.start()
            case "kubelet":
                await self.kubelet.restart()
            case "pod" if self.config.resources:
                number = value % len(self.config.resources)
                await self.admit(self.config.resources[number].name)
            case "end" if self.pods:
                pod = self.pods.pop(value % len(self.pods))
                await self.kubelet.free(pod.name)

    async def admit(self, resource: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while not (await self.kubelet.capacity()).get(resource, (0, 0))[1]:
                    await asyncio.sleep(0.01)
        name = f"pod-{next(self._numbers)}"
        try:
            await self.kubelet.admit(name, {"app": {resource: 1}})
        except AdmissionError:
            return
        held = self.kubelet._ledger.pods[name]["app"][resource]
        nodes = frozenset(held.response.envs["NODES"].split(","))
        pod = Pod(name, self.processes, resource, held.ids, nodes, self.shares(resource))
        for other in self.pods:
            assert pod.nodes.isdisjoint(other.nodes) or self.allowed(pod, other), (pod, other)
        self.pods.append(pod)

    def shares(self, resource: str) -> bool:
        return any(one.name == resource and one.overlap == "allow" for one in self.config.resources)

    def allowed(self, pod: Pod, other: Pod) -> bool:
        if not self.durable and other.process != pod.process:
            return True
        if pod.resource == other.resource:
            (one,), (two,) = pod.ids, other.ids
            shares = "::" in one and one.partition("::")[0] == two.partition("::")[0]
            return shares and one != two
        if any(one.name == other.resource for one in self.config.resources):
            return pod.overlap or self.shares(other.resource)
        return pod.overlap and other.overlap

    async def settled(self) -> None:
        """When all pods have ended, everything is on offer."""
        while self.pods:
            await self.do("end", 0)
        async with asyncio.timeout(60):
            while any(self.withheld(one.name) for one in self.config.resources):
                await asyncio.sleep(0.02)

    def withheld(self, name: str) -> bool:
        found = [one for one in self.host.resources if one.name == name]
        return not found or any(not one.healthy for one in found[0].snapshot.devices.values())


EMPTY: Final = "version: v1\nresources: []"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_one_pod_a_node(monkeypatch: pytest.MonkeyPatch, *, asked: bool, durable: bool) -> None:
    monkeypatch.setattr("devhost.host.holders.POLL_S", POLL_S)
    _partial_lists(monkeypatch)

    @settings(max_examples=EXAMPLES)
    @given(rounds)
    def run(chosen: list[Round]) -> None:
        asyncio.run(live(chosen, asked=asked, durable=durable))

    run()


async def live(chosen: list[Round], *, asked: bool, durable: bool) -> None:
    directory = Path(tempfile.mkdtemp(prefix="dh"))
    for name in ("plugins", "colas"):
        (directory / name).mkdir()
    for node in NODES:
        (directory / "colas" / node).touch()
    world = World(directory, asked=asked, durable=durable)
    await world.kubelet.start()
    try:
        await world.start()
        await world.do("pod", 0)
        for disruption, started, ended in chosen:
            for action in (disruption, *started, *ended):
                await world.do(*action)
        if asked:
            await world.settled()
    finally:
        await world.hosting.close()
        await world.kubelet.stop()
        shutil.rmtree(directory)


def _partial_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stand-in list no pods in its first moments."""
    create, answer = PodResourcesLister.__init__, PodResourcesLister.List
    latest: list[float] = [0.0]

    def starting(self: PodResourcesLister, ledger: Any) -> None:
        latest[0] = asyncio.get_running_loop().time()
        create(self, ledger)

    async def partly(self: PodResourcesLister, request: Any, context: Any) -> Any:
        found = await answer(self, request, context)
        if asyncio.get_running_loop().time() - latest[0] < PARTIAL_S:
            del found.pod_resources[:]
        return found

    monkeypatch.setattr(PodResourcesLister, "__init__", starting)
    monkeypatch.setattr(PodResourcesLister, "List", partly)
