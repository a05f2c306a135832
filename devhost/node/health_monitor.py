"""The health of one resource's devices, by rounds of checks in threads.

A round that does not return delays neither other devices nor other resources, and its device gets
no second one meanwhile.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from devhost.devices.health_check import check_device
from devhost.devices.scan import Scanner
from devhost.errors import describe_os_error
from devhost.model.config import HealthChecks
from devhost.model.device import Cause, Checked, HostDevice, Snapshot, Verdict
from devhost.node.tasks import keep_running
from devhost.watch.threads import BlockingCalls, NoAnswerError, wait_at_most

CONCURRENT: Final = 8
_KILL_S: Final = 0.5  # for a command that has timed out to end
_PAUSE_MIN_S: Final = 0.05
_FIRST_POLL_S: Final = 0.01
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthState:
    """The health of a device after its checks so far."""

    healthy: bool | None = None  # ``None`` before the first round
    confirmed: bool = False  # offered before there were checks: healthy until the first round
    streak: int = 0  # rounds in a row that contradict ``healthy``
    failure: str | None = None  # the reason of the last failed round
    checked: Checked | None = None  # the last round

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

    def verdict(self, checks: HealthChecks) -> Verdict | None:
        """Return why the device is unhealthy, or ``None``."""
        if self.healthy is None:
            return None if self.confirmed else Verdict(Cause.UNCHECKED, "not checked yet")
        if self.healthy:
            return None
        text = f"check failed: {self.failure}"
        if self.streak:
            text = f"recovering: {self.streak} of {checks.recoveries} good rounds"
        return Verdict(Cause.CHECK_FAILED, text)

    def published(self, checks: HealthChecks) -> tuple[object, ...]:
        """Return all that is published again when it changes."""
        if self.checked is None:
            return (self.verdict(checks),)
        failure = None if self.healthy is False else self.checked.failure
        return (self.verdict(checks), failure, self.checked.unknown)


@dataclass(slots=True)
class _Watched:
    """A device that is being checked, as it was found last."""

    device: HostDevice
    state: HealthState
    next_at: float = -math.inf  # when it is checked, on the event loop's clock
    is_checking: bool = False
    hanging: BlockingCalls | None = None  # by which its last check has not returned yet


class HealthMonitor:
    """Checks the devices of one resource for as long as they are found.

    A device that was `offered` before there were checks is healthy until its first round.
    `on_change` is called on the event loop when a round has changed a device's reason, or the
    text of what failed or could not be checked; but not by `watch`. All methods belong to the
    event loop.
    """

    def __init__(
        self,
        scanner: Scanner,
        on_change: Callable[[], None],
        check: Callable[..., Checked] = check_device,
        offered: Collection[str] = (),
    ) -> None:
        self._scanner, self._on_change, self._check = scanner, on_change, check
        self._watched: dict[str, _Watched] = {}
        self._offered = offered  # IDs
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._calls = BlockingCalls(f"check {scanner.resource.name}")
        name = scanner.resource.name
        work = keep_running("checking", name, self._keep_checking)
        self._checking = asyncio.create_task(work, name=f"health {name}")

    @property
    def _checks(self) -> HealthChecks:
        checks = self._scanner.resource.health
        assert checks is not None  # noqa: S101 (else there is no monitor)
        return checks

    def watch(self, scanner: Scanner, snapshot: Snapshot) -> None:
        """Check the devices of a snapshot by the checks of their specification.

        A device that has a verdict before `judge` is not checked.
        """
        former, self._scanner = self._checks, scanner
        watched, changed = self._watched, self._checks != former
        if changed:  # that calls of former checks hang says nothing of others
            self._calls = BlockingCalls(f"check {scanner.resource.name}")
        self._watched = {
            device.id: self._update(watched.get(device.id), device, changed=changed)
            for device in snapshot.devices.values()
            if _can_be_checked(device)
        }
        self._offered = ()
        self._wake.set()

    def _update(self, watched: _Watched | None, device: HostDevice, *, changed: bool) -> _Watched:
        """Return a device to be checked, with its state so far; a changed one is due now."""
        if watched is None or _identity(watched.device) != _identity(device):
            return _Watched(device, HealthState(confirmed=device.id in self._offered))
        if changed:  # the state stays until the new checks decide
            watched.state = replace(watched.state, streak=0)
        if changed or _stamps(watched.device) != _stamps(device):
            watched.next_at = -math.inf
        watched.device = device
        return watched

    def judge(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the health of each device by its checks.

        A verdict is added only to a device that has none and is not leaving.
        """
        checks, devices = self._checks, dict(snapshot.devices)
        for device_id, device in devices.items():
            watched = self._watched.get(device_id)
            if watched is None and not _can_be_checked(device):
                continue
            state = watched.state if watched else HealthState()
            verdict = device.verdict or (None if device.is_leaving else state.verdict(checks))
            devices[device_id] = replace(device, verdict=verdict, checked=state.checked)
        return replace(snapshot, devices=devices)

    async def first_round(self) -> None:
        """Wait until each device has been checked once."""
        while any(watched.state.healthy is None for watched in self._watched.values()):  # noqa: ASYNC110
            await asyncio.sleep(_FIRST_POLL_S)

    def close(self) -> None:
        """End all rounds."""
        self._checking.cancel()

    # ── rounds ──

    async def _keep_checking(self) -> None:
        """Begin to check the devices that are due; then wait until another is."""
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as rounds:
            while True:
                self._wake.clear()
                now = clock()
                for watched in self._watched.values():
                    if watched.next_at <= now and not watched.is_checking:
                        rounds.create_task(self._round(watched))
                await asyncio.sleep(_PAUSE_MIN_S)  # also if devices change all the time
                # Rounds that are late say when they end.
                times = (watched.next_at for watched in self._watched.values())
                until = min((time for time in times if time > now), default=math.inf)
                await wait_at_most(until - clock(), self._wake.wait)

    async def _round(self, watched: _Watched) -> None:
        """Check a device."""
        clock, checks = asyncio.get_running_loop().time, self._checks
        watched.next_at, watched.is_checking = clock() + checks.interval, True
        try:
            async with self._slots:
                outcome = await self._outcome(checks, watched)
        finally:
            watched.is_checking = False
            if watched.next_at <= clock():
                self._wake.set()
        if self._checks != checks:
            return  # the outcome counts for nothing, and the next round is due
        before = watched.state.published(checks)
        watched.state = watched.state.next(outcome, checks)
        if watched.state.published(checks) != before:
            self._on_change()

    async def _outcome(self, checks: HealthChecks, watched: _Watched) -> Checked:
        """Return the outcome of checking a device; a check that is late has failed."""
        scanner, device, calls = self._scanner, watched.device, self._calls
        late = f"did not answer in {checks.timeout:g} s"

        def end_hanging() -> None:
            watched.hanging = None

        if watched.hanging is calls:
            return _failed_round(late)
        if calls.hanging:
            return _failed_round(
                "not tried, as too many other checks of the resource do not return"
            )
        try:
            return await calls.run(
                lambda: self._check(
                    checks, device, scanner.files, scanner.constants, allow=scanner.policy
                ),
                patience=checks.timeout + _KILL_S,
                on_late=end_hanging,
            )
        except NoAnswerError:
            watched.hanging = calls
            return _failed_round(late)
        except OSError as error:  # no thread can be started
            return _failed_round(describe_os_error(error))
        except Exception as error:  # noqa: BLE001 (a bug in a check is this device's alone)
            fields = {"resource": scanner.resource.name, "device": device.id}
            _LOG.exception("checking failed", extra={"fields": fields})
            return _failed_round(f"checking failed: {error!r}")


def _can_be_checked(device: HostDevice) -> bool:
    return bool(device.nodes) and device.healthy and not device.is_leaving


def _identity(device: HostDevice) -> tuple[object, ...]:
    """Return the identities of a device's nodes, without their change times.

    Those change with the permissions and the content, too.
    """
    return tuple(
        (node.state.inode, node.state.number) if node.state else node.name for node in device.nodes
    )


def _stamps(device: HostDevice) -> tuple[object, ...]:
    return tuple(node.state and node.state.stamp for node in device.nodes)


def _failed_round(reason: str) -> Checked:
    return Checked(datetime.now(UTC), failure=reason)
