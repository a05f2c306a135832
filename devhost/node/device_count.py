"""How many devices a resource has, and how many it should have."""

import logging
from typing import Final

from devhost.model.config import Resource
from devhost.model.device import Cause, Snapshot

_LOG: Final = logging.getLogger(__name__)


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
