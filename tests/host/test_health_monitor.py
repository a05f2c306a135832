"""The health of devices: hysteresis, checks that do not return, devices and declarations that change."""

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.config import HealthChecks
from devhost.model.device import Cause, Checked, HostDevice, Snapshot, Verdict
from devhost.node import health_monitor
from devhost.node.health_monitor import HealthMonitor, HealthState
from devhost.watch import threads
from devhost.watch.threads import wait_at_most
from tests.support import devices
from tests.support.daemon import until
from tests.support.devices import node, reasons, snapshot

CONFIG = "version: v1\nresources: [{name: example.com/a, sources: [dev: x]}]\n"
UNANSWERED = "check failed: did not answer in 2 s"
RECOVERING = "recovering: 1 of 2 good rounds"


class Answers:
    """Stands in for the checks: each round waits for an answer, in its own thread."""

    def __init__(self) -> None:
        self.asked: list[tuple[HostDevice, HealthChecks]] = []
        self._queues: dict[str, queue.Queue[Checked | None]] = defaultdict(queue.Queue)
        self._over = threading.Event()

    def good(self, device_id: str, unknown: str | None = None) -> None:
        self._queues[device_id].put(Checked(datetime.now(UTC), unknown=unknown))

    def bad(self, device_id: str, failure: str) -> None:
        self._queues[device_id].put(Checked(datetime.now(UTC), failure=failure))

    def mistake(self, device_id: str) -> None:
        self._queues[device_id].put(None)

    def check(self, checks: HealthChecks, device: HostDevice, *host: Any, **_: Policy) -> Checked:
        assert host[1] == {"resource": "example.com/a", "nodeName": "node"}
        self.asked.append((device, checks))
        while not self._over.is_set():
            with contextlib.suppress(queue.Empty):
                answer = self._queues[device.id].get(timeout=0.05)
                if answer is None:
                    raise ZeroDivisionError("oops")
                return answer
        return Checked(datetime.now(UTC))

    def times(self, device_id: str) -> int:
        return sum(device.id == device_id for device, _ in self.asked)

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def answers() -> Iterator[Answers]:
    answers = Answers()
    yield answers
    answers.end()


class Bench:
    """A monitor, and the last look that was reported to it."""

    def __init__(self, answers: Answers) -> None:
        self.changes = 0
        self._changed = asyncio.Event()
        self._answers = answers
        self.monitor = self.made()
        self.scanner, self.found = scanner(), snapshot()

    def made(self, **options: Any) -> HealthMonitor:
        # Not by a patch of the module: a round that begins when its test has ended would take an
        # answer of the next one.
        return HealthMonitor(scanner(), self._on_change, self._answers.check, **options)

    def _on_change(self) -> None:
        self.changes += 1
        self._changed.set()

    def watch(self, scanner: Scanner, *devices: HostDevice) -> None:
        self.scanner, self.found = scanner, snapshot(*devices)
        self.monitor.watch(scanner, self.found)

    def judge(self, devices: Snapshot) -> Snapshot:
        return self.monitor.judge(devices)

    def reasons(self) -> dict[str, str | None]:
        return reasons(self.judge(self.found))

    def last(self, device_id: str) -> Checked | None:
        return self.judge(self.found).devices[device_id].checked

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a change of health after which something holds."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def until_reason(self, device_id: str, reason: str | None) -> None:
        await self.until(lambda: self.reasons()[device_id] == reason)

    async def until_failed(self, device_id: str, failure: str | None) -> None:
        await self.until(lambda: getattr(self.last(device_id), "failure", "none yet") == failure)


@pytest.fixture
async def bench(answers: Answers) -> AsyncIterator[Bench]:
    bench = Bench(answers)
    yield bench
    bench.monitor.close()


def scanner(**options: Any) -> Scanner:
    """A scanner with health checks; by default, rounds follow each other immediately."""
    keys = {"checks": ["readable"], "interval": "100ms", "timeout": "30s", **options}
    checks = HealthChecks.model_validate(keys)
    resource = loads(CONFIG).require().resources[0].model_copy(update={"health": checks})
    return Scanner(resource, HostFiles(), Policy(), "node", settle_s=0.0)


def device(
    device_id: str = "a", inode: int = 1, changed: int = 1, minor: int = 1, **state: Any
) -> HostDevice:
    opened = node(f"/dev/{device_id}", (240, minor), inode=inode, changed=changed)
    return devices.device(device_id, opened, **state)


@pytest.mark.parametrize(
    ("rounds", "reasons"),
    [
        pytest.param("+", [None], id="one good round is enough at first"),
        pytest.param("1", ["check failed: 1"], id="so is one that fails"),
        pytest.param("+1+23", [None, None, None, None, "check failed: 3"], id="failures in a row"),
        pytest.param(
            "1+2++",
            ["check failed: 1", RECOVERING, "check failed: 2", RECOVERING, None],
            id="good rounds in a row",
        ),
        # A date in it would be a line in the log, and a scan, for every round.
        pytest.param(
            "12", ["check failed: 1", "check failed: 1"], id="the first of a streak counts"
        ),
        pytest.param("?", [None], id="what cannot be checked is a good round"),
    ],
)
def test_health_rounds_in_a_row_decide(rounds: str, reasons: list[str | None]) -> None:
    checks = HealthChecks.model_validate({"checks": ["readable"], "failures": 2, "recoveries": 2})
    state, texts = HealthState(), list[str | None]()
    assert state.verdict(checks) == Verdict(Cause.UNCHECKED, "not checked yet")
    for mark in rounds:
        failure, unknown = (mark if mark.isdigit() else None), ("may not" if mark == "?" else None)
        state = state.next(Checked(datetime.now(UTC), failure=failure, unknown=unknown), checks)
        verdict = state.verdict(checks)
        texts.append(None if verdict is None else verdict.text)
        assert unknown in state.published(checks)
    assert texts == reasons


async def test_device_before_its_first_round_is_unhealthy(bench: Bench, answers: Answers) -> None:
    bench.watch(scanner(), device())
    assert bench.reasons() == {"a": "not checked yet"}
    for _ in range(4):
        answers.good("a")
    await bench.until_reason("a", None)
    answers.bad("a", "1")
    await bench.until_reason("a", "check failed: 1")
    assert answers.times("a") >= 5
    assert bench.changes == 2
    assert reasons(bench.judge(snapshot(device("b")))) == {"b": "not checked yet"}


async def test_health_check_that_raises_or_has_no_thread_is_a_failure_of_its_device(
    bench: Bench, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.watch(scanner(interval="1h"), device("a"), device("b"))
    answers.mistake("a")
    answers.good("b")
    await bench.until(lambda: "not checked yet" not in bench.reasons().values())
    raised = "check failed: checking failed: ZeroDivisionError('oops')"
    assert bench.reasons() == {"a": raised, "b": None}

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    bench.watch(scanner(interval="1h"), device("a"), device("b"), device("c"))
    await bench.until_reason("c", "check failed: no thread can be started")


async def test_health_check_that_hangs_is_repeated_later(bench: Bench, answers: Answers) -> None:
    """No second thread starts meanwhile; and the late result is too old to count."""
    bench.watch(scanner(timeout="2s", failures=2), device("a"), device("b"))
    answers.good("b")
    await bench.until_reason("a", UNANSWERED)
    answers.good("b")
    await until(lambda: answers.times("b") >= 2)
    assert answers.times("a") == 1
    answers.bad("a", "old")
    await until(lambda: answers.times("a") == 2)
    assert bench.reasons()["a"] == UNANSWERED
    answers.good("a")
    await bench.until_reason("a", None)


async def test_health_check_that_hung_is_forgotten_with_the_checks_that_were_changed(
    bench: Bench, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit without what hangs helps; neither the device nor the resource waits for it."""
    monkeypatch.setattr(threads, "ABANDONED_MAX", 1)
    bench.monitor.close()
    bench.monitor = bench.made()
    bench.watch(scanner(timeout="100ms"), device("a"), device("b"))
    await bench.until(lambda: None not in map(bench.last, "ab"))
    assert [answers.times(key) for key in "ab"] == [1, 1]
    bench.watch(scanner(checks=["writable"]), device("a"), device("b"))
    await until(lambda: [answers.times(key) for key in "ab"] == [2, 2])


async def test_health_check_that_hangs_delays_no_other(bench: Bench, answers: Answers) -> None:
    bench.watch(scanner(), device("a"))
    await until(lambda: answers.times("a"))
    bench.watch(scanner(), device("a"), device("b"))
    answers.good("b")
    await bench.until_reason("b", None)
    answers.bad("b", "1")
    await bench.until_reason("b", "check failed: 1")
    assert bench.reasons()["a"] == "not checked yet"
    assert answers.times("a") == 1


async def test_health_checks_that_hang_use_few_threads_and_keep_no_place(
    bench: Bench, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place is enough for others after a timeout."""
    monkeypatch.setattr(threads, "ABANDONED_MAX", 2)
    monkeypatch.setattr(health_monitor, "CONCURRENT", 1)
    crowded = Bench(answers)
    crowded.watch(scanner(timeout="2s"), *map(device, "abc"))
    await crowded.until_reason("b", UNANSWERED)
    refused = "check failed: not tried, as too many other checks of the resource do not return"
    await crowded.until_reason("c", refused)
    assert answers.times("c") == 0
    for name in "abc" * 20:  # the first two return late and are asked again
        answers.good(name)
    await crowded.until(lambda: crowded.reasons() == dict.fromkeys("abc"))
    crowded.monitor.close()


@pytest.mark.parametrize("replacement", [device(inode=2), device(minor=2)])
async def test_new_node_is_checked(replacement: HostDevice, bench: Bench, answers: Answers) -> None:
    """A round of the former node that ends now does not count."""
    bench.watch(scanner(interval="1h", recoveries=5), device())
    answers.bad("a", "1")
    await bench.until_reason("a", "check failed: 1")
    bench.watch(scanner(interval="1h", recoveries=5), replacement)
    assert bench.reasons() == {"a": "not checked yet"}
    await until(lambda: answers.times("a") == 2)
    bench.watch(scanner(interval="1h", recoveries=5), device(inode=3))
    answers.good("a")
    await until(lambda: answers.times("a") == 3)
    assert bench.reasons() == {"a": "not checked yet"}
    answers.good("a")
    await bench.until_reason("a", None)


async def test_device_touched_keeps_its_health(bench: Bench, answers: Answers) -> None:
    """A step of `preStart` may touch a node by `chmod`; the device is checked immediately."""
    bench.watch(scanner(interval="1h"), device())
    answers.good("a")
    await bench.until_reason("a", None)
    bench.watch(scanner(interval="1h"), device())
    assert answers.times("a") == 1
    bench.watch(scanner(interval="1h"), device(changed=2))
    assert bench.reasons() == {"a": None}
    answers.bad("a", "1")
    await bench.until_reason("a", "check failed: 1")


async def test_device_with_another_reason_keeps_it(bench: Bench, answers: Answers) -> None:
    """A device with a reason is not checked; one that is to go is not blamed."""
    unfit = device("b", reason="no")
    leaving = device("c", replaced=True)
    bench.watch(scanner(interval="1h"), device("a"), unfit, leaving, devices.device("d"))
    answers.bad("a", "1")
    await bench.until_reason("a", "check failed: 1")
    assert bench.reasons() == {"a": "check failed: 1", "b": "no", "c": None, "d": None}
    held = snapshot(device("a", reason="held back"))
    assert reasons(bench.judge(held)) == {"a": "held back"}
    assert {device.id for device, _ in answers.asked} == {"a"}


async def test_health_checks_that_change_decide_next(bench: Bench, answers: Answers) -> None:
    """The next round is due immediately; a round of the old checks does not count."""
    bench.watch(scanner(failures=2), device())
    answers.good("a")
    await bench.until_reason("a", None)
    answers.bad("a", "1")
    await bench.until_failed("a", "1")
    await until(lambda: answers.times("a") == 3)
    changed = scanner(checks=["writable"], failures=2)
    bench.watch(changed, device())
    assert bench.reasons() == {"a": None}
    answers.bad("a", "old")
    answers.bad("a", "2")
    await bench.until_failed("a", "2")
    assert bench.reasons() == {"a": None}  # the first of the new checks
    answers.bad("a", "3")
    await bench.until_reason("a", "check failed: 3")
    assert all(checks == changed.resource.health for _, checks in answers.asked[3:])


async def test_health_checks_added_blame_nobody_at_first(bench: Bench, answers: Answers) -> None:
    """A device on offer stays; a new device is to be checked first."""
    bench.monitor = bench.made(offered={"a", "b"})
    bench.watch(scanner(interval="1h"), device("a"), device("c"))
    assert bench.reasons() == {"a": None, "c": "not checked yet"}
    bench.watch(scanner(interval="1h"), device("a"), device("b"), device("c"))
    assert bench.reasons() == {"a": None, "b": "not checked yet", "c": "not checked yet"}
    answers.bad("a", "1")
    await bench.until_reason("a", "check failed: 1")


async def test_first_health_round_is_waited_for(bench: Bench, answers: Answers) -> None:
    bench.watch(scanner(interval="1h"), device("a"), device("b"))
    answers.good("a")
    answers.bad("b", "1")
    await bench.monitor.first_round()
    assert bench.reasons() == {"a": None, "b": "check failed: 1"}
    bench.watch(scanner(interval="1h"), device("c"))
    await wait_at_most(0.01, bench.monitor.first_round)
    assert bench.reasons() == {"c": "not checked yet"}
    waiting = asyncio.create_task(bench.monitor.first_round())
    await asyncio.sleep(0)
    bench.watch(scanner(interval="1h"))
    await waiting
