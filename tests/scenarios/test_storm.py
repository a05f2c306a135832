"""A kubelet since 1.34 dies when an ID that it has picked leaves the list: it never does.

Pods come and go by the hundred while devices are unplugged, limits change and the
configuration is reloaded. That such a storm can bring a kubelet down at all is shown with
the rule for leaving IDs switched off.
"""

import asyncio
import contextlib
import itertools
import random
import re
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost.allocation.declaration import Declaration
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import AllocationError
from devhost.host.host import Host
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.servicer import Servicer
from devhost.loading.loader import loads
from devhost.model.allocation import Allocation
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.hosting import Hosting, Kubelet
from tests.support.realkubelet import KubeletDied

pytestmark = pytest.mark.slow

STORM_S = 4.0
LEAVE_AFTER_S = 2.0  # a kubelet that hardly gets a processor may read a list that much later
FILES, PATHS, TOKENS, GUEST = (f"example.com/{n}" for n in ("files", "paths", "tokens", "guest"))
ALL = (FILES, PATHS, TOKENS, GUEST)
NAMES = [f"c{index}" for index in range(40)]
ASKED_FOR: deque[str] = deque(["c0"], maxlen=1)  # the ID that a container was given last


async def listed(kubelet: Kubelet, resource: str) -> set[str]:
    """Return the IDs of the healthy devices that a kubelet has."""
    if isinstance(kubelet, SimulatedKubelet):
        return {key for key, health in kubelet.devices(resource).items() if health == "Healthy"}
    return set(await kubelet.healthy_devices(resource))


# ── the storm ──


class Storm:
    """All that happens concurrently, at random; the same seed draws the same lots."""

    def __init__(self, kubelet: Kubelet, host: Host, directory: Path, seed: int) -> None:
        self.kubelet, self.host, self.directory = kubelet, host, directory
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.until = asyncio.get_running_loop().time() + STORM_S
        self._pods = itertools.count()

    @property
    def on(self) -> bool:
        return asyncio.get_running_loop().time() < self.until

    async def plug(self) -> None:
        """Devices come, go and are renamed, one by one or in bursts."""
        while self.on:
            for _ in range(self.random.choice((1, 1, 1, 8))):
                place = self.directory / self.random.choice(("colas", "paths"))
                name = ASKED_FOR[0].partition("::")[0].removeprefix("x-")
                path = place / self.random.choice((*NAMES, *[name] * 20))
                if not path.exists():
                    path.touch()
                elif self.random.random() < 0.3:
                    path.rename(place / self.random.choice(NAMES))
                else:
                    path.unlink()
                self.seen["plugged or unplugged"] += 1
            await asyncio.sleep(self.random.uniform(0, 0.03))

    def config(self) -> str:
        """Draw a configuration: sources, limits, shares, IDs, and whether one is there at all."""
        draw = self.random.choice
        guest = f"  - {{name: {GUEST}, sources: [static: 4], replicas: {draw((1, 2))}}}\n"
        exclude = draw(('["c1*"]', "[c2, c3]", "[]"))
        return f"""
version: v1
resources:
  - name: {FILES}
    sources: [directory: {{path: {self.directory}/colas, exclude: {exclude}}}]
    id: "{draw(("${name}", "${name}", "x-${name}"))}"
    maxDevices: {draw((2, 5, 50, 50))}
    replicas: {draw((1, 1, 3))}
    removeMissingAfter: {draw(("50ms", "0s", "5m"))}
  - name: {PATHS}
    sources: [glob: {self.directory}/{draw(("paths/*", "paths/*", "paths/c1*", "colas/*"))}]
    overlap: {draw(("allow", "deny"))}
    maxDevices: {draw((1, 3, 50))}
    removeMissingAfter: 50ms
  - {{name: {TOKENS}, sources: [static: {draw((1, 3, 9))}], replicas: {draw((1, 5))}}}
{draw((guest, ""))}"""

    async def edit(self) -> None:
        """The configuration changes."""
        while self.on:
            self.host.apply(loads(self.config()).require())
            self.seen["reloads"] += 1
            await asyncio.sleep(self.random.uniform(0, 0.9))

    async def pods(self) -> None:
        """Pods are admitted, hold their devices for a moment, and end."""
        while self.on:
            pod = f"pod-{next(self._pods)}"
            wanted = self.random.sample(ALL, self.random.choice((1, 1, 1, 2)))
            try:
                await self.kubelet.admit(
                    pod, {"app": {name: self.random.choice((1, 1, 2)) for name in wanted}}
                )
            except AdmissionError as error:
                self.seen[f"refused: {kind_of(error)}"] += 1
                await asyncio.sleep(0.01)
            else:
                self.seen["admitted"] += 1
                await asyncio.sleep(self.random.uniform(0, 0.02))
                await self.kubelet.free(pod)

    async def hammer(self) -> None:
        """Another client asks without a pause, for what is there and for what is not."""
        while self.on:
            await asyncio.sleep(0.05)
            for path in self.host._directory.path.glob("devhost-*.sock"):
                async with plugin(path) as stub:
                    for _ in range(5):
                        await self._ask(stub)

    async def _ask(self, stub: "pb_grpc.DevicePluginAsyncStub") -> None:
        ids = self.random.sample([*NAMES, "0", "1::0", "x-c1", "c1::2", "no"], 2)
        one = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=1)
        try:
            await stub.GetPreferredAllocation(
                pb.PreferredAllocationRequest(container_requests=[one])
            )
            self.seen["direct GetPreferredAllocation"] += 1
            container = pb.ContainerAllocateRequest(devices_ids=ids[:1])
            self.seen["direct Allocate"] += 1
            await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
        except grpc.aio.AioRpcError as error:
            gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert error.code() in (grpc.StatusCode.FAILED_PRECONDITION, *gone), error

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in (self.plug, self.edit, self.hammer, *[self.pods] * 8):
                tasks.create_task(work())


def kind_of(error: AdmissionError) -> str:
    """Return a refusal without names and numbers, to be counted."""
    return re.sub(r"\S*\d\S*|example.com/\w+", "…", str(error))[-60:]


@contextlib.asynccontextmanager
async def plugin(path: Path) -> AsyncIterator["pb_grpc.DevicePluginAsyncStub"]:
    """Connect to a plugin's socket."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield pb_grpc.DevicePluginStub(channel)


@pytest.fixture
def hesitant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then an answer takes a moment, so that lists change while it is on its way."""
    lots = random.Random(1)
    allocate = Declaration.allocate

    def slow(*arguments: Any) -> object:
        answer = allocate(*arguments)
        ASKED_FOR.append(arguments[2][0])
        threading.Event().wait(lots.choice((0,) * 18 + (0.01, 0.06)))
        return answer

    monkeypatch.setattr(Declaration, "allocate", slow)


@pytest.fixture
def no_list_drops_directly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Look at all lists of all streams: what left one directly, or too soon."""
    found: list[str] = []
    listen = Servicer.ListAndWatch

    async def noting(self: Servicer, request: pb.Empty, context: Any) -> None:
        clock, write = asyncio.get_running_loop().time, context.write
        healthy: dict[str, float | None] = {}  # the last list: since when an ID is unhealthy

        async def judged(message: pb.ListAndWatchResponse) -> None:
            fresh = {
                one.ID: None if one.health == "Healthy" else healthy.get(one.ID) or clock()
                for one in message.devices
            }
            for device_id in healthy.keys() - fresh.keys():
                since = healthy[device_id]
                if since is None or clock() - since < LEAVE_AFTER_S - 0.01:
                    found.append(f"{self._answers.name}: {device_id} left too soon")
            healthy.clear()
            healthy.update(fresh)
            await write(message)

        context = Writing(context, judged)
        await listen(self, request, context)

    monkeypatch.setattr(Servicer, "ListAndWatch", noting)
    return found


class Writing:
    """A call's context with another way to write."""

    def __init__(self, context: Any, write: Any) -> None:
        self._context, self.write = context, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@pytest.mark.usefixtures("hesitant")
@pytest.mark.parametrize("seed", [1])
async def test_a_storm(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    no_list_drops_directly: list[str],
    seed: int,
) -> None:
    """The kubelet lives on; in the end it has what is there, and hands it out."""
    (directory / "paths").mkdir()
    for place, name in itertools.product(("colas", "paths"), NAMES[::2]):
        (directory / place / name).touch()
    hosting.leave_after = LEAVE_AFTER_S
    host = hosting.start(
        f"""
version: v1
resources:
  - {{name: {FILES}, sources: [directory: {directory}/colas]}}
  - {{name: {PATHS}, sources: [glob: {directory}/paths/*]}}
  - {{name: {TOKENS}, sources: [static: 20]}}
  - {{name: {GUEST}, sources: [static: 20]}}
"""
    )
    # A kubelet takes a resource that it does not know for one that another component
    # hands out. The scheduler keeps such pods away; here, all are known from the start.
    for name in ALL:
        await started.wait(name, 20, 20)
    storm = Storm(started, host, directory, seed)
    await storm.run()
    host.apply(
        loads(f"""
version: v1
resources:
  - {{name: {FILES}, sources: [directory: {directory}/colas], removeMissingAfter: 0s}}
  - {{name: {PATHS}, sources: [glob: {directory}/paths/*], removeMissingAfter: 0s}}
  - {{name: {TOKENS}, sources: [static: 2], allocate: {{env: {{TOKEN: "${{id}}"}}}}}}
""").require()
    )
    (directory / "colas" / "last").touch()
    (directory / "paths" / "last").touch()
    present = {
        FILES: {path.name for path in (directory / "colas").iterdir()},
        PATHS: {path.name for path in (directory / "paths").iterdir()},
        TOKENS: {"0", "1"},
    }
    for name, ids in present.items():
        async with asyncio.timeout(60):  # what is still listed may be as many as are there
            while await listed(started, name) != ids:
                await asyncio.sleep(0.02)
        await started.wait(name, len(ids), len(ids))
    async with asyncio.timeout(60):  # it may still be draining
        while (await started.capacity()).get(GUEST, (0, 0)) != (0, 0):
            await asyncio.sleep(0.005)
    answer = await started.admit("last", {"app": {TOKENS: 2}})
    assert answer["app"]["envs"] == {"TOKEN": "0,1"}
    assert no_list_drops_directly == []
    if isinstance(started, SimulatedKubelet):
        assert started.panics == []
    assert storm.seen["admitted"] > 0
    assert storm.seen["direct Allocate"] > 0


# ── the proof that a kubelet can be brought down ──


class Held:
    """A call that does not end before `end`."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.release.wait(60)

    async def until_begun(self) -> None:
        async with asyncio.timeout(60):
            while not self.begun.is_set():
                await asyncio.sleep(0.002)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.release.set()


async def dies(kubelet: Kubelet, admission: asyncio.Task[Any]) -> None:
    """Look that an admission brings the kubelet down, or not where it is older."""
    if isinstance(kubelet, SimulatedKubelet):
        with pytest.raises(RuntimeError, match="kubelet panic"):
            await admission
    elif kubelet.version >= (1, 34):
        with pytest.raises(KubeletDied, match="nil pointer dereference"):
            await admission
        await kubelet.kill()  # what is left of it
    else:
        await admission


@pytest.fixture
async def admission(
    started: Kubelet, hosting: Hosting, directory: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Task[Any]:
    """A pod whose device vanishes while the kubelet waits for the answer to Allocate."""

    allocate = Declaration.allocate

    def holding(*arguments: Any) -> object:
        answer = allocate(*arguments)
        held()
        return answer

    monkeypatch.setattr(Declaration, "allocate", holding)
    monkeypatch.setattr("devhost.kubelet.servicer.ALLOCATE_TIMEOUT_S", 60.0)
    return await vanishing(started, hosting, directory, held)


async def vanishing(
    kubelet: Kubelet, hosting: Hosting, directory: Path, held: Held
) -> asyncio.Task[Any]:
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    hosting.start(
        f"version: v1\nresources: [{{name: {FILES}, sources: [directory: {directory}/colas],"
        " removeMissingAfter: 0s}]\n"
    )
    await kubelet.wait(FILES, 2, 2)
    admission = asyncio.create_task(kubelet.admit("pod", {"app": {FILES: 1}}))
    await held.until_begun()
    (directory / "colas" / "a").unlink()
    (directory / "colas" / "b").unlink()
    return admission


@pytest.fixture
def rule_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """IDs leave the list immediately."""
    monkeypatch.setattr(DeviceList, "may_leave", lambda *_: True)


@pytest.mark.usefixtures("rule_off")
async def test_without_the_rule_the_kubelet_dies(
    started: Kubelet, held: Held, admission: asyncio.Task[Any]
) -> None:
    """An ID that leaves the list during Allocate brings a kubelet down, and is seen to."""
    await started.wait(FILES, 0, 0)
    held.release.set()
    await dies(started, admission)


async def test_with_the_rule_it_lives(
    started: Kubelet, hosting: Hosting, held: Held, admission: asyncio.Task[Any]
) -> None:
    """The same with the rule: the ID waits, unhealthy, until the call has ended."""
    await started.wait(FILES, 2, 0)
    await asyncio.sleep(3 * hosting.leave_after)
    assert (await started.capacity())[FILES] == (2, 0)
    held.release.set()
    assert (await admission)["app"]["deviceIds"][FILES]
    await started.wait(FILES, 0, 0)


@pytest.mark.usefixtures("rule_off")
@pytest.mark.parametrize("refusing", [True, False])
async def test_an_id_that_leaves_during_preferred_allocation(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    refusing: bool,
) -> None:
    """The second line: Allocate refuses what is not listed; the kubelet dies if it does not."""
    prefer, allocate = Servicer.GetPreferredAllocation, Servicer._allocate

    async def slow(self: Servicer, request: Any, context: Any) -> Any:
        await asyncio.get_running_loop().run_in_executor(None, held)
        return await prefer(self, request, context)

    async def careless(self: Servicer, advertised_ids: list[str], deadline: float) -> Any:
        with contextlib.suppress(AllocationError):
            return await allocate(self, advertised_ids, deadline)
        return Allocation()

    monkeypatch.setattr(Servicer, "GetPreferredAllocation", slow)
    if not refusing:
        monkeypatch.setattr(Servicer, "_allocate", careless)
    admission = await vanishing(started, hosting, directory, held)
    await started.wait(FILES, 0, 0)
    held.release.set()
    if refusing:
        with pytest.raises(AdmissionError, match="there is no device"):
            await admission
    else:
        await dies(started, admission)
