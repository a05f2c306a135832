"""The CDI spec files of this node: one for each resource with ``inject: cdi``.

They remain when devhost stops: the containers of a running pod may restart and need them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice, cdi_devices, named
from devhost.discovery.scan import Scanner
from devhost.host.state_files import replace_file
from devhost.model.device import Snapshot
from devhost.watch.threads import PATIENCE_S, BlockingCalls

_RETRY_S: Final = 2.0
_UNWRITTEN: Final = "it is not in the CDI spec yet"
_LOG: Final = logging.getLogger(__name__)


class CdiFiles:
    """The spec files of devhost's resources in one directory, where runtimes look for them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.writes = directory, 0

    def write(self, resource_name: str, content: bytes | None) -> None:
        """Replace a resource's file atomically, or remove it. Blocks; may raise `OSError`."""
        path = self.directory / cdi.file_name(resource_name)
        if content is None:
            path.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Runtimes, some of them rootless, read all *.json and *.yaml again whenever one is renamed.
        replace_file(path, content, suffix=".tmp", mode=0o644)
        self.writes += 1


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, files: CdiFiles, rescan: Callable[[], None]) -> None:
        self._files, self._rescan = files, rescan
        # One at a time: a write that is late must not undo a later one.
        self._calls = BlockingCalls("cdi devices", files.directory, serial=True)
        self._written: Mapping[str, CdiDevice] | None = None  # by device
        self._wanted: Mapping[str, CdiDevice] = {}  # what was last to be written
        self._problem: str | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._resource: str | None = None  # its name, as soon as there was something to write

    async def write(self, scanner: Scanner, found: Snapshot) -> None:
        """Write the spec of the found devices; if that fails, `judged` gives the reason.

        A resource that no longer uses CDI keeps its file while it is served: containers that
        were started with it may start again. So does one whose sources have failed so far.
        """
        name = self._resource = scanner.resource.name
        self.close()
        if self._written is None and found.error:
            return
        before = self._written or {}
        wanted: Mapping[str, CdiDevice] = {}

        def work() -> None:
            nonlocal wanted
            wanted = cdi_devices(scanner, found, before)
            self._files.write(name, cdi.serialize(name, list(wanted.values())))

        try:
            await self._calls.run(work, patience=PATIENCE_S, on_late=self._rescan)
        except OSError as error:  # a TimeoutError, too
            self._failed(name, error)
        else:
            self._written, self._problem = wanted, None
        self._wanted = wanted

    def close(self) -> None:
        """Stop retrying a write that has failed."""
        if self._retry is not None:
            self._retry.cancel()

    def _failed(self, name: str, error: OSError) -> None:
        problem = f"its CDI spec could not be written: {error.strerror}"
        if problem != self._problem:
            fields = {"resource": name, "reason": str(error)}
            _LOG.warning("CDI spec not written", extra={"fields": fields})
        self._problem = problem
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._rescan)

    def judged(self, snapshot: Snapshot) -> Snapshot:
        """Set the CDI names of devices; make those unhealthy that the spec does not have.

        Where the spec cannot be written, the former one still serves unchanged devices.
        """
        if self._resource is None:
            return snapshot
        written = self._written or {}
        snapshot = named(self._resource, snapshot, written)
        good = {key for key, one in written.items() if self._wanted.get(key) == one}
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
            await self._calls.run(lambda: self._files.write(resource, None), patience=PATIENCE_S)
        except OSError as error:
            fields = {"resource": resource, "reason": str(error)}
            _LOG.warning("CDI spec not removed", extra={"fields": fields})
