"""Keeps a resource's CDI spec file in step with its devices."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from devhost import cdi
from devhost.cdi import CdiDevice
from devhost.discovery.injection import cdi_devices
from devhost.discovery.scan import Scanner
from devhost.host.cdi_files import CdiFiles
from devhost.model.device import Snapshot
from devhost.threads import in_thread

_PATIENCE_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, files: CdiFiles) -> None:
        self._files = files
        self._written: Mapping[str, CdiDevice] = {}
        self._problem: str | None = None
        self._active = False

    async def write(self, scanner: Scanner, found: Snapshot) -> None:
        """Write what the devices bring; where that fails, `judged` tells why.

        A resource that is not injected by CDI any more keeps its file while it is served:
        containers that were started with it may start again.
        """
        name = scanner.resource.name
        self._active = scanner.resource.inject == "cdi"
        if not self._active:
            return
        before = self._written
        looking = in_thread(f"cdi {name}", lambda: cdi_devices(scanner, found, before))
        looking.add_done_callback(lambda late: late.cancelled() or late.exception())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                devices = await asyncio.shield(looking)
            await self._files.write(name, cdi.serialize(name, list(devices.values())))
        except OSError as error:  # a TimeoutError, too
            problem = f"its CDI spec could not be written: {error.strerror or 'no answer'}"
            if problem != self._problem:
                fields = {"resource": name, "reason": str(error)}
                _LOG.warning("CDI spec not written", extra={"fields": fields})
            self._problem = problem
        else:
            self._written, self._problem = devices, None

    def judged(self, snapshot: Snapshot) -> Snapshot:
        """Make the devices unhealthy that no runtime would find."""
        if not self._active or self._problem is None:
            return snapshot
        devices = {
            device_id: device if not device.healthy else replace(device, reason=self._problem)
            for device_id, device in snapshot.devices.items()
        }
        return replace(snapshot, devices=devices)

    async def remove(self, resource: str) -> None:
        """Remove the file of a resource that has ended and that no pod holds."""
        try:
            await self._files.write(resource, None)
        except OSError as error:
            fields = {"resource": resource, "reason": str(error)}
            _LOG.warning("CDI spec not removed", extra={"fields": fields})
