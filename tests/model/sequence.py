"""A sequence of changes: how its steps run, and what has to hold after each."""

import asyncio
import contextlib
import functools
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from devhost.fake_kubelet.kubelet import Answer
from tests.model.bench import REST_S, Bench
from tests.model.declared import LINKS, Declared, directory_of, text_of
from tests.model.expected import Problem
from tests.support.devices import reasons, skip_reasons

HANG_S: Final = 240.0  # of one step
LOST_S: Final = 120.0  # a registration that was under way when the kubelet died may take so long
REST = st.sampled_from([True, True, True, False])
Condition = Callable[[Any], bool]


def always(_: "Sequence") -> bool:
    return True


def host_runs(machine: "Sequence") -> bool:
    return bool(machine.bench.hosts)


def kubelet_runs(machine: "Sequence") -> bool:
    return machine.bench.kubelet_is_there


def both_run(machine: "Sequence") -> bool:
    return host_runs(machine) and kubelet_runs(machine)


def step(
    when: Condition = always, *, changes: bool = True, **strategies: st.SearchStrategy[Any]
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a coroutine a rule; after what changes something, most times all comes to rest."""
    if changes:
        strategies.setdefault("rest", REST)

    def decorate(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(work)
        def run(self: "Sequence", *places: Any, rest: bool = False, **values: Any) -> None:
            async def whole() -> None:
                await work(self, *places, **values)
                if changes:
                    await self.after(rest=rest)

            shown = [repr(value) for value in places]
            shown += [f"{key}={value!r}" for key, value in (values | {"rest": rest}).items()]
            self.run(whole(), f"{work.__name__}({', '.join(shown)})")

        # By its signature Hypothesis would look for the arguments of the coroutine.
        del run.__wrapped__
        made: Callable[..., None] = rule(**strategies)(run)  # type: ignore[call-overload]
        return precondition(when)(made)

    return decorate


class Sequence(RuleBasedStateMachine):
    """One sequence: its steps are the restarts, and those of a subclass.

    Attributes:
        binary: The real kubelet to run it on.
        steps: How many there were, of all sequences.
    """

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

    def run(self, work: Coroutine[Any, Any, None], shown: str) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(HANG_S):
                await work

        self.log.append(f"  {shown}")
        try:
            self.runner.run(bounded())
        except Exception as error:
            if not self.failed:  # also where Hypothesis finds that it does not fail again
                steps = "\n".join(self.log)
                print(f"\nfailed: {error!r}\n{error}\nafter\n{steps}")  # noqa: T201
            self.failed = True
            raise

    # ── the model's side ──

    @property
    def here(self) -> list[Declared]:
        return [declared for declared in self.declared if declared.here]

    async def after(self, *, rest: bool) -> None:
        """Record what was done; wait until all is as it has to be, if that can be."""
        Sequence.steps += 1
        self.rested = False
        self.note_change()
        if rest and both_run(self):
            await self.rest()
        else:
            await asyncio.sleep(0)
        self.never()

    def never(self) -> None:
        violations = self.bench.violations() + self.unhandled
        assert not violations, "\n".join(violations)

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
        self.orphaned -= {declared.name for declared in self.here}
        self.note_lists()

    @property
    def may_drain(self) -> set[str]:
        """The resources that are served as long as pods hold them."""
        return {name for name, _ in self.pods.values()}

    def note_change(self) -> None:
        """Take over what was just done."""

    def note_lists(self) -> None:
        """Take over what is listed at rest."""
        self.bench.listener.tolerant = {declared.name for declared in self.here if declared.overlap}
        self.bench.listener.rest()

    def note_restart(self) -> None:
        """Take over that a process of devhost begins or ends."""

    def check_lists(self) -> None:
        """Check that devhost lists what is there and declared."""

    async def is_right(self) -> None:
        self.bench.configured(self.text)
        for declared in self.here:
            if declared.name not in self.bench.runners:
                raise Problem(f"{declared.name} is not served")
            scan = self.bench.runners[declared.name].scan
            if scan in scan._reconciler.active:  # that after an edit may change nothing
                raise Problem(f"{declared.name} is being scanned")
        self.check_lists()
        await self.bench.agreed([declared.name for declared in self.here], self.may_drain)
        capacity = await self.bench.kubelet.capacity()
        for name in capacity.keys() - {declared.name for declared in self.here} - self.may_drain:
            if capacity[name][1] or (capacity[name][0] and name not in self.orphaned):
                raise Problem(f"{name} is removed, the kubelet has {capacity[name]}")

    def seen(self) -> str:
        lines = [f"{part}" for part in self.declared]
        for path in sorted((self.root / "d0", self.root / "d1")):
            if path.is_dir():
                lines += [f"{path.name}: {sorted(part.name for part in path.iterdir())}"]
        for name, part in self.bench.runners.items():
            lines.append(f"{name}: {part.status} {self.bench.entries(name)}")
            lines += [f"  {key}: {reason}" for key, reason in reasons(part.devices.offered).items()]
            skipped = skip_reasons(part.devices.offered.skipped)
            lines += [f"  skipped {candidate}: {reason}" for candidate, reason in skipped.items()]
        return "\n".join(lines)

    def path(self, name: str) -> Path:
        return self.root / directory_of(name) / name

    def nudge(self) -> None:
        """Scan everything, as the slow rescan does: of a link's target there is no event."""
        for host in self.bench.hosts:
            for served in host.resources:
                served.scan.request()

    def touch(self, name: str) -> None:
        """Make a file; a former one of that name was another node."""
        self.path(name).touch()
        self.bench.listener.renewed.add(name)

    def nudge_links(self, name: str) -> None:
        if name in LINKS.values():
            self.nudge()

    # ── the configuration ──

    def edit(self, declared: list[Declared]) -> None:
        """Write a good configuration, and note it as in force."""
        self.declared, self.text = declared, text_of(declared, self.root)
        self.bench.config.write_text(self.text)
        # Until the next rest, what may be shared before or after may be.
        self.bench.listener.tolerant |= {resource.name for resource in declared if resource.overlap}

    async def edited(self, declared: list[Declared]) -> None:
        self.edit(declared)
        await self.read()

    async def read(self) -> None:
        """Wait until a running devhost has read the file."""
        end = time.monotonic() + REST_S
        while self.bench.hosts:
            try:
                self.bench.configured(self.text)
            except Problem as problem:
                assert time.monotonic() < end, f"{problem}"
                await asyncio.sleep(0.005)
            else:
                return

    async def start(self, declared: list[Declared]) -> None:
        """Begin with a configuration."""
        self.edit(declared)
        await self.bench.start_kubelet()
        self.bench.start_host()
        await self.after(rest=True)

    # ── restarts ──

    @step(kubelet_runs)
    async def restart_kubelet(self) -> None:
        await self.bench.kill_kubelet()
        self.orphaned.clear()
        await self.bench.start_kubelet()
        self.patience = LOST_S

    @step(host_runs)
    async def restart_host(self) -> None:
        await self.stop()
        self.bench.start_host()

    async def stop(self) -> None:
        await self.bench.stop_host()
        self.note_restart()
        if self.bench.kubelet_is_there:
            self.orphaned |= (await self.bench.kubelet.capacity()).keys()

    # ── pods ──

    async def admitted(self, resource: str, count: int) -> Answer:
        self.number += 1
        pod = f"pod-{self.number}"
        answer = (await self.bench.kubelet.admit(pod, {"app": {resource: count}}))["app"]
        if answer["deviceIds"].get(resource):  # else the kubelet took it for nobody's
            self.pods[pod] = resource, answer
        return answer

    @step(kubelet_runs, changes=False, index=st.integers(0, 9))
    async def free(self, index: int) -> None:
        if self.pods:
            pod = sorted(self.pods)[index % len(self.pods)]
            del self.pods[pod]
            await self.bench.kubelet.free(pod)

    # ── the end ──

    async def settled(self) -> None:
        """Come to the last rest."""
        if not self.bench.kubelet_is_there:
            await self.bench.start_kubelet()
        if not self.bench.hosts:
            self.note_restart()
            self.bench.start_host()
        await self.after(rest=True)

    def teardown(self) -> None:
        async def end() -> None:
            if not self.failed and self.text:
                await self.settled()
            with contextlib.suppress(*[AssertionError] if self.failed else []):
                await self.bench.close()

        try:
            self.run(end(), "teardown()")
            if not self.failed:
                self.never()
        finally:
            shutil.rmtree(self.root)
