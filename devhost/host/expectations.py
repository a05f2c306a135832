"""Counts the devices of each resource, and says when there are fewer than expected.

The numbers are kept in the state directory, so that a device that is gone after a restart is
missed too. Nothing waits for that directory: until it answers, they are in memory only.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from devhost.discovery.candidates import HELD
from devhost.host.expectation import Expectation
from devhost.host.resource.publisher import Publisher
from devhost.host.state_files import locked, write_atomically
from devhost.threads import in_thread

_BURST_S: Final = 0.5  # many changes are one count
_RETRY_S: Final = 60.0  # for a state directory that cannot be used
_LOG: Final = logging.getLogger(__name__)

Numbers = dict[str, Expectation]


class Expectations:
    """What is expected of the resources of a process.

    Args:
        state_dir: Where the numbers outlive the process; ``None`` for memory only.
    """

    def __init__(self, state_dir: Path | None) -> None:
        # A directory of its own: its lock is held for this file only.
        self._path = state_dir / "expected" / "devices.json" if state_dir else None
        self._numbers: Numbers = {}
        self._changed: dict[str, Publisher] = {}
        self._due = asyncio.Event()
        self._unsaved: dict[str, Expectation | None] = {}
        self._save = asyncio.Event()
        self._problem: str | None = None

    def of(self, name: str) -> Expectation:
        """Return what is expected of a resource; nothing before its devices are counted."""
        return self._numbers.get(name, Expectation())

    def changed(self, name: str, published: Publisher) -> None:
        """Count the devices of a resource soon."""
        self._changed[name] = published
        self._due.set()

    def forget(self, name: str) -> None:
        """Expect nothing of a resource any more."""
        self._changed.pop(name, None)
        self._numbers.pop(name, None)
        self._later(name, None)

    async def run(self) -> None:
        """Count when something has changed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._path is not None:
                tasks.create_task(self._keep(self._path), name="expected devices")
            while True:
                await self._due.wait()
                await asyncio.sleep(_BURST_S)
                self._due.clear()
                while self._changed:
                    self._count(*self._changed.popitem())
                    await asyncio.sleep(0)  # a thousand resources take a while

    def _count(self, name: str, published: Publisher) -> None:
        found = published.found
        if found.error is not None or any(one.reason.startswith(HELD) for one in found.skipped):
            return  # not the whole number; another scan follows
        there = sum(device.missing_since is None for device in found.devices.values())
        resource, elsewhere = published.scanner.resource, len(published.skipped)
        fresh = Expectation.of(resource, there, elsewhere)
        self._set(name, self.of(name).then(fresh, time.time()))

    def _set(self, name: str, expectation: Expectation) -> None:
        now, known = time.time(), self.of(name)
        was, missing = known.missing(now), expectation.missing(now)
        if expectation == known:
            return
        self._numbers[name] = expectation
        self._later(name, expectation)
        if missing > was:
            fields = {"resource": name, "missing": missing, "expected": expectation.expected(now)}
            _LOG.warning("devices missing", extra={"fields": fields})
        elif was and not missing:
            _LOG.info("no devices missing any more", extra={"fields": {"resource": name}})

    # ── in the state directory ──

    def _later(self, name: str, expectation: Expectation | None) -> None:
        self._unsaved[name] = expectation
        self._save.set()

    async def _keep(self, path: Path) -> None:
        """Read the file, then write what changes."""
        loaded = False
        while True:
            try:
                if not loaded:
                    self._load(await in_thread("read expected devices", lambda: _read(path)))
                    loaded = True
                if self._unsaved:
                    await self._write(path, dict(self._unsaved))
            except Exception as error:  # noqa: BLE001 (logged; the host goes on)
                if (problem := str(error)) != self._problem:
                    _LOG.warning("cannot keep the number of devices: %s", problem)
                self._problem = problem
            else:
                self._problem = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._save.wait()
            self._save.clear()

    def _load(self, stored: Numbers) -> None:
        for name, earlier in stored.items():
            if name in self._numbers:
                self._set(name, earlier.then(self._numbers[name], time.time()))
            elif name not in self._unsaved:  # else forgotten meanwhile
                self._numbers[name] = earlier

    async def _write(self, path: Path, unsaved: Mapping[str, Expectation | None]) -> None:
        await in_thread("save expected devices", lambda: _write(path, unsaved))
        for name, saved in unsaved.items():
            if self._unsaved[name] is saved:
                del self._unsaved[name]


# ── in a thread ────────────────────────────────────────────────────────────────────────


@functools.cache  # takes milliseconds to make
def _adapter() -> TypeAdapter[Numbers]:
    return TypeAdapter(Numbers)


def _read(path: Path) -> Numbers:
    try:
        return _adapter().validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        _LOG.warning("%s is not used: %s", path, error)
        return {}


def _write(path: Path, changed: Mapping[str, Expectation | None]) -> None:
    """Change the file, which other instances may have written meanwhile."""
    with locked(path.parent):
        numbers = {**_read(path), **changed}
        kept = {name: number for name, number in numbers.items() if number is not None}
        write_atomically(path, _adapter().dump_json(kept, indent=1))
