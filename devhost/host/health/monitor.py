"""The health of one resource's devices: rounds of checks beside the event loop, and verdicts.

Each round runs in a thread of its own. One that does not return is given up: it holds up
neither other devices nor other resources, and its device gets no second one meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from devhost.discovery.health import check
from devhost.discovery.scan import Scanner
from devhost.host.health.verdict import Verdict
from devhost.model.config import HealthChecks
from devhost.model.device import Checked, HostDevice, Snapshot
from devhost.threads import in_own_thread

AT_ONCE: Final = 8
HANGING_MAX: Final = 8
_KILL_S: Final = 0.5  # until a command that is out of time is gone
_PAUSE_MIN_S: Final = 0.05
_LOG: Final = logging.getLogger(__name__)

Identity = tuple[object, ...]


@dataclass(slots=True)
class _Watched:
    """A device that is being watched, as it was found last."""

    device: HostDevice
    verdict: Verdict
    due: asyncio.Event = field(default_factory=asyncio.Event)  # for a round at once
    judged: asyncio.Event = field(default_factory=asyncio.Event)  # there has been a round
    gone: bool = False  # it is watched no longer


class HealthMonitor:
    """Checks the devices of one resource for as long as they are found.

    `on_change` is called on the event loop when a round has changed a device's reason, or the
    text of what failed or could not be checked. It is not called by `watch`, whose caller
    knows that something may have changed. All methods belong to the event loop.
    """

    def __init__(self, name: str, on_change: Callable[[], None]) -> None:
        self._name, self._on_change = name, on_change
        self._scanner: Scanner | None = None
        self._watched: dict[str, _Watched] = {}
        self._trusted: Mapping[str, HostDevice] = {}  # what is on offer while there are no checks
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._threads: dict[str, asyncio.Future[Checked]] = {}  # that have not returned
        self._hanging: set[asyncio.Future[Checked]] = set()  # for which nobody waits any more

    @property
    def _checks(self) -> HealthChecks | None:
        return self._scanner.resource.health if self._scanner else None

    def watch(self, scanner: Scanner, found: Snapshot) -> None:
        """Go on with these devices, as they were found, and this declaration.

        Args:
            scanner: Without ``health`` nothing is checked, and all verdicts are dropped.
            found: Before `verdicts`: a device that has a reason is not checked.
        """
        former, self._scanner = self._checks, scanner
        checks = self._checks
        if checks is None:
            for one in self._watched.values():
                self._forget(one)
            self._watched, self._trusted = {}, found.devices
            return
        present = {
            device.id: device for device in found.devices.values() if _can_be_checked(device)
        }
        for device_id in self._watched.keys() - present.keys():
            self._forget(self._watched.pop(device_id))
        for device_id, device in present.items():
            watched = self._watched.get(device_id)
            if watched is None:
                self._begin(device)
            else:
                self._go_on(watched, device, changed=checks != former)
        self._trusted = {}

    def verdicts(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what the checks say of each device; others are unchanged.

        A reason is added only where there is none, and to none that has been replaced.
        """
        checks = self._checks
        if checks is None:
            return snapshot
        devices = dict(snapshot.devices)
        for device_id, device in devices.items():
            watched = self._watched.get(device_id)
            if watched is None and not _can_be_checked(device):
                continue
            verdict = watched.verdict if watched else Verdict()
            reason = device.reason
            if reason is None and not device.replaced:
                reason = verdict.reason(checks)
            devices[device_id] = replace(device, reason=reason, checked=verdict.checked)
        return replace(snapshot, devices=devices)

    async def first_round(self, timeout: float) -> None:  # noqa: ASYNC109 (not an error)
        """Wait until each device known now has been checked once, at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for watched in tuple(self._watched.values()):
                    await watched.judged.wait()

    def close(self) -> None:
        """End all rounds and forget all verdicts; threads that hang are left to themselves."""
        for watched in self._watched.values():
            self._forget(watched)
        for task in self._tasks:
            task.cancel()
        self._watched, self._trusted, self._scanner = {}, {}, None

    # ── devices ──

    def _begin(self, device: HostDevice) -> None:
        former = self._trusted.get(device.id)
        trusted = (
            former is not None
            and _can_be_checked(former)
            and _identity(former) == _identity(device)
        )
        watched = self._watched[device.id] = _Watched(device, Verdict(trusted=trusted))
        task = asyncio.create_task(self._keep_checking(watched), name=f"health {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _go_on(watched: _Watched, device: HostDevice, *, changed: bool) -> None:
        former, watched.device = watched.device, device
        if _identity(former) != _identity(device):
            watched.verdict = Verdict()
            watched.judged.clear()
        elif changed:  # the verdict stays until the new checks decide
            watched.verdict = replace(watched.verdict, streak=0)
        elif _stamps(former) == _stamps(device):
            return
        watched.due.set()

    @staticmethod
    def _forget(watched: _Watched) -> None:
        watched.gone = True
        watched.due.set()
        watched.judged.set()

    # ── rounds ──

    async def _keep_checking(self, watched: _Watched) -> None:
        """Check a device round by round, until it is watched no longer."""
        clock = asyncio.get_running_loop().time
        while not watched.gone and (scanner := self._scanner) and (checks := self._checks):
            began = clock()
            watched.due.clear()
            device = watched.device
            outcome = await self._round(watched, scanner, checks)
            # Of another node, or for other checks, it says nothing, and the next one is due.
            if self._checks == checks and _identity(watched.device) == _identity(device):
                self._judge(watched, outcome, checks)
            await asyncio.sleep(_PAUSE_MIN_S)  # whatever happens to the device meanwhile
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began + checks.interval):
                    await watched.due.wait()

    def _judge(self, watched: _Watched, outcome: Checked, checks: HealthChecks) -> None:
        if watched.gone:
            return
        before = watched.verdict.told(checks)
        watched.verdict = watched.verdict.after(outcome, checks)
        watched.judged.set()
        if watched.verdict.told(checks) != before:
            self._on_change()

    async def _round(self, watched: _Watched, scanner: Scanner, checks: HealthChecks) -> Checked:
        """Return the outcome of one round; one that does not return in time has failed."""
        device, patience = watched.device, checks.timeout + _KILL_S
        unanswered = f"did not answer in {checks.timeout:g} s"
        if former := self._threads.get(device.id):
            await asyncio.wait({former}, timeout=patience)
            if not former.done():
                return _failed(unanswered)
        async with self._places:
            if watched.gone:
                return _failed("gone")
            if len(self._hanging) >= HANGING_MAX:
                return _failed(
                    f"not tried, as {HANGING_MAX} other checks of the resource do not return"
                )
            try:
                thread = self._start(scanner, checks, device)
            except RuntimeError as error:  # there can be no more threads
                return _failed(str(error))
            try:
                await asyncio.wait({thread}, timeout=patience)
            finally:
                if not thread.done():
                    self._hanging.add(thread)
            return thread.result() if thread.done() else _failed(unanswered)

    def _start(
        self, scanner: Scanner, checks: HealthChecks, device: HostDevice
    ) -> "asyncio.Future[Checked]":
        constants = {"resource": scanner.resource.name, "nodeName": scanner.node_name}

        def work() -> Checked:
            try:
                return check(checks, device, scanner.files, constants, allow=scanner.policy)
            except Exception as error:  # noqa: BLE001 (a mistake of ours is this device's alone)
                fields = {"resource": self._name, "device": device.id}
                _LOG.exception("checking failed", extra={"fields": fields})
                return _failed(f"checking failed: {error!r}")

        thread = in_own_thread(f"check {self._name}", work)
        self._threads[device.id] = thread
        thread.add_done_callback(lambda thread: self._returned(device.id, thread))
        return thread

    def _returned(self, device_id: str, thread: "asyncio.Future[Checked]") -> None:
        del self._threads[device_id]
        if thread not in self._hanging:
            return
        self._hanging.discard(thread)
        if watched := self._watched.get(device_id):  # what it says is old
            watched.due.set()


def _can_be_checked(device: HostDevice) -> bool:
    return bool(device.nodes) and device.reason is None and not device.replaced


def _identity(device: HostDevice) -> Identity:
    """Return what tells its nodes from others; their change times are not part of it.

    They change with the permissions and the content, too.
    """
    return tuple(
        (node.state.stamp[:2], node.state.number) if node.state else node.name
        for node in device.nodes
    )


def _stamps(device: HostDevice) -> tuple[object, ...]:
    return tuple(node.state and node.state.stamp for node in device.nodes)


def _failed(reason: str) -> Checked:
    return Checked(datetime.now(UTC), failure=reason)
