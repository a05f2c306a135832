"""The health of one resource's devices, by rounds of checks in threads.

A round that does not return delays neither other devices nor other resources, and its device gets
no second one meanwhile.
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
from devhost.immutable import immutable
from devhost.model.config import HealthChecks
from devhost.model.device import Checked, HostDevice, Snapshot
from devhost.threads import BlockingCalls, NoAnswerError

CONCURRENT: Final = 8
_KILL_S: Final = 0.5  # for a command that has timed out to end
_PAUSE_MIN_S: Final = 0.05
UNCHECKED: Final = "not checked yet"
_LOG: Final = logging.getLogger(__name__)

_Identity = tuple[object, ...]


@immutable
class HealthState:
    """The health of a device by its checks so far.

    Attributes:
        healthy: ``None`` before the first round.
        trusted: It was offered before there were checks, and is healthy until the first round.
        streak: Rounds in a row that contradict ``healthy``.
        failure: The reason of the last failed round.
        checked: The last round.
    """

    healthy: bool | None = None
    trusted: bool = False
    streak: int = 0
    failure: str | None = None
    checked: Checked | None = None

    def next(self, outcome: Checked, checks: HealthChecks) -> "HealthState":
        """Return the state after one more round; the first round decides alone."""
        good = outcome.failure is None
        # The output of a command may differ each time: the first failure of a streak is shown.
        shown = self.failure if self.healthy is False and not self.streak else None
        failure = shown or outcome.failure or self.failure
        streak = 0 if good is self.healthy else self.streak + 1
        needed = checks.recoveries if good else checks.failures
        if self.healthy is None or streak >= needed:
            return HealthState(good, failure=failure, checked=outcome)
        return HealthState(self.healthy, streak=streak, failure=failure, checked=outcome)

    def reason(self, checks: HealthChecks) -> str | None:
        """Return why the device is unhealthy, or ``None``."""
        if self.healthy is None:
            return None if self.trusted else UNCHECKED
        if self.healthy:
            return None
        if self.streak:
            return f"recovering: {self.streak} of {checks.recoveries} good rounds"
        return f"check failed: {self.failure}"

    def shown(self, checks: HealthChecks) -> tuple[str | None, ...]:
        """Return what is published again when it changes."""
        if self.checked is None:
            return (self.reason(checks),)
        failure = None if self.healthy is False else self.checked.failure
        return (self.reason(checks), failure, self.checked.unknown)


@dataclass(slots=True)
class _Watched:
    """A device that is being checked, as it was found last."""

    device: HostDevice
    state: HealthState
    due: asyncio.Event = field(default_factory=asyncio.Event)  # for a round now
    judged: asyncio.Event = field(default_factory=asyncio.Event)  # a round has ended
    gone: bool = False  # it is no longer checked


class HealthMonitor:
    """Checks the devices of one resource for as long as they are found.

    `on_change` is called on the event loop when a round has changed a device's reason, or the
    text of what failed or could not be checked; but not by `watch`. All methods belong to the
    event loop.
    """

    def __init__(
        self, name: str, on_change: Callable[[], None], check: Callable[..., Checked] = check
    ) -> None:
        self._name, self._on_change, self._check_device = name, on_change, check
        self._scanner: Scanner | None = None
        self._watched: dict[str, _Watched] = {}
        self._trusted: Mapping[str, HostDevice] = {}  # what is offered while there are no checks
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._calls = BlockingCalls(f"check {name}")
        self._running: dict[str, asyncio.Event] = {}  # by device; set when the round returns

    @property
    def _checks(self) -> HealthChecks | None:
        return self._scanner.resource.health if self._scanner else None

    def watch(self, scanner: Scanner, found: Snapshot) -> None:
        """Check these devices, as they were found, by this declaration.

        Args:
            scanner: Without ``health`` nothing is checked, and all states are dropped.
            found: Before `with_health`: a device that has a reason is not checked.
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

    def with_health(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the health of each device by its checks.

        A reason is added only where there is none, and not to a replaced device.
        """
        checks = self._checks
        if checks is None:
            return snapshot
        devices = dict(snapshot.devices)
        for device_id, device in devices.items():
            watched = self._watched.get(device_id)
            if watched is None and not _can_be_checked(device):
                continue
            state = watched.state if watched else HealthState()
            reason = device.reason
            if reason is None and not device.replaced:
                reason = state.reason(checks)
            devices[device_id] = replace(device, reason=reason, checked=state.checked)
        return replace(snapshot, devices=devices)

    async def first_round(self, timeout: float) -> None:  # noqa: ASYNC109 (not an error)
        """Wait until each device known now has been checked once, at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for watched in tuple(self._watched.values()):
                    await watched.judged.wait()

    def close(self) -> None:
        """End all rounds and drop all states."""
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
        watched = self._watched[device.id] = _Watched(device, HealthState(trusted=trusted))
        task = asyncio.create_task(self._keep_checking(watched), name=f"health {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _go_on(watched: _Watched, device: HostDevice, *, changed: bool) -> None:
        former, watched.device = watched.device, device
        if _identity(former) != _identity(device):
            watched.state = HealthState()
            watched.judged.clear()
        elif changed:  # the state stays until the new checks decide
            watched.state = replace(watched.state, streak=0)
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
        """Check a device round by round, until it is forgotten."""
        clock = asyncio.get_running_loop().time
        while not watched.gone and (scanner := self._scanner) and (checks := self._checks):
            began = clock()
            watched.due.clear()
            device = watched.device
            outcome = await self._round(watched, scanner, checks)
            # For another node or other checks it counts for nothing, and the next one is due.
            if self._checks == checks and _identity(watched.device) == _identity(device):
                self._judge(watched, outcome, checks)
            await asyncio.sleep(_PAUSE_MIN_S)  # also if the device changes all the time
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began + checks.interval):
                    await watched.due.wait()

    def _judge(self, watched: _Watched, outcome: Checked, checks: HealthChecks) -> None:
        if watched.gone:
            return
        before = watched.state.shown(checks)
        watched.state = watched.state.next(outcome, checks)
        watched.judged.set()
        if watched.state.shown(checks) != before:
            self._on_change()

    async def _round(self, watched: _Watched, scanner: Scanner, checks: HealthChecks) -> Checked:
        """Return the outcome of one round; one that does not return in time has failed."""
        device, patience = watched.device, checks.timeout + _KILL_S
        unanswered = f"did not answer in {checks.timeout:g} s"
        if running := self._running.get(device.id):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await running.wait()
            if not running.is_set():
                return _failed(unanswered)
        async with self._slots:
            if watched.gone:
                return _failed("gone")
            if self._calls.hanging:
                return _failed("not tried, as too many other checks of the resource do not return")
            self._running[device.id] = asyncio.Event()
            try:
                outcome = await self._calls.run(
                    lambda: self._check(scanner, checks, device),
                    patience=patience,
                    on_late=lambda: self._late(device.id),
                )
            except NoAnswerError:
                return _failed(unanswered)
            except OSError as error:  # no thread can be started
                outcome = _failed(error.strerror or str(error))
            self._returned(device.id)
            return outcome

    def _check(self, scanner: Scanner, checks: HealthChecks, device: HostDevice) -> Checked:
        constants = {"resource": scanner.resource.name, "nodeName": scanner.node_name}
        try:
            return self._check_device(
                checks, device, scanner.files, constants, allow=scanner.policy
            )
        except Exception as error:  # noqa: BLE001 (a bug in a check is this device's alone)
            fields = {"resource": self._name, "device": device.id}
            _LOG.exception("checking failed", extra={"fields": fields})
            return _failed(f"checking failed: {error!r}")

    def _late(self, device_id: str) -> None:
        """Check a device again whose round has returned too late to count."""
        self._returned(device_id)
        if watched := self._watched.get(device_id):
            watched.due.set()

    def _returned(self, device_id: str) -> None:
        self._running.pop(device_id).set()


def _can_be_checked(device: HostDevice) -> bool:
    return bool(device.nodes) and device.reason is None and not device.replaced


def _identity(device: HostDevice) -> _Identity:
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
