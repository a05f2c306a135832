"""The CDI spec files of this node: one for each resource with ``inject: cdi``.

They remain when devhost stops: the containers of a running pod may restart and need them.
"""

import contextlib
import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from devhost.allocation import cdi
from devhost.allocation.cdi import Edits, SpecBudget, cdi_devices, named
from devhost.custody.state_dir import replace_file
from devhost.devices.scan import Scanner
from devhost.hostfs.files import Progress
from devhost.model.device import Snapshot
from devhost.watch.threads import PATIENCE_S, BlockingCalls, run_in_thread
from devhost.watch.watcher import Watcher, follow_directory

_UNFINISHED: Final = f".*.json.{'[0-9a-f]' * 8}.tmp"
_UNFINISHED_S: Final = 60.0  # a living process takes less to write one
_LOG: Final = logging.getLogger(__name__)


class CdiFiles:
    """The spec files of devhost in one directory, where runtimes look for them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.writes, self.budget = directory, 0, SpecBudget()
        # They get the files that there are, and have those that are missing written again.
        self.checks: set[Callable[[AbstractSet[str]], Awaitable[None]]] = set()
        self._writer = f".{secrets.token_hex(4)}"  # other instances write files of these names, too

    def write(self, name: str, content: bytes | None) -> None:
        """Replace a file atomically, or remove it. Blocks; may raise `OSError`."""
        path = self.directory / name
        if content is None:
            path.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.writes == 0:
            self._remove_unfinished()
        # Runtimes, some of them rootless, read all *.json and *.yaml again whenever one is renamed.
        replace_file(path, content, mode=0o644, writer=self._writer)
        self.writes += 1

    async def follow(self, watcher: Watcher) -> None:
        """Write again what was removed, until cancelled."""
        async for _ in follow_directory(watcher, self.directory):
            files = await run_in_thread("cdi files", lambda: [*self.directory.glob("*.json")])
            names = {path.name for path in files}
            for check in tuple(self.checks):
                await check(names)

    def _remove_unfinished(self) -> None:
        """Remove what processes that were killed have not finished."""
        oldest = time.time() - _UNFINISHED_S
        for path in self.directory.glob(_UNFINISHED):
            with contextlib.suppress(OSError):  # it is finished now
                if path.stat().st_mtime < oldest:
                    path.unlink()


class CdiInjection:
    """The spec file of one resource, if it has one."""

    def __init__(self, resource: str, files: CdiFiles, rescan: Callable[[], None]) -> None:
        self._resource, self._files, self._rescan = resource, files, rescan
        self._file_name = cdi.file_name(resource)
        self._scanner: Scanner | None = None  # of the last attempt, whose looks at the host are:
        self._looks = BlockingCalls("cdi devices", serial=True)
        # One at a time: a write that is late must not undo a later one.
        self._calls = BlockingCalls("cdi spec", files.directory, serial=True)
        self._written: Mapping[str, bytes] | None = None  # hashes, by device
        self._wanted: Mapping[str, bytes] = {}  # as of the last attempt to write
        self._problem: str | None = None

    async def write(self, scanner: Scanner, snapshot: Snapshot) -> None:
        """Write the spec of the devices of a snapshot; if that fails, `judge` gives the reason.

        A resource that no longer uses CDI keeps its file while it is served: containers that
        were started with it may start again. So does one whose sources have failed so far.
        """
        if self._written is None and snapshot.error:
            self._problem = f"its CDI spec waits for a source: {snapshot.error}"
            return
        if scanner is not self._scanner:
            # Without the looks by the former specification, of which one may hang.
            self._scanner, self._looks = scanner, BlockingCalls("cdi devices", serial=True)
        self._files.checks.add(self._check)
        take = functools.partial(self._files.budget.take, self._rescan)
        former = self._written or {}, self._files.directory / self._file_name
        look = functools.partial(cdi_devices, scanner, snapshot, take, *former)
        wanted: Mapping[str, bytes] = {}
        try:
            devices = await self._looks.run(
                look, patience=PATIENCE_S, progress=Progress(), on_late=self._rescan
            )
            # Without a limit, as the host is not asked: for many devices it takes long.
            text = functools.partial(_serialized, self._resource, devices)
            content, wanted, size = await run_in_thread("cdi spec", text)
            write = functools.partial(self._files.write, self._file_name, content)
            await self._calls.run(write, patience=PATIENCE_S, on_late=self._rescan)
        except OSError as error:  # a TimeoutError, too; the next scan tries again
            problem = f"its CDI spec could not be written: {error.strerror}"
            if problem != self._problem:
                self._warn("CDI spec not written", error)
            self._problem = problem
        else:
            self._written, self._problem = wanted, None
            self._files.budget.settle(self._resource, size)
        self._wanted = wanted

    def judge(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with CDI names, where devices that the spec lacks are unhealthy.

        Where the spec cannot be written, the former one still serves unchanged devices.
        """
        written, wanted = self._written or {}, self._wanted
        usable = {name: edits for name, edits in written.items() if wanted.get(name) == edits}
        return named(self._resource, snapshot, usable, self._problem)

    async def _check(self, names: AbstractSet[str]) -> None:
        if self._file_name not in names:
            self._files.checks.discard(self._check)  # until it is written again, if it still is
            self._rescan()

    async def remove(self) -> None:
        """Remove the file of a resource that has ended and whose devices no pod holds."""
        self._files.checks.discard(self._check)
        work = functools.partial(self._files.write, self._file_name, None)
        try:
            await self._calls.run(work, patience=PATIENCE_S)
        except OSError as error:
            self._warn("CDI spec not removed", error)

    def _warn(self, message: str, error: OSError) -> None:
        _LOG.warning(message, extra={"fields": {"resource": self._resource, "reason": str(error)}})


def _serialized(
    resource: str, devices: Mapping[str, Edits]
) -> tuple[bytes | None, dict[str, bytes], int]:
    """Return a spec, the hash of each device's edits, empty if it has none, and the size of all."""
    texts = {name: cdi.entry_text(name, brought) for name, brought in devices.items()}
    hashes = {name: hashlib.sha256(texts[name]).digest() * bool(devices[name]) for name in devices}
    return cdi.serialize(resource, devices), hashes, sum(map(len, texts.values()))
