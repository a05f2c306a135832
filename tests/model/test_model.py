"""Any sequence of changes ends in what is declared, and nothing forbidden happens on the way.

Hypothesis draws the sequences: files, the configuration, restarts of either side, pods.
A short run belongs to every test run; ``DEVHOST_MODEL_EXAMPLES=N`` makes N
sequences, each longer; with ``DEVHOST_MODEL_RAW`` it does not look for the shortest that
fails. Every failure prints its steps, the last one a blob that makes them again.
"""

import asyncio
import contextlib
import inspect
import itertools
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from devhost.kubelet import backend
from devhost.standin.kubelet import AdmissionError, Answer
from tests.model.bench import REST_S, Bench
from tests.model.declared import (
    FILES,
    IDS,
    LINKS,
    SOURCES,
    Declared,
    directory_of,
    is_token,
    node_of,
    text_of,
)
from tests.model.expected import Past, Problem, check
from tests.support.realkubelet import REAL_KUBELETS

EXAMPLES: Final = int(os.environ.get("DEVHOST_MODEL_EXAMPLES", "0"))
RAW: Final = "DEVHOST_MODEL_RAW" in os.environ
DEFAULT_EXAMPLES: Final = 8
REAL_EXAMPLES: Final = 4
HANG_S: Final = 240.0  # of one step
LOST_S: Final = 120.0  # a registration that was under way when the kubelet died may take so long
T = TypeVar("T")

NAMES: Final = tuple(f"example.com/{letter}" for letter in "pqrs")
FILE = st.sampled_from([name for names in FILES.values() for name in names])
FREE_FILE = st.sampled_from(["a1", "b0", "c0", "c1"])  # no link leads to these
DIRECTORY = st.sampled_from(list(FILES))
DECLARED = st.builds(
    Declared,
    name=st.sampled_from(NAMES),
    sources=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3, unique=True).map(tuple),
    id=st.sampled_from(IDS),
    replicas=st.sampled_from([1, 1, 1, 2, 3]),
    max_devices=st.sampled_from([None, None, None, 1, 2]),
    overlap=st.sampled_from([False, False, False, True]),
    never=st.booleans(),
    answer=st.integers(0, 3),
    here=st.sampled_from([True, True, True, True, False]),
)
FIELDS = st.sampled_from(
    ["sources", "id", "replicas", "max_devices", "overlap", "never", "answer", "here"]
)
INVALID = st.sampled_from(["oops: 1\n", "resources: []\n", "{", "\t- x: ["])
REST = st.sampled_from([True, True, True, False])


def _runs(self: "Machine") -> bool:
    return self.bench.host is not None


def _kubelet_runs(self: "Machine") -> bool:
    return self.bench.kubelet_is_there


def _both_run(self: "Machine") -> bool:
    return _runs(self) and _kubelet_runs(self)


class Machine(RuleBasedStateMachine):
    """One sequence; `binary` is the real kubelet to run it on."""

    binary: ClassVar[Path | None] = None
    runner: ClassVar[asyncio.Runner]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="dh"))
        self.unhandled: list[str] = []
        self.runner.get_loop().set_exception_handler(self._unhandled)
        self.bench = Bench(self.root, self.binary)
        self.declared: list[Declared] = []  # as in force
        self.text = ""  # in force
        self.past: dict[str, Past] = {}
        self.former: dict[str, set[str]] = {}  # by the name of a file, those that it had before
        self.orphaned: set[str] = set()  # the kubelet may keep these until it restarts
        self.pods: dict[str, tuple[str, Answer]] = {}
        self.number = 0
        self.rested = False
        self.patience = REST_S
        self.failed = False
        self.log: list[str] = []

    def _unhandled(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if error else ""
        owner = context.get("task") or context.get("future")
        self.unhandled.append(f"{context.get('message')}: {owner} {trace}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(HANG_S):
                return await work

        values = inspect.getcoroutinelocals(cast("Any", work))
        arguments = ", ".join(f"{key}={it!r}" for key, it in values.items() if key != "self")
        self.log.append(f"  {getattr(work, '__name__', '')}({arguments})")
        try:
            return self.runner.run(bounded())
        except Exception as error:
            if not self.failed:  # also where Hypothesis finds that it does not fail again
                steps = "\n".join(self.log)
                print(f"\nfailed: {error!r}\n{error}\nafter\n{steps}")  # noqa: T201
            self.failed = True
            raise

    # ── the model's side ──

    @property
    def here(self) -> list[Declared]:
        return [one for one in self.declared if one.here]

    async def after(self, rest: bool) -> None:
        """Note what was done; wait until all is as it has to be, if that can be."""
        type(self).steps += 1
        self.rested = False
        for one in self.here:
            self.past.setdefault(one.name, Past()).step(one, self.root)
        if rest and self.bench.host is not None and self.bench.kubelet_is_there:
            await self.rest()
        else:
            await asyncio.sleep(0)
        self.never()

    def never(self) -> None:
        found = self.bench.violations() + self.unhandled
        assert not found, "\n".join(found)

    async def rest(self) -> None:
        if self.rested:
            return
        end = time.monotonic() + self.patience
        while True:
            try:
                await self.is_right()
            except Problem as problem:
                self.never()
                if time.monotonic() > end:
                    raise AssertionError(f"not at rest: {problem}\n{self.seen()}") from None
                await asyncio.sleep(0.005)
            else:
                break
        self.rested, self.patience = True, REST_S
        behind = {one.name: self.behind(one) for one in self.here}
        for one in self.here:
            self.past[one.name].rest(self.bench.entries(one.name), behind[one.name])
            self.orphaned.discard(one.name)
        self.past = {one.name: self.past[one.name] for one in self.here}
        self.bench.listener.tolerant = {one.name for one in self.here if one.overlap}

    async def is_right(self) -> None:
        self.bench.configured(self.text)
        taken, alone = set[str](), set[str]()
        for one in self.here:
            if one.name not in self.bench.runners:
                raise Problem(f"{one.name} is not served")
            if not self.bench.runners[
                one.name
            ].scan.idle:  # the scan after an edit may change nothing
                raise Problem(f"{one.name} is being scanned")
            entries = self.bench.entries(one.name)
            try:
                past, behind = self.past[one.name], self.behind(one)
                offered = check(one, self.root, entries, past, taken, taken - alone, behind)
            except Problem as problem:
                raise Problem(f"{one.name}: {problem}: {entries}") from None
            taken |= offered
            alone |= set[str]() if one.overlap else offered
        await self.bench.agreed([one.name for one in self.here])
        capacity = await self.bench.kubelet.capacity()
        for name in capacity.keys() - {one.name for one in self.here}:
            if capacity[name][1] or (capacity[name][0] and name not in self.orphaned):
                raise Problem(f"{name} is removed, the kubelet has {capacity[name]}")

    def behind(self, one: Declared) -> set[str]:
        """Return the nodes that resources behind one offer and do not share, since some time."""
        return {
            node_of(device_id)
            for other in self.here[self.here.index(one) + 1 :]
            for device_id, well in self.bench.entries(other.name).items()
            if well and not other.overlap and not is_token(device_id)
            if device_id.partition("::")[0]
            in self.past[other.name].kept | self.past[other.name].maybe
        }

    def seen(self) -> str:
        lines = [f"{one}" for one in self.declared]
        for path in sorted((self.root / "d0", self.root / "d1")):
            if path.is_dir():
                lines += [f"{path.name}: {sorted(one.name for one in path.iterdir())}"]
        for name, one in self.bench.runners.items():
            lines.append(f"{name}: {one.status} {self.bench.entries(name)}")
            lines += [f"  {it.id}: {it.reason}" for it in one.snapshot.devices.values()]
            lines += [f"  skipped {it.candidate}: {it.reason}" for it in one.snapshot.skipped]
        return "\n".join(lines)

    def path(self, name: str) -> Path:
        return self.root / directory_of(name) / name

    def nudge(self) -> None:
        """Scan everything, as the slow rescan does: of a link's target there is no event."""
        for one in self.bench.runners.values():
            one.trigger_scan()

    # ── the beginning ──

    @initialize(
        declared=st.lists(DECLARED, min_size=1, max_size=3, unique_by=lambda one: one.name),
        files=st.sets(FILE),
    )
    def begin(self, declared: list[Declared], files: set[str]) -> None:
        for name in files:
            self.path(name).touch()

        async def begin() -> None:
            self.edit(declared)
            await self.bench.start_kubelet()
            self.bench.start_host()
            await self.after(rest=True)

        self.run(begin())

    # ── files ──

    @rule(name=FILE, rest=REST)
    def create(self, name: str, rest: bool) -> None:
        async def create() -> None:
            if self.path(name).parent.is_dir() and not self.path(name).is_symlink():
                self.path(name).touch()
            self.nudge_links(name)
            await self.after(rest)

        self.run(create())

    @rule(name=st.one_of(FILE, st.sampled_from(list(LINKS))), rest=REST)
    def remove(self, name: str, rest: bool) -> None:
        async def remove() -> None:
            self.path(name).unlink(missing_ok=True)
            self.nudge_links(name)
            await self.after(rest)

        self.run(remove())

    def nudge_links(self, name: str) -> None:
        if name in LINKS.values():
            self.nudge()

    @rule(name=FILE, rest=REST)
    def exchange(self, name: str, rest: bool) -> None:
        """Another inode at the path, by a rename."""

        async def exchange() -> None:
            fresh = self.root / "fresh"
            if self.path(name).parent.is_dir():
                fresh.touch()
                fresh.rename(self.path(name))
            self.nudge_links(name)
            await self.after(rest)

        self.run(exchange())

    @rule(name=FILE, other=FILE, rest=REST)
    def rename(self, name: str, other: str, rest: bool) -> None:
        async def rename() -> None:
            old, new = self.path(name), self.path(other)
            linked = {name, other} & set(LINKS.values()) and old.is_symlink()
            if name != other and old.exists() and new.parent.is_dir() and not linked:
                # Where a source finds the new name, the IDs of the former ones leave.
                self.former[other] = {name} | self.former.pop(name, set())
                for past in self.past.values():
                    past.uncertain(self.former[other])
                old.rename(new)
            self.nudge_links(name)
            self.nudge_links(other)
            await self.after(rest)

        self.run(rename())

    @rule(name=FREE_FILE, dangling=st.booleans(), rest=REST)
    def link(self, name: str, dangling: bool, rest: bool) -> None:
        """A link out of the directory takes the place of what is there."""

        async def link() -> None:
            self.number += 1
            target = self.root / "t" / str(self.number)  # each a node of its own
            target.touch()
            fresh = self.root / "fresh"
            if self.path(name).parent.is_dir():
                fresh.symlink_to(self.root / "t" / "nothing" if dangling else target)
                fresh.rename(self.path(name))
            await self.after(rest)

        self.run(link())

    @rule(name=st.sampled_from(list(LINKS)), rest=REST)
    def second_name(self, name: str, rest: bool) -> None:
        """A link to a file that has a name of its own."""

        async def second_name() -> None:
            if self.path(name).parent.is_dir() and not self.path(name).is_symlink():
                self.path(name).symlink_to(self.path(LINKS[name]))
            await self.after(rest)

        self.run(second_name())

    @rule(directory=DIRECTORY, how=st.sampled_from(["remove", "away", "back", "empty"]), rest=REST)
    def whole_directory(self, directory: str, how: str, rest: bool) -> None:
        async def whole_directory() -> None:
            path, away = self.root / directory, self.root / f"away-{directory}"
            match how:
                case "remove" if path.is_dir():
                    shutil.rmtree(path)
                case "away" if path.is_dir():
                    shutil.rmtree(away, ignore_errors=True)
                    path.rename(away)
                case "back" if away.is_dir() and not path.exists():
                    away.rename(path)
                case _:
                    path.mkdir(exist_ok=True)
            self.nudge()
            await self.after(rest)

        self.run(whole_directory())

    # ── the configuration ──

    def edit(self, declared: list[Declared]) -> None:
        """Write a good configuration, and note it as in force."""
        before = {one.name: one for one in self.declared}
        if not self.rested:  # nodes may have gone to another resource and come back
            for past in self.past.values():
                past.forget()
        for one in declared:
            past = self.past.setdefault(one.name, Past())
            past.changed(before.get(one.name, replace(one, here=False)), one)
        gone = before.keys() - {one.name for one in declared}
        for name in gone:
            self.past.setdefault(name, Past()).changed(
                before[name], replace(before[name], here=False)
            )
        self.declared, self.text = declared, text_of(declared, self.root)
        self.bench.config.write_text(self.text)
        # Until the next rest, what may be shared before or after may be.
        self.bench.listener.tolerant |= {one.name for one in declared if one.overlap}

    async def edited(self, declared: list[Declared], rest: bool) -> None:
        self.edit(declared)
        await self.read()
        await self.after(rest)

    async def read(self) -> None:
        """Wait until a running devhost has read the file."""
        end = time.monotonic() + REST_S
        while self.bench.host is not None:
            try:
                self.bench.configured(self.text)
            except Problem as problem:
                assert time.monotonic() < end, f"{problem}"
                await asyncio.sleep(0.005)
            else:
                return

    @rule(one=DECLARED, place=st.integers(0, 3), rest=REST)
    def add(self, one: Declared, place: int, rest: bool) -> None:
        others = [it for it in self.declared if it.name != one.name]
        self.run(self.edited([*others[:place], one, *others[place:]], rest))

    @rule(index=st.integers(0, 3), rest=REST)
    def take_out(self, index: int, rest: bool) -> None:
        declared = [one for place, one in enumerate(self.declared) if place != index]
        self.run(self.edited(declared, rest))

    @rule(index=st.integers(0, 3), name=st.sampled_from(NAMES), rest=REST)
    def rename_resource(self, index: int, name: str, rest: bool) -> None:
        declared = [
            replace(one, name=name) if place == index else one
            for place, one in enumerate(self.declared)
        ]
        if len({one.name for one in declared}) == len(declared):
            self.run(self.edited(declared, rest))

    @rule(index=st.integers(0, 3), field=FIELDS, like=DECLARED, rest=REST)
    def change(self, index: int, field: str, like: Declared, rest: bool) -> None:
        changes: dict[str, Any] = {field: getattr(like, field)}
        declared = [
            replace(one, **changes) if place == index else one
            for place, one in enumerate(self.declared)
        ]
        self.run(self.edited(declared, rest))

    @rule(data=st.data(), rest=REST)
    def reorder(self, data: st.DataObject, rest: bool) -> None:
        declared = data.draw(st.permutations(self.declared))
        self.run(self.edited(list(declared), rest))

    @rule(nonsense=INVALID, rest=REST)
    def spoil(self, nonsense: str, rest: bool) -> None:
        """An invalid file: what was in force stays."""

        async def spoil() -> None:
            self.bench.config.write_text(self.text + nonsense)
            if self.bench.host is None:
                self.bench.config.write_text(self.text)  # it may never have been in force
            await self.read()
            await self.after(rest)

        self.run(spoil())

    # ── restarts ──

    @rule()
    @precondition(_both_run)
    def kill_kubelet(self) -> None:
        async def kill() -> None:
            await self.bench.kill_kubelet()
            self.orphaned.clear()
            await self.after(rest=False)

        self.run(kill())

    @rule(rest=REST)
    @precondition(lambda self: not _kubelet_runs(self))
    def start_kubelet(self, rest: bool) -> None:
        async def start() -> None:
            await self.bench.start_kubelet()
            await self.after(rest)

        self.run(start())

    @rule(rest=REST)
    @precondition(_kubelet_runs)
    def restart_kubelet(self, rest: bool) -> None:
        async def restart() -> None:
            await self.bench.kill_kubelet()
            self.orphaned.clear()
            await self.bench.start_kubelet()
            self.patience = LOST_S
            await self.after(rest)

        self.run(restart())

    @rule()
    @precondition(_both_run)
    def stop_host(self) -> None:
        async def stop() -> None:
            await self.stop()
            await self.after(rest=False)

        self.run(stop())

    @rule(rest=REST)
    @precondition(lambda self: not _runs(self))
    def start_host(self, rest: bool) -> None:
        async def start() -> None:
            self.past.clear()
            self.bench.start_host()
            await self.after(rest)

        self.run(start())

    @rule(rest=REST)
    @precondition(_runs)
    def restart_host(self, rest: bool) -> None:
        async def restart() -> None:
            await self.stop()
            self.bench.start_host()
            await self.after(rest)

        self.run(restart())

    async def stop(self) -> None:
        await self.bench.stop_host()
        self.past.clear()
        if self.bench.kubelet_is_there:
            self.orphaned |= (await self.bench.kubelet.capacity()).keys()

    # ── pods ──

    @rule(index=st.integers(0, 3), count=st.integers(1, 3))
    @precondition(_both_run)
    def admit(self, index: int, count: int) -> None:
        """At rest a pod is admitted if enough is free, and is given what is declared."""

        async def admit() -> None:
            await self.rest()
            if index >= len(self.here):
                return
            one = self.here[index]
            entries = self.bench.entries(one.name)
            held = {
                device_id
                for resource, answer in self.pods.values()
                if resource == one.name
                for device_id in answer["deviceIds"][resource]
            }
            free = {device_id for device_id, well in entries.items() if well} - held
            try:
                answer = await self.admitted(one.name, count)
            except AdmissionError as error:
                assert len(free) < count, f"{error}\nfree: {free}\n{self.seen()}"
                self.never()
                return
            ids = set(answer["deviceIds"][one.name])
            assert len(ids) == count
            assert ids <= free, f"{ids}, free: {free}"
            expected = one.expected_answer(self.root, ids)
            given = {key: answer[key] for key in expected}  # type: ignore[literal-required]
            given["mounts"].sort(key=lambda mount: mount["containerPath"])
            assert given == expected
            self.never()

        self.run(admit())

    async def admitted(self, resource: str, count: int) -> Answer:
        self.number += 1
        pod = f"pod-{self.number}"
        answer = (await self.bench.kubelet.admit(pod, {"app": {resource: count}}))["app"]
        self.pods[pod] = resource, answer
        return answer

    @rule(index=st.integers(0, 3), count=st.integers(1, 3), name=FILE)
    @precondition(_both_run)
    def admit_while_a_device_goes(self, index: int, count: int, name: str) -> None:
        """It is admitted or refused, and the kubelet lives."""

        async def admit() -> None:
            if index >= len(self.here):
                return
            one = self.here[index]
            admission = asyncio.ensure_future(self.admitted(one.name, count))
            self.path(name).unlink(missing_ok=True)
            self.nudge_links(name)
            outcome = (await asyncio.gather(admission, return_exceptions=True))[0]
            assert isinstance(outcome, AdmissionError | dict), repr(outcome)
            await self.after(rest=True)

        self.run(admit())

    @rule(index=st.integers(0, 9))
    @precondition(_kubelet_runs)
    def free(self, index: int) -> None:
        async def free() -> None:
            if self.pods:
                pod = sorted(self.pods)[index % len(self.pods)]
                del self.pods[pod]
                await self.bench.kubelet.free(pod)

        self.run(free())

    @rule()
    @precondition(_both_run)
    def start_containers_again(self) -> None:
        """What a pod holds is its own, whatever happened since."""

        async def start() -> None:
            await self.rest()
            for pod, (_, answer) in self.pods.items():
                again = await self.bench.kubelet.start_container(pod, "app")
                assert _sorted(again) == _sorted(answer)

        self.run(start())

    # ── the end ──

    def teardown(self) -> None:
        async def end() -> None:
            if not self.failed and self.text:
                if not self.bench.kubelet_is_there:
                    await self.bench.start_kubelet()
                if self.bench.host is None:
                    self.past.clear()
                    self.bench.start_host()
                await self.after(rest=True)
            with contextlib.suppress(*[AssertionError] if self.failed else []):
                await self.bench.close()

        try:
            self.run(end())
            if not self.failed:
                self.never()
        finally:
            shutil.rmtree(self.root)


def _sorted(answer: Answer) -> dict[str, Any]:
    return {
        key: sorted(map(str, value)) if isinstance(value, list) else value
        for key, value in answer.items()
    }


def run(monkeypatch: pytest.MonkeyPatch, binary: Path | None, examples: int, steps: int) -> None:
    monkeypatch.setattr(backend, "_STEP_S", 0.02)  # the machine's patience, not the product's
    monkeypatch.setattr(Machine, "binary", binary)
    chosen = settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=50 if EXAMPLES else steps,
        suppress_health_check=list(HealthCheck),
        # To shrink takes long, because each attempt waits for things that do not happen.
        phases=list(Phase) if EXAMPLES and not RAW else [Phase.generate],
        report_multiple_bugs=False,
    )
    with asyncio.Runner() as loop:
        monkeypatch.setattr(Machine, "runner", loop, raising=False)
        began = time.monotonic()
        Machine.steps = 0
        try:
            run_state_machine_as_test(Machine, settings=chosen)
        finally:
            print(f"{Machine.steps} steps in {time.monotonic() - began:.0f} s")  # noqa: T201


@pytest.mark.parametrize(
    "names", [["c1", "c0"], ["c1", "a1", "c0"], ["c1", "c0", "c1"], ["b1", "c0"]], ids="-".join
)
def test_a_renamed_file_leaves_its_former_id(
    monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Also that of a link to it, or of a time before it was in no source; each was drawn once."""
    declared = Declared("example.com/p", sources=("d1",))
    with asyncio.Runner() as loop:
        monkeypatch.setattr(Machine, "runner", loop, raising=False)
        machine = Machine()
        machine.begin([declared], {names[0]})
        machine.second_name("k1", rest=True)
        for old, new in itertools.pairwise(names):
            machine.rename(old, new, rest=True)
        machine.teardown()


def test_a_node_that_a_resource_before_finds_by_a_second_name_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as nothing is edited; this was drawn once, too."""
    before = Declared("example.com/p", sources=("d1/k*",))
    owner = Declared("example.com/q", sources=("d0",))
    with asyncio.Runner() as loop:
        monkeypatch.setattr(Machine, "runner", loop, raising=False)
        machine = Machine()
        machine.begin([before, owner], {"b1"})
        machine.second_name("k1", rest=True)
        machine.create("a0", rest=True)
        machine.teardown()


@pytest.mark.timeout(600 + EXAMPLES * 60)
def test_on_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in kubelet, which also hears what is never allowed in a list."""
    run(monkeypatch, None, DEFAULT_EXAMPLES, 20)


@pytest.mark.timeout(600 + EXAMPLES * 60)
@pytest.mark.parametrize("binary", REAL_KUBELETS)
def test_on_a_real_kubelet(monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
    """On a real device manager, which dies of what it cannot bear."""
    run(monkeypatch, binary, REAL_EXAMPLES, 15)
