"""Counts the devices of each resource, and reports when there are fewer than expected.

Expected is a declared number, or as many as there were lately. The numbers are kept in the state
directory, so that a device that is gone after a restart counts as missing, too.
"""

import asyncio
import functools
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Final

from devhost.discovery.candidates import DEFERRED
from devhost.host import json_text
from devhost.host.resource.publisher import Publisher
from devhost.host.state_files import StateWriter, locked, write_atomically
from devhost.immutable import immutable
from devhost.model.config import Resource
from devhost.threads import in_thread

ACCEPTED_AFTER_S: Final = 24 * 3600.0
# The options that decide which devices are found. When one of them changes, so may the number.
_FINDING: Final = ("sources", "id", "group", "max_devices", "overlap")
_BURST_S: Final = 0.5  # many changes are one count
_LOG: Final = logging.getLogger(__name__)


@immutable
class Expectation:
    """How many devices a resource has, and how many it should have.

    Attributes:
        finding: A hash of the options that decide which devices are found.
        found: How many devices it has.
        elsewhere: How many nodes that it finds belong to other resources.
        minimum: `Resource.min_devices`.
        before: Each higher number of devices it had, and when last (seconds since 1970).
    """

    finding: str = ""
    found: int = 0
    elsewhere: int = 0
    minimum: int | None = None
    before: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, resource: Resource, found: int, elsewhere: int = 0) -> "Expectation":
        """Return the expectation of a resource without history."""
        options = repr([getattr(resource, option) for option in _FINDING])
        finding = hashlib.sha256(options.encode()).hexdigest()[:16]
        return cls(finding, found, elsewhere, resource.min_devices)

    def then(self, later: "Expectation", now: float) -> "Expectation":
        """Return a later expectation with the history of this one.

        Devices that are gone count as missing for a day, unless an edit explains that: other
        options that decide which devices are found, or another resource that has some of them.
        """
        if later.finding != self.finding:
            return later
        given = max(0, later.elsewhere - self.elsewhere)
        had = {**self.lately(now), self.found: now, **later.lately(now)}
        before = {n - given: at for n, at in had.items() if n - given > later.found}
        return replace(later, before=before)

    def expected(self, now: float) -> int:
        """Return how many devices there should be."""
        if self.minimum is not None:
            return self.minimum
        return max([self.found, *self.lately(now)])

    def missing(self, now: float) -> int:
        """Return how many of them are missing."""
        return max(0, self.expected(now) - self.found)

    def lately(self, now: float) -> dict[int, float]:
        """Return `before` without what is accepted by now."""
        # A clock that was wrong may have left a time in the future.
        return {n: at for n, at in self.before.items() if abs(now - at) < ACCEPTED_AFTER_S}


Numbers = dict[str, Expectation]


class Expectations:
    """The expectations of all resources of a process.

    Args:
        state_dir: Where the numbers outlive the process; ``None`` for memory only.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._numbers: Numbers = {}
        self._changed: dict[str, Publisher] = {}
        self._due = asyncio.Event()
        self._unsaved: dict[str, Expectation | None] = {}
        self._writer: StateWriter | None = None
        self._loaded = False
        if state_dir is not None:
            # A directory of its own: its lock is held for this file only.
            path = state_dir / "expected" / "devices.json"
            save = functools.partial(self._save, path)
            self._writer = StateWriter("expected device counts", path, save)

    def of(self, name: str) -> Expectation:
        """Return the expectation of a resource; an empty one before its devices are counted."""
        return self._numbers.get(name, Expectation())

    def changed(self, name: str, published: Publisher) -> None:
        """Count the devices of a resource soon."""
        self._changed[name] = published
        self._due.set()

    def forget(self, name: str) -> None:
        """Drop the expectation of a resource."""
        self._changed.pop(name, None)
        self._numbers.pop(name, None)
        self._later(name, None)
        self._save_soon()

    async def run(self) -> None:
        """Count when something has changed, until cancelled."""
        try:
            self._save_soon()  # reads what there is, too
            while True:
                await self._due.wait()
                await asyncio.sleep(_BURST_S)
                self._due.clear()
                for name in tuple(self._changed):  # what changes meanwhile is counted next time
                    if (published := self._changed.pop(name, None)) is not None:
                        self._count(name, published)
                    await asyncio.sleep(0)  # a thousand resources take a while
                self._save_soon()
        finally:
            if self._writer is not None:
                await self._writer.close()

    def _count(self, name: str, published: Publisher) -> None:
        found = published.found
        if found.error is not None or any(one.reason.startswith(DEFERRED) for one in found.skipped):
            return  # not the final number; another scan follows
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
            _LOG.info("no device is missing any longer", extra={"fields": {"resource": name}})

    # ── in the state directory ──

    @property
    def problem(self) -> str | None:
        """Why the state directory does not have the counts; ``None`` where it has."""
        return self._writer.problem if self._writer else None

    def _later(self, name: str, expectation: Expectation | None) -> None:
        if self._writer is not None:
            self._unsaved[name] = expectation

    def _save_soon(self) -> None:
        if self._writer is not None and (self._unsaved or not self._loaded):
            self._writer.changed()

    async def _save(self, path: Path) -> None:
        """Read the file if that has not succeeded yet, and write what has changed."""
        if not self._loaded:
            self._merge(await in_thread("read expected devices", lambda: _read(path)))
            self._loaded = True
        if unsaved := dict(self._unsaved):
            await in_thread("save expected devices", lambda: _write(path, unsaved))
            for name, saved in unsaved.items():
                if self._unsaved[name] is saved:
                    del self._unsaved[name]

    def _merge(self, stored: Numbers) -> None:
        for name, earlier in stored.items():
            if name in self._numbers:
                self._set(name, earlier.then(self._numbers[name], time.time()))
            elif name not in self._unsaved:  # else forgotten meanwhile
                self._numbers[name] = earlier


# ── in a thread ──


def _read(path: Path) -> Numbers:
    try:
        content = json_text.parse(path.read_bytes())
        return {name: _expectation(entry) for name, entry in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        _LOG.warning("%s ignored: %s", path, error)
        return {}


def _expectation(entry: dict[str, Any]) -> Expectation:
    """Return an entry of the file.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: It is not an entry.
    """
    before = {int(count): at + 0.0 for count, at in entry.get("before", {}).items()}
    read = Expectation(
        entry.get("finding", ""),
        entry.get("found", 0),
        entry.get("elsewhere", 0),
        entry.get("minimum"),
        before,
    )
    minimum = 0 if read.minimum is None else read.minimum
    counts = (read.found, read.elsewhere, minimum, *before)
    if not isinstance(read.finding, str) or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(f"{entry!r} is not an entry")
    return read


def _write(path: Path, changed: Mapping[str, Expectation | None]) -> None:
    """Update the file, which other instances may have changed."""
    with locked(path.parent):
        numbers = {**_read(path), **changed}
        kept = {name: asdict(number) for name, number in numbers.items() if number is not None}
        write_atomically(path, json.dumps(kept).encode())
