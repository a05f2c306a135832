"""The resources of a process decide about their nodes one at a time, in the order of the file."""

import asyncio
import bisect
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.discovery.ownership import Member, Ownership

_PATIENCE_S: Final = 1.0
_CROWD: Final = 8  # resources that begin a scan without regard to the others


@dataclass(eq=False, slots=True)
class _Waiter:
    """A member that knows what it has found, and waits for its decision."""

    member: Member
    deadline: float
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def place(self) -> int:
        return self.member.place


class SerialOwnership(Ownership):
    """Ownership in a running host, where resources scan at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[_Waiter] = []  # in the order of the file
        self._deciding = False
        self._timer: asyncio.TimerHandle | None = None
        self._gate = asyncio.Lock()

    def arrange(self, order: Sequence[str]) -> None:
        """Put the resources in the order of a new file, also those that wait."""
        super().arrange(order)
        self._waiting.sort(key=_place)

    async def begin(self, member: Member) -> None:
        """Begin a scan: of very many at a time, one in each round of the event loop."""
        if len(self._pending) > _CROWD:
            async with self._gate:
                await asyncio.sleep(0)
        member.begun = member.asked

    def settled(self, member: Member) -> None:
        """Note that nobody is to wait for a resource, whatever is due."""
        super().settled(member)
        self._next()

    @contextlib.asynccontextmanager
    async def deciding(self, member: Member) -> AsyncIterator[None]:
        """Wait until the resources before have decided; meanwhile no other one decides.

        Not for long: one that hangs must not hold up the others.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(member, loop.time() + _PATIENCE_S)
        bisect.insort(self._waiting, waiter, key=_place)
        self._next()
        try:
            await waiter.granted
            yield
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._deciding = False
            self._next()

    def _next(self) -> None:
        """Let the first decide that knows what it has found, unless one before it does not yet."""
        if self._deciding or not self._waiting:
            return
        first = self._waiting[0]
        if self._pending and self._pending[0].place < first.member.place:
            if self._timer is not None:
                return
            loop, deadline = asyncio.get_running_loop(), min(one.deadline for one in self._waiting)
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._overdue)
                return
        self._waiting.remove(first)
        self._deciding = True
        if not first.granted.done():
            first.granted.set_result(None)

    def _overdue(self) -> None:
        self._timer = None
        self._next()


def _place(waiter: _Waiter) -> int:
    return waiter.member.place
