"""Counts the devices of each resource, and reports when there are fewer than there should be."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from devhost.discovery.candidates import DEFERRED
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.immutable import immutable

_BURST_S: Final = 0.5  # many changes are one count
_LOG: Final = logging.getLogger(__name__)

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
