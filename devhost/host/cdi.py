"""The CDI spec files of this node: one for each resource with ``inject: cdi``.

They remain when devhost stops: the containers of a running pod may restart and need them.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice, cdi_devices, named
from devhost.discovery.scan import Scanner
from devhost.host.state_files import replace_file
from devhost.model.device import Snapshot
from devhost.watch.threads import PATIENCE_S, BlockingCalls

_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 8.0
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
        prefix = f".{cdi.FILE_PREFIX}{cdi.resource_hash(resource_name)}_"
        replace_file(path, content, prefix=prefix, suffix=".tmp", mode=0o644)
        self.writes += 1

    async def remove_stale(
        self, configured: Collection[str], alive: Callable[[str], bool]
    ) -> list[str]:
        """Remove and return devhost's files of resources that are not served, and unfinished ones.

        `alive` tells, in a thread, whether another instance serves a resource, by its hash.

        Raises:
            OSError: The directory exists and cannot be read; a `TimeoutError` after 10 s.
        """
        hashes = {cdi.resource_hash(name) for name in configured}
        calls = BlockingCalls("stale cdi files", self.directory)
        return await calls.run(
            lambda: _remove_stale(self.directory, hashes, alive), patience=PATIENCE_S
        )


def _remove_stale(
    directory: Path, configured: Collection[str], alive: Callable[[str], bool]
) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            names = sorted(one.name for one in entries if one.is_file(follow_symlinks=False))
    except FileNotFoundError:
        return []
    removed = []
    for name in names:
        resource = cdi.hash_in(name)
        if resource is None or resource in configured or alive(resource):
            continue
        with contextlib.suppress(OSError):
            (directory / name).unlink()
            removed.append(name)
    return removed


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, files: CdiFiles, rescan: Callable[[], None]) -> None:
        self._files, self._rescan = files, rescan
        # One at a time: a write that is late must not undo a later one.
        self._calls = BlockingCalls("cdi devices", files.directory, serial=True)
        self._written: Mapping[str, CdiDevice] | None = None  # by device
        self._unwritten: Mapping[str, CdiDevice] = {}  # the devices while there is a problem
        self._problem: str | None = None
        self._pause = _RETRY_S
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
        devices: Mapping[str, CdiDevice] = {}

        def work() -> None:
            nonlocal devices
            devices = cdi_devices(scanner, found, before)
            self._files.write(name, cdi.serialize(name, list(devices.values())))

        try:
            await self._calls.run(work, patience=PATIENCE_S, on_late=self._rescan)
        except OSError as error:  # a TimeoutError, too
            self._failed(name, error)
            self._unwritten = devices
        else:
            self._written, self._problem, self._pause = devices, None, _RETRY_S

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
        self._retry = asyncio.get_running_loop().call_later(self._pause, self._rescan)
        self._pause = min(self._pause * 2, _RETRY_MAX_S)

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
            await self._calls.run(lambda: self._files.write(resource, None), patience=PATIENCE_S)
        except OSError as error:
            fields = {"resource": resource, "reason": str(error)}
            _LOG.warning("CDI spec not removed", extra={"fields": fields})
