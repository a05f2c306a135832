"""Scans the host for one resource: everything, or a few names where that is enough."""

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from devhost import memory
from devhost.discovery import identity
from devhost.discovery.baseline import Baseline
from devhost.discovery.identity import Identified
from devhost.discovery.incremental import Changed, Incremental, is_independent
from devhost.discovery.ownership import Member
from devhost.discovery.roots import Root
from devhost.discovery.scan import Scanner, ScanResult, events_suffice
from devhost.discovery.selection import Selection
from devhost.host import inventory
from devhost.host.resource.scan_calls import ScanCalls
from devhost.host.shared import Shared
from devhost.model.device import Snapshot
from devhost.threads import in_thread

_FEW: Final = 200  # to identify so few takes less than a thread does
_NAMES_S: Final = 1.0  # for a scan of a few names
_LOG: Final = logging.getLogger(__name__)


class RescanTrigger:
    """Collects reasons to scan again; a burst of them is one scan. One task waits for them.

    Attributes:
        since: When the last reason came: what was read before that does not count.
    """

    def __init__(self) -> None:
        self._due = True
        self.since = asyncio.get_running_loop().time()
        self._names: dict[Root, set[str]] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return self._due

    def request(self, root: Root | None = None, name: str | None = None) -> None:
        """Something may have changed; at one name of a root, if that is known."""
        if root is None or name is None:
            self._names = None
        elif self._names is not None:
            self._names.setdefault(root, set()).add(name)
        self._due = True
        self.since = asyncio.get_running_loop().time()
        self._wake()

    def take(self) -> dict[Root, set[str]] | None:
        """Reset; return the names that changed, or ``None`` if anything may have."""
        changed, self._names = self._names, {}
        self._due = False
        return changed

    async def wait(self, seconds: float) -> bool:
        """Wait for a reason, but not longer; return whether there is one."""
        if not self._due:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            if seconds == math.inf:
                await self._waiter
            else:
                timer = loop.call_later(max(seconds, 0.0), self._wake)
                try:
                    await self._waiter
                finally:
                    timer.cancel()
        return self._due

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Scans:
    """The scans of one resource by one declaration, one at a time.

    Attributes:
        scanner: The declaration.
        left: The nodes (`Node.key`) that the last full scan has left to other resources.
        events_suffice: Whether events report all that may change what the last full scan found.
        baselines: What the directories were like before the last full scan read them.
    """

    def __init__(
        self,
        scanner: Scanner,
        member: Member,
        shared: Shared,
        calls: ScanCalls,
        again: Callable[[], None],
    ) -> None:
        self.scanner, self._member, self._again = scanner, member, again
        self._quota, self._is_cut = shared.quota, False
        self._host, self._ownership = shared.inventory, shared.ownership
        self._metrics = shared.metrics
        self._calls = calls
        self._found = Selection()  # by the scan under way
        self._incremental: Incremental | None = None
        self._former: Selection | None = None
        self.left: frozenset[str] = frozenset()
        self.events_suffice = False
        self.baselines: Mapping[Root, Baseline | None] = {}

    @property
    def differs(self) -> inventory.Differs | None:
        """What says whether the sources find something else than by the last full scan.

        ``None`` where a scan depends on more than what they find.
        """
        scanner, former = self.scanner, self._former
        return None if former is None else lambda readings: scanner.select(readings) != former

    async def full(self, previous: Snapshot, since: float) -> Snapshot | None:
        """Scan everything; ``None`` if another scan is due, and this one came too late.

        Args:
            previous: What was known before.
            since: What was read of the host before this time does not count.
        """
        clock, name, scanner = asyncio.get_running_loop().time, self._member.name, self.scanner
        began, readings = clock(), await self._host.read(self._member, since)
        self.baselines = {root: reading.baseline for root, reading in readings.items()}
        unanswered = False
        try:
            found = await self._calls.run(lambda: scanner.select(readings))
        except TimeoutError:
            unanswered, found = True, scanner.failed(inventory.unanswered())
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("scan failed", extra={"fields": {"resource": name}})
            found = scanner.failed(f"scan failed: {error!r}")
        self._metrics.scanned(name, clock() - began, failed=bool(found.failed))
        memory.gc_freeze_many(len(found.nodes))
        if not unanswered:
            try:
                return await self._concluded(found, previous, self._calls.run)
            except TimeoutError:  # a path of an answer may not answer either
                found = scanner.failed(inventory.unanswered())
        # Where nothing is found, no path has to be checked.
        in_any_thread = functools.partial(in_thread, f"scan {name}")
        return await self._concluded(found, previous, in_any_thread)

    async def _concluded(
        self,
        found: Selection,
        previous: Snapshot,
        run: Callable[[Callable[[], Snapshot]], Awaitable[Snapshot]],
    ) -> Snapshot | None:
        clock, name, scanner = asyncio.get_running_loop().time, self._member.name, self.scanner
        left: set[str] = set()

        def owner_of(key: str) -> str | None:
            owner = self._ownership.owner(self._member, key)
            if owner is not None:
                left.add(key)
            return owner

        async with self._ownership.deciding(self._member):
            now = clock()
            identify = functools.partial(
                scanner.identify,
                found,
                previous,
                owner_of,
                now,
                links_to_come=self._ownership.links_to_come(self._member),
            )
            if len(found.nodes) + len(previous.devices) <= _FEW:
                identified = identify()
            else:
                identified = await in_thread(f"identify {name}", identify)
            self._cut(identified, previous)
            if self._ownership.outdated(self._member, identified.offered):
                return None
            expected = self._member.expected
            if expected and not found.failed:
                expected = expected.intersection(node.key for node in found.nodes)
            self._ownership.decide(self._member, identified.offered, left, expected)
        self.left, self._found = frozenset(left), found
        # However much text that is, the host is not to blame for the time that it takes.
        await in_thread(f"render {name}", lambda: scanner.render(identified, previous))
        return await run(lambda: scanner.conclude(found, identified, previous, now))

    def _cut(self, identified: Identified, previous: Snapshot) -> None:
        """Keep the resource within its part of what the process may offer."""
        name, replicas = self._member.name, self.scanner.resource.replicas
        identified.cut_to(self._quota.most(name) // replicas, previous)
        ids = (len(identified.devices) + len(identified.gone)) * replicas
        self._quota.use(name, ids, self._again if identified.cut else None)
        if identified.cut and not self._is_cut:
            fields = {"resource": name, "left_out": identified.cut, "reason": identity.NO_ROOM}
            _LOG.warning("devices left out", extra={"fields": fields})
        self._is_cut = bool(identified.cut)

    async def names(self, known: Snapshot, changed: Changed) -> ScanResult | None:
        """Scan a few names; ``None`` where everything has to be scanned."""
        incremental, self._incremental = self._incremental, None
        if incremental is None or incremental.snapshot is not known:
            return None
        if self._ownership.links_to_come(self._member):
            return None
        now, name = asyncio.get_running_loop().time(), self._member.name
        try:
            async with asyncio.timeout(_NAMES_S):
                result = await in_thread(f"scan {name}", lambda: incremental.scan(changed, now))
        except TimeoutError:
            return None
        except Exception:  # noqa: BLE001 (logged; a full scan says what is wrong, if anything is)
            fields = {"resource": name}
            _LOG.exception("incremental scan failed, running a full scan", extra={"fields": fields})
            return None
        if result is None:
            return None
        async with self._ownership.deciding(self._member):
            offered, released = result.offered, result.released
            ids = len(result.snapshot.devices) * self.scanner.resource.replicas
            if (
                self._ownership.outdated(self._member, offered)
                or any(self._ownership.owner(self._member, key) for key in offered)
                or ids > self._quota.most(name)
                or self._is_cut
            ):
                return None
            self._quota.use(name, ids)
            new = offered - self._member.offered
            self._ownership.change(self._member, new=new, gone=released & self._member.offered)
        self._incremental = incremental
        return result

    def published(self, snapshot: Snapshot) -> None:
        """Take note of what a full scan has led to, which a scan of a few names goes on from."""
        found, self._found = self._found, Selection()
        self.events_suffice = events_suffice(self.scanner, found, snapshot)
        independent = is_independent(self.scanner, found, snapshot)
        self._incremental = Incremental(self.scanner, snapshot) if independent else None
        few = len(found.nodes) + len(found.skipped) <= _FEW  # many take memory
        whole = self.scanner.self_contained and not found.failed
        self._former = found if few and whole else None
        memory.gc_freeze_many(len(snapshot.devices))
