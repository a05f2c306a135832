"""Keeps a resource's CDI spec file in step with its devices."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice
from devhost.allocation.cdi_devices import cdi_devices, named
from devhost.discovery.scan import Scanner
from devhost.host.cdi.files import CdiFiles
from devhost.host.holders import Holders
from devhost.model.device import Snapshot
from devhost.model.names import distinct
from devhost.threads import PATIENCE_S, BlockingCalls

_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 8.0
_UNWRITTEN: Final = "it is not in the CDI spec yet"
_LOG: Final = logging.getLogger(__name__)


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, files: CdiFiles, holders: Holders, rescan: Callable[[], None]) -> None:
        self._files, self._holders, self._rescan = files, holders, rescan
        self._calls = BlockingCalls("cdi devices", serial=True)
        self._former: Mapping[str, cdi.SpecEntry] | None = None  # of an earlier process, by name
        self._written: Mapping[str, CdiDevice] | None = None
        self._unwritten: Mapping[str, CdiDevice] = {}  # the devices while there is a problem
        self._problem: str | None = None
        self._pause = _RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._resource: str | None = None  # its name, while it is injected so

    async def write(self, scanner: Scanner, found: Snapshot) -> None:
        """Write the spec of the found devices; if that fails, `judged` gives the reason.

        A resource that no longer uses CDI keeps its file while it is served: containers that
        were started with it may start again. So does one whose sources have failed so far.
        """
        name = scanner.resource.name
        self._resource = name if scanner.resource.inject == "cdi" else None
        self.close()
        if self._resource is None or (self._written is None and found.error):
            return
        devices: Mapping[str, CdiDevice] = {}
        try:
            devices = await self._scan(scanner, found)
            kept = await self._kept(name, devices)
            await self._files.write(name, cdi.serialize(name, list(devices.values()), kept))
        except OSError as error:  # a TimeoutError, too
            await self._failed(name, error, devices)
        else:
            self._written, self._problem, self._pause = devices, None, _RETRY_S

    def close(self) -> None:
        """Stop retrying a write that has failed."""
        if self._retry is not None:
            self._retry.cancel()

    async def _failed(self, name: str, error: OSError, devices: Mapping[str, CdiDevice]) -> None:
        problem = f"its CDI spec could not be written: {error.strerror}"
        if problem != self._problem:
            fields = {"resource": name, "reason": str(error)}
            _LOG.warning("CDI spec not written", extra={"fields": fields})
        self._problem, self._unwritten = problem, devices
        self._retry = asyncio.get_running_loop().call_later(self._pause, self._rescan)
        self._pause = min(self._pause * 2, _RETRY_MAX_S)
        if self._written is None:  # an earlier process may have written what is needed
            with contextlib.suppress(OSError):
                entries = await self._files.entries(name)
                self._written = {
                    device_id: one
                    for device_id, one in devices.items()
                    if one.empty or cdi.entry(one) == entries.get(one.name)
                }

    async def _kept(self, name: str, devices: Mapping[str, CdiDevice]) -> list[cdi.SpecEntry]:
        """Return the entries that an earlier process has written for devices that pods hold.

        Such devices may have other names by now, or no longer be declared; a container that has
        one may start again. While pod-resources is unavailable, any device may be held.
        """
        holders = self._holders
        if self._former is None:
            self._former = await self._files.entries(name) if holders.asked else {}
            if self._former:
                await holders.try_refresh()
        former = self._former.keys() - {one.name for one in devices.values() if not one.empty}
        if holders.known:
            former &= {cdi.device_name(one) for one in distinct(holders.held(name))}
        return [self._former[one] for one in former]

    async def _scan(self, scanner: Scanner, found: Snapshot) -> dict[str, CdiDevice]:
        """Return what the spec says of the devices; one call at a time.

        Raises:
            TimeoutError: The host has not answered, now or before.
        """
        before = self._written or {}
        return await self._calls.run(
            lambda: cdi_devices(scanner, found, before),
            patience=PATIENCE_S,
            on_late=self._rescan,
        )

    def judged(self, snapshot: Snapshot) -> Snapshot:
        """Set the CDI names of devices; make those unhealthy that the spec does not have.

        Where the spec cannot be written, the former one still serves unchanged devices.
        """
        if self._resource is None:
            return snapshot
        written = self._written or {}
        snapshot = named(self._resource, snapshot, written)
        good = {
            device_id
            for device_id, one in written.items()
            if self._problem is None or self._unwritten.get(device_id) == one
        }
        devices = {
            device_id: device
            if not device.healthy or device_id in good
            else replace(device, reason=self._problem or _UNWRITTEN)
            for device_id, device in snapshot.devices.items()
        }
        return replace(snapshot, devices=devices)

    async def remove(self, resource: str) -> None:
        """Remove the file of a resource that has ended and whose devices no pod holds."""
        try:
            await self._files.write(resource, None)
        except OSError as error:
            fields = {"resource": resource, "reason": str(error)}
            _LOG.warning("CDI spec not removed", extra={"fields": fields})
