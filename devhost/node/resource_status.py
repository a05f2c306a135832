"""A resource as it is shown and logged: its state, the number and the changes of its devices."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from devhost.devices.identify import ID_LIMIT_REACHED
from devhost.model.config import Resource
from devhost.model.device import Cause, Snapshot, Verdict, no_explanation
from devhost.model.resource_state import State, Status

_REPEATS_MAX: Final = 3  # of one state with one reason in the log, until registered again
_LINES_MAX: Final = 5  # of one change; 10,000 devices are no 10,000 lines
# Where devices change all the time: so many lines, then all changes of a second as one.
_BURST, _EVERY_S = 5, 1.0
_LOG: Final = logging.getLogger(__name__)
_CHANGES: Final = logging.getLogger("devhost.node.changes")


class ResourceStatus:
    """The state of a resource, by its registration unless it is overridden; logs its changes."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._logged: Counter[tuple[State, str | None]] = Counter()
        self._overridden: Status | None = None
        self.current = Status()
        self.registered_once = False

    def set(self, state: State, reason: str | None = None) -> None:
        """Set the state; while it is overridden, it is shown later."""
        self.registered_once = self.registered_once or state is State.REGISTERED
        if self._overridden is not None:
            self._overridden = Status(state, reason)
        else:
            self._show(state, reason)

    def override(self, state: State, reason: str) -> None:
        """Show this state, whatever is set, until `restore`."""
        self._overridden = self._overridden or self.current
        self._show(state, reason)

    def restore(self) -> None:
        """Show the state again that was set last."""
        overridden, self._overridden = self._overridden, None
        if overridden is not None:
            self._show(overridden.state, overridden.reason)

    def _show(self, state: State, reason: str | None) -> None:
        if (state, reason) == (self.current.state, self.current.reason):
            return
        self.current = Status(state, reason)
        if state is State.REGISTERED:
            self._logged.clear()
        self._logged[state, reason] += 1
        level = logging.WARNING if state is State.BACKING_OFF else logging.INFO
        transient = state in (State.SERVING, State.STOPPED)
        if transient or self._logged[state, reason] > _REPEATS_MAX:
            level = logging.DEBUG
        fields = {"resource": self._resource, "state": state}
        if reason:
            fields["reason"] = reason
        _LOG.log(level, "state", extra={"fields": fields})


class DeviceCount:
    """How many devices a resource has, and how many it should have."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.present = 0
        self.expected = 0  # `Resource.min_devices`, or the most that it had since the file changed
        self.accept_next = False  # as many are expected as are found next: the file has changed
        self._logged = 0  # missing devices

    @property
    def missing(self) -> int:
        """How many of the expected devices are missing."""
        return max(0, self.expected - self.present)

    def update(self, resource: Resource, snapshot: Snapshot) -> None:
        """Count the devices that a scan has found."""
        if snapshot.error is not None or any(
            skipped.verdict.cause is Cause.SETTLING for skipped in snapshot.skipped
        ):
            return  # not the final number; another scan follows
        self.present = len(snapshot.present_devices)
        self.expected = self.present if self.accept_next else max(self.present, self.expected)
        if resource.min_devices is not None:
            self.expected = resource.min_devices
        self.accept_next = False

    def expect_none(self) -> None:
        """Count nothing as missing, without a line in the log: the resource ends."""
        self.present = self.expected = self._logged = 0

    def log_change(self) -> None:
        """Log that more devices are missing than were logged last, or that none is any longer."""
        before, self._logged = self._logged, self.missing
        if self.missing > before:
            fields = {"resource": self._resource, "missing": self.missing}
            _LOG.warning("devices missing", extra={"fields": fields | {"expected": self.expected}})
        elif before and not self.missing:
            fields = {"resource": self._resource}
            _LOG.info("no device is missing any longer", extra={"fields": fields})


class ChangeLog:
    """Logs the changes of one resource; many changes in a short time as one.

    `log_count` logs how many devices are missing, if that has changed.
    """

    def __init__(self, resource: str, log_count: Callable[[], None]) -> None:
        self._resource, self._log_count = resource, log_count
        self._logged = self._latest = Snapshot()
        self._next_at = 0.0  # on the event loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Log, soon, how a snapshot differs from what was logged last."""
        self._latest = snapshot
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._next_at), self._write)

    def repeat_empty(self) -> None:
        """Log again why there are no devices, if there are none either next time."""
        self._logged = replace(self._logged, explain_empty=no_explanation)

    def _write(self) -> None:
        self._timer, before, self._logged = None, self._logged, self._latest
        now = asyncio.get_running_loop().time()
        self._next_at = max(self._next_at, now - _BURST * _EVERY_S) + _EVERY_S
        self._log_count()
        log_changes(self._resource, before, self._latest)


def log_changes(resource: str, before: Snapshot, after: Snapshot) -> None:
    """Log devices that came, changed their health or go, what is skipped, and failures.

    What containers cannot be given is a warning.
    """

    def fields(**values: object) -> dict[str, object]:
        return {"fields": {"resource": resource, **{k: v for k, v in values.items() if v}}}

    lines, former = list(_device_lines(before, after)), set(before.skipped)
    lines += [
        (logging.WARNING, "skipped", {"candidate": skip.candidate, "reason": skip.reason})
        for skip in after.skipped
        # What is held back is offered soon, or skipped for another reason.
        if skip not in former and skip.verdict.cause is not Cause.SETTLING
    ]
    # What is bad comes first: of many lines, only the first are logged.
    lines.sort(key=lambda line: line[0], reverse=True)
    for level, message, values in lines[:_LINES_MAX]:
        _CHANGES.log(level, message, extra=fields(**values))
    if rest := lines[_LINES_MAX:]:
        _CHANGES.log(rest[0][0], "and more", extra=fields(changes=len(rest)))
    if after.truncated and not before.truncated:
        left_out = fields(left_out=after.truncated, reason=ID_LIMIT_REACHED)
        _CHANGES.warning("devices left out", extra=left_out)
    for note in set(after.notes) - set(before.notes):
        _CHANGES.info("host path missing", extra=fields(reason=note))
    for reason in after.explain_empty() if before.explain_empty is no_explanation else ():
        _CHANGES.info("no devices", extra=fields(reason=reason))
    if after.error is not None and after.error != before.error:
        _CHANGES.warning("source failed", extra=fields(reason=after.error))


def _is_unchecked(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.cause is Cause.UNCHECKED


def _device_lines(
    before: Snapshot, after: Snapshot
) -> Iterator[tuple[int, str, dict[str, object]]]:
    """Yield the level, the message and the fields of each line about a device."""
    former = {device.id: device.verdict for device in before.devices.values()}
    for device_id, device in after.devices.items():
        verdict, is_new = device.verdict, device_id not in former
        if not is_new and former[device_id] == verdict:
            continue
        is_bad = verdict is not None and not _is_unchecked(verdict)
        level = logging.WARNING if is_bad else logging.INFO
        again = "" if _is_unchecked(former.get(device_id)) else " again"
        health = f"device is {f'healthy{again}' if device.healthy else 'unhealthy'}"
        fields: dict[str, object] = {"device": device_id, "reason": device.reason}
        yield level, "device found" if is_new else health, fields
    for device_id in former.keys() - after.devices.keys():
        yield logging.INFO, "device leaves", {"device": device_id}
