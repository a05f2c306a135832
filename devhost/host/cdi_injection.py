"""Keeps a resource's CDI spec file in step with its devices."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from devhost import cdi
from devhost.cdi import CdiDevice
from devhost.discovery.injection import cdi_devices, named
from devhost.discovery.scan import Scanner
from devhost.host.cdi_files import CdiFiles
from devhost.model.device import Snapshot
from devhost.threads import in_thread

_PATIENCE_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, files: CdiFiles, look_again: Callable[[], None]) -> None:
        self._files, self._look_again = files, look_again
        self._written: Mapping[str, CdiDevice] | None = None
        self._looking: asyncio.Future[dict[str, CdiDevice]] | None = None
        self._problem: str | None = None
        self._resource: str | None = None  # its name, while it is injected so

    async def write(self, scanner: Scanner, found: Snapshot) -> None:
        """Write what the devices bring; where that fails, `judged` tells why.

        A resource that is not injected by CDI any more keeps its file while it is served:
        containers that were started with it may start again. So does one of which nothing is
        known yet, because its sources fail.
        """
        name = scanner.resource.name
        self._resource = name if scanner.resource.inject == "cdi" else None
        if self._resource is None or (self._written is None and found.error):
            return
        try:
            devices = await self._look(scanner, found)
            await self._files.write(name, cdi.serialize(name, list(devices.values())))
        except OSError as error:  # a TimeoutError, too
            problem = f"its CDI spec could not be written: {error.strerror or 'no answer'}"
            if problem != self._problem:
                fields = {"resource": name, "reason": str(error)}
                _LOG.warning("CDI spec not written", extra={"fields": fields})
            self._problem = problem
        else:
            self._written, self._problem = devices, None

    async def _look(self, scanner: Scanner, found: Snapshot) -> dict[str, CdiDevice]:
        """Look at what the devices bring, one look at a time: a sick host owes only one.

        Raises:
            TimeoutError: The host has not answered, now or at a former look.
        """
        if self._looking is not None and not self._looking.done():
            raise TimeoutError
        before = self._written or {}
        looking = in_thread(
            f"cdi {scanner.resource.name}", lambda: cdi_devices(scanner, found, before)
        )
        self._looking = looking
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await asyncio.shield(looking)
        except TimeoutError:
            looking.add_done_callback(self._answered)
            raise

    def _answered(self, late: "asyncio.Future[dict[str, CdiDevice]]") -> None:
        if not late.cancelled():
            late.exception()  # nobody waits for it any more
        self._look_again()

    def judged(self, snapshot: Snapshot) -> Snapshot:
        """Name devices as the spec does; make those unhealthy that no runtime would find."""
        if self._resource is None:
            return snapshot
        snapshot = named(self._resource, snapshot, self._written or {})
        if self._problem is None:
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
