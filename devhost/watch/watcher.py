"""File events for many subscribers, by one inotify descriptor that the event loop reads.

An event says that something changed, never what is there now: its receiver scans. Only
directories are watched, since files are replaced rather than written (a ConfigMap swaps links).
Adding a watch waits for the directory's filesystem, which may hang, so threads do it. What has no
event, or cannot be watched because of a limit, is left to the subscriber's polling.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Self

from devhost.budget import Budget, Share
from devhost.limits import WATCHES_FEW, WATCHES_MAX, WATCHES_TOTAL_MAX
from devhost.threads import in_thread
from devhost.watch.inotify import IS_DIRECTORY, LOST, MOVED_ITSELF, OVERFLOW, WRITTEN, Inotify
from devhost.watch.targets import Resolved, Use, WatchTarget, resolve

_ROUNDS_MAX: Final = 50  # of resolving targets that change all the time
_REST_MAX_S: Final = 0.5
_LOG: Final = logging.getLogger(__name__)

Callback = Callable[[str | None], None]


class Subscription:
    """What one subscriber watches; made by `Watcher.subscribe`.

    Attributes:
        degraded: Why a target cannot be watched, so that it has to be polled; else empty.
    """

    def __init__(self, watcher: "Watcher", callback: Callback) -> None:
        self._watcher, self._callback = watcher, callback
        self._targets: frozenset[WatchTarget] = frozenset()
        self._uses: set[Use] = set()
        self._resolving: asyncio.Future[None] | None = None  # done when the watches are right
        self._stale = False  # something has changed since the targets were last resolved
        self._waiting = 0  # calls of `watch`
        self._watches = watcher.watches.share()
        self.degraded = ""

    async def watch(self, targets: frozenset[WatchTarget]) -> None:
        """Watch these targets instead of the former ones; return when they are watched.

        It may take as long as the filesystem takes to answer. The caller scans afterwards; where
        the call was cancelled, the callback is called instead.

        With the same targets it checks that the watches are still those of the directories at
        the paths: a change above a target's nearest existing ancestor has no event.
        """
        if self._watcher.is_open:
            self._watcher.subscriptions.add(self)
            self._replace(targets)
            self._waiting += 1
            try:
                await asyncio.wait({self.refresh()})
            finally:
                self._waiting -= 1

    def close(self) -> None:
        """Watch nothing; calls of `watch` return."""
        self._watcher.subscriptions.discard(self)
        self._replace(frozenset())
        self._watches.settle(0)
        self.degraded = ""

    def notify(self, path: str | None) -> None:
        """Call the callback, unless the subscription was closed."""
        if self._targets:
            try:
                self._callback(path)
            except Exception:  # noqa: BLE001 (the other subscribers are notified all the same)
                _LOG.exception("a subscriber to file events failed")

    def renew(self) -> None:
        """Notify of any change, also one of the directories that have to be watched."""
        self.notify(None)
        self.refresh()

    def refresh(self) -> asyncio.Future[None]:
        """Resolve the targets again; the future is done when they are watched."""
        self._stale = True
        resolving = self._resolving
        if resolving is None:
            resolving = self._resolving = asyncio.get_running_loop().create_future()
            self._resolve(resolving, 0)
        return resolving

    def _replace(self, targets: frozenset[WatchTarget]) -> None:
        if targets != self._targets:
            self._targets = targets
            left = {use for use in self._uses if use.target not in targets}
            self._uses -= left
            self._watcher.remove(self, left)
            self._finish()  # a thread that still resolves the former targets is ignored

    def _resolve(self, resolving: asyncio.Future[None], rounds: int) -> None:
        self._stale = False
        try:
            work = self._watcher.resolve(self._targets, self._watches)
        except (OSError, RuntimeError) as error:  # no inotify instance, or no thread
            self._degrade(error)
            self._finish()
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        work.add_done_callback(
            lambda done: self._resolved(resolving, rounds, done.result(), clock() - began)
        )

    def _resolved(
        self, resolving: asyncio.Future[None], rounds: int, found: Resolved, taken: float
    ) -> None:
        """Use the watches that a thread has added; resolve again if they may not be right.

        Events that were read before a watch is in use are lost, also that of its end. What was
        missing may have come before a directory above it was watched. Another round finds that.
        """
        if not self._watcher.is_open:
            return
        before, current = self._uses, self._resolving is resolving
        lost = self._watcher.resolved(use.watch for use in found.uses - before)
        if current:  # else the targets were replaced meanwhile: what was added for them is removed
            # The watcher has these objects: equal ones would be kept beside them.
            known = {use for use in before if use in found.uses}
            self._uses = known | (found.uses - before)
        self._watches.settle(len(self._uses))
        self._watcher.add(self, found.uses - before)
        self._watcher.remove(self, (before | found.uses) - self._uses)
        if not current:
            return
        self._degrade(found.error)
        changed = found.uses != before
        if changed and not self._waiting:
            self.notify(None)
        if self._resolving is not resolving:
            return  # the callback has closed it
        doubtful = changed and (lost or found.missing)
        if self._stale or (doubtful and rounds < _ROUNDS_MAX):
            # Directories that come and go all the time leave the processor to others.
            again, rest = 0 if self._stale else rounds + 1, min(taken, _REST_MAX_S)
            asyncio.get_running_loop().call_later(rest, self._again, resolving, again)
        else:
            self._finish()

    def _again(self, resolving: asyncio.Future[None], rounds: int) -> None:
        if self._resolving is resolving:
            self._resolve(resolving, rounds)

    def _finish(self) -> None:
        if self._resolving is not None:
            self._resolving.set_result(None)
            self._resolving = None

    def _degrade(self, error: Exception | None) -> None:
        before, self.degraded = self.degraded, "" if error is None else _reason(error)
        if error is not None and not before:
            self._watcher.warn(self, error)
            if not self._waiting:
                self.notify(None)  # so that it polls from now on


# By `Use.entry`.
Users = dict[str, set[tuple[Subscription, Use]]]


class Watcher:
    """Notifies subscribers, on the event loop, of changes in directories.

    Users enter it once, and call `subscribe`; the rest is for subscriptions.
    """

    def __init__(self) -> None:
        self._resolving = 0  # threads that add watches that are not in use yet
        self._had_events: set[int] = set()  # watches, since the first of these threads began
        self.is_open = False
        self._inotify: Inotify | None = None
        self.subscriptions: set[Subscription] = set()
        self.watches = Budget(
            "watched directories", each=WATCHES_MAX, total=WATCHES_TOTAL_MAX, few=WATCHES_FEW
        )
        self._users: dict[int, Users] = {}  # of each watch

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False
        for subscription in list(self.subscriptions):
            subscription.close()
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()

    def subscribe(self, callback: Callback) -> Subscription:
        """Return a subscription that watches nothing yet.

        The callback gets the path of an entry, no directory, that came, went, moved or (where
        the target says so) was written in a watched directory; and ``None`` when anything else
        may have changed.
        """
        return Subscription(self, callback)

    # ── for subscriptions ──

    def resolve(self, targets: frozenset[WatchTarget], watches: Share) -> asyncio.Future[Resolved]:
        """Add the watches of targets in a thread; call `resolved` when it has ended.

        Raises:
            OSError: No inotify instance can be had, or no thread.
        """
        inotify = self._opened()
        work = in_thread("watch", lambda: resolve(inotify, targets, watches))
        self._resolving += 1
        return work

    def _opened(self) -> Inotify:
        if self._inotify is None:
            self._inotify = Inotify()
            reader = self._inotify.fileno()
            asyncio.get_running_loop().add_reader(reader, self._read, self._inotify)
        return self._inotify

    def resolved(self, watches: Iterable[int]) -> bool:
        """Note that a thread has ended; return whether its watches may have lost events."""
        lost = not self._had_events.isdisjoint(watches)
        self._resolving -= 1
        if not self._resolving:
            self._had_events.clear()
        return lost

    def add(self, subscription: Subscription, uses: Iterable[Use]) -> None:
        """Deliver the events of watches to a subscription."""
        for use in uses:
            users = self._users.setdefault(use.watch, {})
            users.setdefault(use.entry, set()).add((subscription, use))

    def remove(self, subscription: Subscription, uses: Iterable[Use]) -> None:
        """Undo `add`; watches without users are ended."""
        for use in uses:
            users = self._users[use.watch]
            users[use.entry].discard((subscription, use))
            if not users[use.entry]:
                del users[use.entry]
            if not users:
                del self._users[use.watch]
                self._opened().remove(use.watch)

    def warn(self, subscription: Subscription, error: Exception) -> None:
        """Log that a subscription is degraded, if it is the first."""
        if not any(one.degraded for one in self.subscriptions if one is not subscription):
            fields = {"reason": _reason(error)}
            if path := getattr(error, "filename", None):
                fields["directory"] = path
            _LOG.warning("inotify unavailable, polling instead", extra={"fields": fields})

    # ── events ──

    def _read(self, inotify: Inotify) -> None:
        for watch, mask, name in inotify.read():
            if self._resolving:
                self._had_events.add(watch)
            users = self._users.get(watch, {})
            if mask & OVERFLOW:
                _LOG.debug("inotify queue overflow, scanning everything")
                _renew(self.subscriptions)
            elif mask & (LOST | MOVED_ITSELF):
                _renew(one for used in users.values() for one, _ in used)
            elif name:
                _on_entry(users, name, mask)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _on_entry(users: Users, name: str, mask: int) -> None:
    written = bool(mask & WRITTEN)
    for subscription, use in list(users.get("", ())):
        if written and not use.target.writes:
            continue
        if not mask & IS_DIRECTORY:
            subscription.notify(f"{use.path.rstrip('/')}/{name}")
        elif use.target.recursive:
            subscription.renew()
        else:
            subscription.notify(None)
    if not written:
        _renew(one for one, _ in users.get(name, ()))


def _renew(subscriptions: Iterable[Subscription]) -> None:
    for one in set(subscriptions):  # a callback may close some
        one.renew()
