"""The state of a resource and the number of its devices, as they are shown and logged."""

import logging
from collections import Counter
from typing import Final

from devhost.model.config import Resource
from devhost.model.device import Cause, Snapshot
from devhost.model.resource_state import State, Status

_REPEATS_MAX: Final = 3  # of one state with one reason in the log, until registered again
_LOG: Final = logging.getLogger(__name__)


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
        before, self.present = self.missing, len(snapshot.present_devices)
        self.expected = self.present if self.accept_next else max(self.present, self.expected)
        if resource.min_devices is not None:
            self.expected = resource.min_devices
        self.accept_next = False
        if self.missing > before:
            fields = {"resource": self._resource, "missing": self.missing}
            _LOG.warning("devices missing", extra={"fields": fields | {"expected": self.expected}})
        elif before and not self.missing:
            fields = {"resource": self._resource}
            _LOG.info("no device is missing any longer", extra={"fields": fields})
