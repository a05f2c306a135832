"""What changes of a resource's devices: lines in the log, and how many are missing."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from devhost.discovery.identity import DEFERRED
from devhost.host.health import UNCHECKED
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.immutable import immutable

_LINES_MAX: Final = 5  # of one change; 10,000 devices are no 10,000 lines
_BURST_S: Final = 0.5  # many changes are one count
_LOG: Final = logging.getLogger(__name__)


def log_changes(resource: str, before: Snapshot, after: Snapshot) -> None:
    """Log devices that came, changed their health or go, what is skipped, and failures.

    What containers cannot be given is a warning.
    """

    def fields(**more: object) -> dict[str, object]:
        return {"fields": {"resource": resource, **{k: v for k, v in more.items() if v}}}

    devices = list(_device_lines(before, after))
    known = set(before.skipped)
    new = [one for one in after.skipped if one not in known] if known else after.skipped
    # What is held back is offered soon, or skipped for another reason.
    skipped = [one for one in new if not one.reason.startswith(DEFERRED)]
    # Those with a reason first: of many lines, only the first are logged.
    lines = [line for line in devices if _is_bad(line[1])]
    lines += [
        ("skipped", {"candidate": one.candidate, "reason": one.reason})
        for one in skipped[: _LINES_MAX + 1]
    ]
    lines += [line for line in devices if not _is_bad(line[1])]
    for message, more in lines[:_LINES_MAX]:
        level = logging.WARNING if _is_bad(more) else logging.INFO
        _LOG.log(level, message, extra=fields(**more))
    rest = len(devices) + len(skipped) - _LINES_MAX
    if rest > 0:
        level = logging.WARNING if _is_bad(lines[_LINES_MAX][1]) else logging.INFO
        _LOG.log(level, "and more", extra=fields(changes=rest))
    for note in set(after.notes) - set(before.notes):
        _LOG.info("host path missing", extra=fields(reason=note))
    for reason in after.why_none() if before.why_none is tuple else ():
        _LOG.info("no devices", extra=fields(reason=reason))
    if after.error is not None and after.error != before.error:
        _LOG.warning("source failed", extra=fields(reason=after.error))


def _is_bad(fields: dict[str, object]) -> bool:
    return fields.get("reason") not in (None, UNCHECKED)


def _device_lines(before: Snapshot, after: Snapshot) -> list[tuple[str, dict[str, object]]]:
    was = {device.id: device.reason for device in before.devices.values()}
    now = {device.id: device.reason for device in after.devices.values()}
    lines: list[tuple[str, dict[str, object]]] = []
    for device_id, reason in now.items():
        if device_id not in was:
            lines.append(("device found", {"device": device_id, "reason": reason}))
        elif was[device_id] != reason:
            again = " again" if was[device_id] != UNCHECKED else ""
            health = f"device is healthy{again}" if reason is None else "device is unhealthy"
            lines.append((health, {"device": device_id, "reason": reason}))
    lines += [("device leaves", {"device": gone}) for gone in was.keys() - now.keys()]
    return lines


# ── counts ──

Counted = Callable[[], tuple[Resource, Snapshot]]
"""Returns the declaration of a resource, and what was found of it."""


@immutable
class DeviceCount:
    """How many devices a resource has."""

    found: int = 0
    expected: int = 0  # `Resource.min_devices`, or the most that it had since the file changed
    resource: Resource | None = None  # the declaration by which they were found

    @property
    def missing(self) -> int:
        """How many of the expected devices are missing."""
        return max(0, self.expected - self.found)


class DeviceCounts:
    """The counts of all resources of a process. All methods belong to the event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, DeviceCount] = {}
        self._published: dict[str, Counted] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}

    def of(self, name: str) -> DeviceCount:
        """Return the count of a resource; zero before its devices are counted."""
        return self._counts.get(name, DeviceCount())

    def changed(self, name: str, published: Counted) -> None:
        """Count the devices of a resource soon."""
        self._published[name] = published
        if name not in self._due:
            loop = asyncio.get_running_loop()
            self._due[name] = loop.call_later(_BURST_S, self._count, name)

    def accept(self) -> None:
        """Expect as many devices as are found soon: the file has changed."""
        self._counts = {name: replace(one, resource=None) for name, one in self._counts.items()}
        for name, published in self._published.items():
            self.changed(name, published)

    def forget(self, name: str) -> None:
        """Drop the count of a resource."""
        if due := self._due.pop(name, None):
            due.cancel()
        self._published.pop(name, None)
        self._counts.pop(name, None)

    def close(self) -> None:
        """Count nothing more."""
        for due in self._due.values():
            due.cancel()

    def _count(self, name: str) -> None:
        del self._due[name]
        resource, found = self._published[name]()
        if found.error is not None or any(one.reason.startswith(DEFERRED) for one in found.skipped):
            return  # not the final number; another scan follows
        there = sum(device.missing_since is None for device in found.devices.values())
        before = self.of(name)
        expected = resource.min_devices
        if expected is None:
            expected = max(there, before.expected if before.resource == resource else 0)
        count = self._counts[name] = DeviceCount(there, expected, resource)
        if count.missing > before.missing:
            fields = {"resource": name, "missing": count.missing, "expected": expected}
            _LOG.warning("devices missing", extra={"fields": fields})
        elif before.missing and not count.missing:
            _LOG.info("no device is missing any longer", extra={"fields": {"resource": name}})
