"""Two instances with drivers of their own leave pods what they have, whatever they do at a time.

In virtual time, as `test_claims`, whose invariants hold of claims, too.
"""

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final, NamedTuple

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from devhost.model.advertised import AdvertisedName
from devhost.model.config import Resource
from tests.support.claims import TICK_S, Finds, written
from tests.support.devices import reasons
from tests.support.drivers import Claim, DraNode, DraProcess

EXAMPLES: Final = int(os.environ.get("DEVHOST_MODEL_EXAMPLES", "0"))
ALPHA, BETA, SHARING = "example.com/alpha", "example.com/beta", "example.com/sharing"
DRIVERS: Final = ("devhost", "other.example.com")
NUMBERS: Final = {"/dev/x": 64, "/dev/y": 65, "/dev/z": 66, "/dev/second-x": 64}
BOOTED: Final = [
    dict(zip(NUMBERS, order, strict=True)) for order in ((65, 64, 67, 66), (66, 67, 65, 64))
]
FOUND: Final[Finds] = {"1": ("/dev/x",), "2": ("/dev/y",), "3": ("/dev/z",)}


@dataclass(frozen=True)
class Declared:
    """A resource of a configuration, and the devices that it finds."""

    name: str
    finds: Finds
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resource(self) -> Resource:
        overlap = "allow" if self.name == SHARING else "deny"
        whole = {"name": self.name, "sources": ["/dev/x*"], "overlap": overlap, **self.options}
        return Resource.model_validate(whole)


SHARED: Final = {"replicas": 2, "maxPerContainer": 1}
DECLARED: Final = st.builds(
    Declared,
    st.sampled_from([ALPHA, ALPHA, BETA, SHARING]),
    st.sampled_from(
        [
            FOUND,
            FOUND,
            {"x1": ("/dev/x",), "x2": ("/dev/y",)},
            {"1": ("/dev/y",), "2": ("/dev/x",)},
            {"1": ("/dev/second-x",)},
            {"1": ("/dev/y",)},
            {"1": ("/dev/x", "/dev/y")},
        ]
    ),
    st.builds(
        lambda *options: {key: value for option in options for key, value in option.items()},
        st.sampled_from([{"backend": "dra"}, {"backend": "dra"}, {"backend": "devicePlugin"}]),
        st.sampled_from([{}, {}, {"replicas": 2}, SHARED, SHARED, {"maxPerContainer": 1}]),
        st.sampled_from([{}, {"allocate": {"env": {"A": "1"}}}, {"allocate": {"env": {"B": "2"}}}]),
        st.sampled_from([{}, {"preStart": [{"run": ["format"]}]}]),
    ),
)


def is_distinct(config: Seq[Declared]) -> bool:
    """Whether no node is in two resources: devhost would leave it to the first."""
    numbers = [
        NUMBERS[path]
        for declared in config
        if declared.name != SHARING
        for paths in declared.finds.values()
        for path in paths
    ]
    return len(numbers) == len(set(numbers))


DRA: Final = {"backend": "dra"}
PLUGIN: Final = {"backend": "devicePlugin"}
STEPS: Final = {**DRA, "preStart": [{"run": ["a"]}]}
FOUND_BY_ALPHA: Final = [Declared(ALPHA, FOUND, DRA)]
WITH_STEPS: Final = [Declared(ALPHA, FOUND, STEPS)]
FOUND_BY_BETA: Final = [Declared(BETA, FOUND, DRA)]
BY_PLUGIN: Final = [Declared(ALPHA, FOUND, PLUGIN)]
FOUND_BY_BOTH: Final = [Declared(SHARING, FOUND, DRA), Declared(BETA, FOUND, {**DRA, **SHARED})]
CONFIG: Final = st.lists(
    DECLARED, min_size=1, max_size=2, unique_by=lambda declared: declared.name
).filter(is_distinct)


class Loss(NamedTuple):
    """A loss in the state directory; a file may be damaged instead."""

    pattern: str
    position: int
    damaged: bool


FILES: Final = ("state/claims/*.json", "state/records/*.json")
INDEX: Final = st.integers(0, 5)
LOSS: Final = st.builds(
    Loss,
    st.sampled_from([*FILES, *FILES, "state/claims", "state/records", "state"]),
    INDEX,
    st.booleans(),
)
DRIVER: Final = st.sampled_from(["devhost", "devhost", "other.example.com"])


class Sequence:
    """A node to which things happen, and what must be true of it after each of them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.node = directory, DraNode(directory / "state", NUMBERS)
        self.unrecorded = set[int]()  # the pods whose records were lost
        self.misled = set[int]()  # of them, those whose ID an edit has given to another device

    async def do(self, operation: str, *arguments: Any) -> None:
        await getattr(self, operation)(*arguments)
        self.watch()
        await self.pass_time(TICK_S)

    def watch(self) -> None:
        """Make all read what others have written, as a watch does."""
        for process in self.node.processes:
            process.file.sync_soon()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            await self.node.tick()
            self.note_unknown()
            self.check()

    # ── instances ──

    async def started(self, driver: str, config: Seq[Declared]) -> DraProcess:
        process = await self.node.start_driver(driver)
        self.configure(process, config)
        return process

    def configure(self, process: DraProcess, config: Seq[Declared]) -> None:
        process.configure(*(declared.resource for declared in config))
        for declared in config:
            process.find(declared.name, declared.finds)

    async def start_second(self, driver: str, config: Seq[Declared]) -> None:
        if len(self.node.processes) < 2:
            await self.started(driver, config)

    async def end_second(self, index: int, kill: bool) -> None:
        if len(instances := self.node.instances) > 1:
            await self.node.end(instances[index % 2], kill=kill)

    async def restart(
        self,
        index: int,
        kill: bool,
        lost: Loss | None,
        driver: str,
        config: Seq[Declared],
    ) -> None:
        if instances := self.node.instances:
            await self.node.end(instances[index % len(instances)], kill=kill)
        if lost is not None:
            self.lose(lost)
        await self.started(driver, config)

    async def edit(self, index: int, config: Seq[Declared]) -> None:
        if instances := self.node.instances:
            self.configure(instances[index % len(instances)], config)
            await self.pass_time(TICK_S)
            await self.prepare_all()

    async def boot(self, numbers: Mapping[str, int], driver: str, config: Seq[Declared]) -> None:
        await self.node.boot(numbers)
        await self.started(driver, config)
        await self.pass_time(TICK_S)
        await self.prepare_all()

    async def replug(self, index: int) -> None:
        """Give a node another number, of which pods that run do not know."""
        path = sorted(NUMBERS)[index % len(NUMBERS)]
        self.node.host.numbers[path] = max(self.node.host.numbers.values()) + 1
        for process in self.node.processes:
            for served in process.served.values():
                served.request_scan()
        await self.pass_time(TICK_S)
        await self.prepare_all()

    async def wait(self, seconds: float) -> None:
        await self.pass_time(seconds)

    # ── the state directory ──

    async def fill_disk(self, full: bool) -> None:
        """Or empty it."""
        self.node.fill_disk(full=full)

    async def lose_while_running(self, lost: Loss) -> None:
        self.lose(lost)
        recorded = {claim.uid for claim in self.recorded_claims()}
        await self.pass_time(15.0)  # until kubelet has told who has what
        if self.node.instances and not self.node.disk_is_full:
            on_disk = {claim.uid for claim in self.recorded_claims() if self.is_written(claim)}
            assert on_disk == recorded

    def recorded_claims(self) -> list[Claim]:
        claims = self.node.kubelet.claims.values()
        return [claim for claim in claims if claim.answer is not None]

    def is_written(self, claim: Claim) -> bool:
        return self.node.claim_file(claim).exists()

    def lose(self, lost: Loss) -> None:
        paths = sorted(self.directory.glob(lost.pattern))
        if not paths:
            return
        path = paths[lost.position % len(paths)]
        if not path.is_file():
            path.rename(Path(mkdtemp(dir=self.directory)) / "lost")
        elif lost.damaged:
            path.write_text("{")
        else:
            path.unlink()
            for claim in self.node.kubelet.claims.values():
                if path == self.node.claim_file(claim):
                    self.lose_record(claim)  # for all instances, it has ended
        self.note_unknown()

    def lose_record(self, claim: Claim) -> None:
        claim.is_unknown = claim.answer is not None or claim.is_unknown
        claim.answer, claim.advertised_id = None, ""

    def note_unknown(self) -> None:
        """Record of which claims and pods nobody knows any longer what they have."""
        names = {path.stem for path in self.node.claim_files() if path.read_text() != "{"}
        for process in self.node.instances:
            records = process.file.table.claims.values()
            names |= {f"{record.driver}_{record.claim}" for record in records}
        for claim in self.node.kubelet.claims.values():
            if f"{claim.published.driver}_{claim.uid}" not in names:
                self.lose_record(claim)
        on_disk = self.recorded_ids()
        for number, pod in self.node.kubelet.pods.items():
            name, paths = pod.name, pod.device.paths
            is_locked = any(
                process.locks.get(name.resource).held for process in self.node.instances
            )
            if (name.resource, pod.advertised_id) not in on_disk and not is_locked:
                self.unrecorded.add(number)
            for process in self.node.instances if number in self.unrecorded else ():
                served = process.served.get(name.resource)
                if served and served.scanned.get(name.device, paths) != paths:
                    self.misled.add(number)

    def recorded_ids(self) -> set[tuple[str, str]]:
        """Return the resources and IDs of handouts on the disk."""
        texts = [path.read_text() for path in self.directory.glob("state/records/*.json")]
        files = [json.loads(text) for text in texts if text != "{"]
        return {(file["resource"], record["id"]) for file in files for record in file["records"]}

    # ── pods ──

    async def start_pods(self, index: int, count: int) -> None:
        """Start some at a time, each by another instance if that can be."""
        work: list[Coroutine[Any, Any, object]] = []
        ids = [
            (process, name, free)
            for process in self.node.instances
            for name in process.served
            if process.locks.get(name).held and not self.node.disk_is_full  # others would not know
            for free in self.node.kubelet.free_ids(name)
        ]
        for number in range(index, index + count):
            places = sorted(self.node.free(), key=lambda place: place.device)  # of two drivers, too
            if ids and (number % 2 == 0 or not places):
                work.append(self.node.kubelet.admit(*ids.pop(number % len(ids))))
            elif places:
                claim = self.node.allocate(places[number % len(places)])
                work.append(self.prepare(claim, len(work)))
        await asyncio.gather(*work)

    async def prepare(self, claim: Claim, index: int) -> None:
        drivers = self.of_driver(claim)
        if drivers:
            process = drivers[index % len(drivers)]
            error = await self.node.prepare(process, claim)
            assert not (error and self.has_to_be_prepared(process, claim)), f"{claim}: {error}"
            if not error and claim.paths <= process.paths(claim.name):
                assert claim.numbers == {self.node.host.numbers[path] for path in claim.paths}

    def of_driver(self, claim: Claim) -> list[DraProcess]:
        driver = claim.published.driver
        return [process for process in self.node.instances if process.driver == driver]

    def has_to_be_prepared(self, process: DraProcess, claim: Claim) -> bool:
        """Whether there is no reason why a claim could not be prepared again."""
        if claim.answer is None or claim.name is None:
            return False
        numbers = {self.node.host.numbers[path] for path in claim.paths}
        # Of two pods whose nodes had one name, after a replug, a boot leaves nothing to tell which
        # of them had the one that is there.
        place = claim.published.driver, claim.name, claim.advertised_id
        if not claim.numbers and any(
            not may_share(place, rival) for rival, nodes in self.held() if nodes & numbers
        ):
            return False
        if self.node.disk_is_full:  # then nothing that would have to be recorded may be new
            is_same = claim.numbers == numbers and process.paths(claim.name) in (set(), claim.paths)
            return is_same and self.node.claim_file(claim).exists()
        return bool(claim.numbers) or claim.paths <= process.paths()

    async def prepare_again(self, index: int, instance: int) -> None:
        """Or for the first time, where that has failed."""
        if claims := [*self.node.kubelet.claims.values()]:
            await self.prepare(claims[index % len(claims)], instance)

    async def prepare_all(self) -> None:
        """Prepare all claims again whose pods have started before, by all instances in turn."""
        for claim in [*self.node.kubelet.claims.values()]:
            if claim.answer is not None:
                for number in range(len(self.of_driver(claim))):
                    await self.prepare(claim, number)
                    self.watch()
                    await written()

    async def kill_while_steps_run(self, index: int) -> None:
        claims = [claim for claim in self.node.kubelet.claims.values() if claim.answer is None]
        claims += [self.node.allocate(place) for place in self.node.free()[:1]]
        if not claims or not (drivers := self.of_driver(claim := claims[index % len(claims)])):
            return
        self.node.steps_run = reached = asyncio.Event()
        preparing = asyncio.create_task(self.node.prepare(drivers[0], claim))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait({preparing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        self.node.steps_run = None
        if reached.is_set():
            await self.node.end(drivers[0], kill=True)
            preparing.cancel()
        waiting.cancel()
        await asyncio.wait({preparing, waiting})
        if not preparing.cancelled():
            preparing.result()

    async def end_pod(self, index: int) -> None:
        kubelet = self.node.kubelet
        pods: list[int | str] = [*kubelet.pods, *kubelet.claims]
        if pods:
            await self.end_pods([pods[index % len(pods)]])

    async def end_pods(self, pods: Seq[int | str]) -> None:
        kubelet = self.node.kubelet
        for pod in pods:
            if isinstance(pod, int):
                del kubelet.pods[pod]
                continue
            claim = kubelet.claims[pod]
            if self.node.disk_is_full and claim.answer is not None and not self.is_written(claim):
                continue  # it was lost, and is written again by who knows it
            if drivers := self.of_driver(claim):
                claim.numbers = frozenset()
                assert not await drivers[-1].unprepare(claim)
                del kubelet.claims[pod]

    # ── what holds ──

    def check(self) -> None:
        assert not self.node.problems
        for (place, nodes), (rival, rival_nodes) in itertools.combinations(self.held(), 2):
            if nodes & rival_nodes:
                assert may_share(place, rival), f"{place} and {rival} are in pods"

    def held(self) -> "list[tuple[Place, set[int]]]":
        """Return what pods have, and the numbers of its nodes."""
        kubelet = self.node.kubelet
        held = [
            (("", pod.name, pod.advertised_id), pod.numbers(self.node.host))
            for number, pod in kubelet.pods.items()
            if number not in self.misled
        ]
        for claim in kubelet.claims.values():
            if claim.name is not None and not claim.is_unknown:
                place = claim.published.driver, claim.name, claim.advertised_id
                held.append((place, set(claim.numbers)))
        return held

    # ── the end ──

    async def end(self) -> None:
        """When all pods have ended, all is on offer, and nothing is recorded."""
        kubelet = self.node.kubelet
        await self.do("fill_disk", False)
        for driver in DRIVERS:
            if driver not in {process.driver for process in self.node.instances}:
                await self.node.start_driver(driver)
        await self.end_pods([*kubelet.pods, *kubelet.claims])
        await self.pass_time(10.0)
        for process in self.node.instances:
            await self.node.end(process)
        process = await self.started(DRIVERS[0], BY_PLUGIN)
        await self.pass_time(60.0)
        withheld = reasons(process.served[ALPHA].offered)
        assert {name.device for name, _ in process.allocatable()} == {*FOUND}, withheld
        assert not process.file.table.snapshot()
        state = self.node.state_dir
        assert not [*state.glob("records/*.json"), *state.glob("claims/*.json")]
        await self.node.end(process)


Place = tuple[str, AdvertisedName, str]


def may_share(place: Place, rival: Place) -> bool:
    """Whether two pods may have a node: by which driver, name and ID each has it."""
    if place[:2] == rival[:2]:
        return place[1].shared and place[2] != rival[2]
    return SHARING in (place[1].resource, rival[1].resource)


# ── any order ──


def operation(
    work: Callable[..., object], *arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    return st.tuples(st.just(work.__name__), st.tuples(*arguments))


OPERATIONS: Final = st.one_of(
    *[operation(Sequence.start_pods, INDEX, st.integers(1, 3))] * 4,
    *[operation(Sequence.edit, INDEX, CONFIG)] * 2,
    *[operation(Sequence.restart, INDEX, st.booleans(), st.none() | LOSS, DRIVER, CONFIG)] * 2,
    *[operation(Sequence.wait, st.sampled_from([1.0, 5.0, 11.0, 25.0]))] * 2,
    *[operation(Sequence.start_second, DRIVER, CONFIG)] * 2,
    operation(Sequence.end_second, INDEX, st.booleans()),
    operation(Sequence.boot, st.sampled_from(BOOTED), DRIVER, CONFIG),
    operation(Sequence.replug, INDEX),
    operation(Sequence.fill_disk, st.booleans()),
    operation(Sequence.lose_while_running, LOSS),
    operation(Sequence.prepare_again, INDEX, INDEX),
    operation(Sequence.kill_while_steps_run, INDEX),
    operation(Sequence.end_pod, INDEX),
)


@settings(
    max_examples=EXAMPLES or 100,
    deadline=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
    phases=list(Phase)
    if "DEVHOST_MODEL_SHRINK" in os.environ
    else [Phase.explicit, Phase.generate],
)
# The pods of an instance that ended are younger than the list of who is next, and the records lost.
@example(
    BY_PLUGIN,
    "devhost",
    FOUND_BY_ALPHA,
    [
        ("start_pods", (0, 1)),
        ("end_second", (0, True)),
        ("wait", (1.0,)),
        ("restart", (0, True, Loss("state/records", 0, damaged=False), "devhost", FOUND_BY_BETA)),
        ("start_pods", (0, 1)),
    ],
)
# No list of pods has named yet what a claim had whose record is lost.
@example(
    WITH_STEPS,
    "devhost",
    [],
    [
        ("end_second", (1, True)),
        ("start_pods", (1, 1)),
        ("restart", (0, True, Loss("state/claims", 0, damaged=False), "devhost", WITH_STEPS)),
        ("prepare_again", (0, 0)),
    ],
)
# The other share of its device has a record.
@example(
    [Declared(ALPHA, FOUND, {**STEPS, **SHARED})],
    "devhost",
    [],
    [
        ("start_pods", (0, 1)),
        ("start_pods", (0, 1)),
        ("lose_while_running", (Loss("state/claims/*.json", 0, damaged=False),)),
        ("prepare_again", (0, 0)),
    ],
)
# What is reserved as 1 is another device for who completes it.
@example(
    WITH_STEPS,
    "devhost",
    [Declared(ALPHA, {"1": ("/dev/y",), "2": ("/dev/x",)}, DRA)],
    [
        ("kill_while_steps_run", (0,)),
        ("wait", (1.0,)),
        ("prepare_again", (0, 0)),
        ("replug", (2,)),
    ],
)
# Two claims have shares of a device, and a third shares its node by `overlap: allow`.
@example(
    FOUND_BY_BOTH,
    "devhost",
    [],
    [
        ("start_pods", (1, 1)),
        ("start_pods", (1, 1)),
        ("start_pods", (0, 1)),
        ("boot", (BOOTED[0], "devhost", FOUND_BY_BOTH)),
    ],
)
# A device has the node of another claim after an edit, and the boot comes before it is prepared.
@example(
    FOUND_BY_ALPHA,
    "devhost",
    [],
    [
        ("start_pods", (0, 1)),
        ("start_pods", (0, 1)),
        ("boot", (BOOTED[0], "devhost", [Declared(ALPHA, {"1": ("/dev/x", "/dev/y")}, DRA)])),
    ],
)
# After a replug the node of a claim, by an ID of an edit, is that of a pod, and then comes a boot.
@example(
    FOUND_BY_ALPHA,
    "devhost",
    [],
    [
        ("start_pods", (0, 1)),
        ("edit", (0, [Declared(BETA, FOUND, PLUGIN)])),
        ("replug", (1,)),
        ("wait", (11.0,)),
        ("start_pods", (0, 1)),
        ("boot", (BOOTED[0], "devhost", FOUND_BY_ALPHA)),
    ],
)
# The ID of a pod is, after an edit and a boot, that of a node of a claim.
@example(
    [
        Declared(BETA, {"1": ("/dev/x",)}, DRA),
        Declared(ALPHA, {"1": ("/dev/z",)}, PLUGIN),
    ],
    "devhost",
    [],
    [
        ("start_pods", (1, 1)),
        ("start_pods", (0, 1)),
        ("boot", (BOOTED[0], "devhost", BY_PLUGIN)),
    ],
)
@given(CONFIG, DRIVER, CONFIG, st.lists(OPERATIONS, min_size=10, max_size=25))
def test_pods_keep_what_they_have_whatever_happens(
    config: Seq[Declared],
    driver: str,
    second: Seq[Declared],
    operations: Seq[tuple[str, tuple[Any, ...]]],
) -> None:
    """And when all have ended, all is on offer, and nothing is recorded."""

    async def live(directory: Path) -> None:
        sequence = Sequence(directory)
        with sequence.node.virtual_time(asyncio.get_running_loop()):
            await sequence.do("start_second", DRIVERS[0], config)
            await sequence.do("start_second", driver, second)
            for name, arguments in operations:
                await sequence.do(name, *arguments)
            await sequence.do("end")

    with TemporaryDirectory() as directory, asyncio.Runner() as runner:
        runner.run(live(Path(directory)))
