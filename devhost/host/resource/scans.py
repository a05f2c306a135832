"""Scans the host for one resource."""

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from devhost.discovery import identity
from devhost.discovery.identity import Identified
from devhost.discovery.ownership import Member
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.host import inventory
from devhost.host.resource.scan_calls import ScanCalls
from devhost.host.shared import Shared
from devhost.model.device import Snapshot
from devhost.threads import in_thread

_FEW: Final = 200  # to identify so few takes less than a thread does
_LOG: Final = logging.getLogger(__name__)


class RescanTrigger:
    """Collects reasons to scan again; a burst of them is one scan. One task waits for them.

    Attributes:
        since: When the last reason came: what was read before that does not count.
    """

    def __init__(self) -> None:
        self._due = self._thorough = True
        self.since = asyncio.get_running_loop().time()
        self._waiter: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return self._due

    def request(self, *, thorough: bool = False) -> None:
        """Something may have changed; also what no event tells, if `thorough`."""
        self._due, self._thorough = True, self._thorough or thorough
        self.since = asyncio.get_running_loop().time()
        self._wake()

    def take(self) -> bool:
        """Reset; return whether the scan has to be thorough."""
        thorough, self._due, self._thorough = self._thorough, False, False
        return thorough

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
        left: The nodes (`Node.key`) that the last scan has left to other resources.
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
        self.left: frozenset[str] = frozenset()

    async def scan(self, previous: Snapshot, since: float, *, thorough: bool) -> Snapshot | None:
        """Scan the host; ``None`` if another scan is due, and this one came too late.

        Args:
            previous: What was known before.
            since: What was read of the host before this time does not count.
            thorough: As for `Scanner.conclude`.
        """
        clock, name, scanner = asyncio.get_running_loop().time, self._member.name, self.scanner
        began, readings = clock(), await self._host.read(self._member, since)
        unanswered = False
        try:
            found = await self._calls.run(lambda: scanner.select(readings))
        except TimeoutError:
            unanswered, found = True, scanner.failed(inventory.unanswered())
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("scan failed", extra={"fields": {"resource": name}})
            found = scanner.failed(f"scan failed: {error!r}")
        self._metrics.scanned(name, clock() - began, failed=bool(found.failed))
        if not unanswered:
            try:
                return await self._concluded(found, previous, self._calls.run, thorough=thorough)
            except TimeoutError:  # a path of an answer may not answer either
                found = scanner.failed(inventory.unanswered())
        # Where nothing is found, no path has to be checked.
        in_any_thread = functools.partial(in_thread, f"scan {name}")
        return await self._concluded(found, previous, in_any_thread, thorough=thorough)

    async def _concluded(
        self,
        found: Selection,
        previous: Snapshot,
        run: Callable[[Callable[[], Snapshot]], Awaitable[Snapshot]],
        *,
        thorough: bool,
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
        self.left = frozenset(left)
        # However much text that is, the host is not to blame for the time that it takes.
        await in_thread(f"render {name}", lambda: scanner.render(identified, previous))
        return await run(
            lambda: scanner.conclude(found, identified, previous, now, thorough=thorough)
        )

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
