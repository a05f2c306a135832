"""File events for many subscribers, by one inotify descriptor that the event loop reads.

An event says that something changed, never what is there now: its receiver scans. Only
directories are watched, since files are replaced rather than written (a ConfigMap swaps links).
Adding a watch waits for the directory's filesystem, which may hang, so threads do it. What has no
event, or cannot be watched because of a limit, is left to the subscriber's polling.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from watchdog.observers.inotify_c import InotifyConstants as Flag

from devhost.errors import BackendGoneError, describe_os_error
from devhost.model.limits import ENTRIES_MAX, WATCHES_FEW, WATCHES_MAX, WATCHES_TOTAL_MAX
from devhost.watch.inotify import Inotify
from devhost.watch.threads import run_in_thread, wait_at_most

_ROUNDS_MAX: Final = 50  # of resolving targets that change all the time
_REST_MAX_S: Final = 0.5
_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_POLL_S: Final = 5.0  # of a directory, in addition to its watch, which may miss something
_RETRY_S: Final = 1.0  # after a subscriber has failed
_LOG: Final = logging.getLogger(__name__)

# ── which directories have to be watched so that no change of a target is missed ──


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """A directory to watch."""

    path: str  # absolute; it may be a link to a directory, and may be missing
    recursive: bool = False  # directories below it too; links there are not followed
    writes: bool = False  # a written file is a change, too
    closes: bool = False  # so is any file that was open
    leave_out: frozenset[str] = frozenset()  # directories below it that are not watched


class Use(NamedTuple):
    """Why a directory is watched."""

    watch: int  # the number of its watch
    recursive: bool  # a directory that comes in it has to be watched, too
    entry: str = ""  # in a directory above a target: the entry that leads to the target


class ResolvedTargets:
    """The watches of targets; the nearest existing ancestor of each target is watched, too.

    In that ancestor the target, or the next directory on the way to it, appears and is replaced.
    `error` says why a directory that exists is not watched.
    """

    def __init__(self, inotify: Inotify, targets: Iterable[WatchTarget]) -> None:
        """Watch the directories of targets. May block as long as their filesystems hang."""
        self._inotify = inotify
        self._entry_count = 0  # of all directories that were searched
        self.uses: set[Use] = set()
        self.error: OSError | None = None
        for target in targets:
            self._add(target)

    def _add(self, target: WatchTarget) -> None:
        path, entry = os.path.split(target.path.rstrip("/"))
        while entry and not self._watch(target, path, entry):
            path, entry = os.path.split(path)
        pending = deque([target.path])
        while pending and self._has_room(target):
            path = pending.popleft()  # directories that are not deep come first
            if self._watch(target, path) and target.recursive:
                pending += set(self._subdirectories(path)) - target.leave_out

    def _has_room(self, target: WatchTarget) -> bool:
        """Whether another directory of a target may be watched."""
        count, total = len(self.uses), len(self._inotify.watches)
        is_full = count >= WATCHES_MAX or (count >= WATCHES_FEW and total >= WATCHES_TOTAL_MAX)
        if is_full:
            self._set_limit_error(f"{count:,} watched directories", target.path)
        return not is_full

    def _subdirectories(self, path: str) -> Iterator[str]:
        """Yield the directories in a directory."""
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._entry_count += 1
                    if self._entry_count > ENTRIES_MAX:
                        self._set_limit_error(f"{ENTRIES_MAX:,} entries", path)
                        return
                    if entry.is_dir(follow_symlinks=False):
                        yield entry.path
        except OSError:
            return  # gone, or not readable

    def _set_limit_error(self, limit: str, path: str) -> None:
        self.error = self.error or OSError(errno.ENOSPC, f"more than {limit}", path)

    def _watch(self, target: WatchTarget, path: str, entry: str = "") -> bool:
        """Watch a directory; return whether it exists."""
        try:
            writes, closes = target.writes and not entry, target.closes and not entry
            watch = self._inotify.add(path, writes=writes, closes=closes)
        except OSError as error:
            if error.errno in _MISSING:
                return False
            self.error = self.error or error
        else:
            self.uses.add(Use(watch, target.recursive and not entry, entry))
        return True


# ── subscribers ──


class Subscription:
    """The targets of one subscriber; none before it calls `watch`.

    The callback is called when something may have changed in a directory that is watched;
    `polling_reason` says why a target cannot be watched and has to be polled; else it is empty.
    """

    def __init__(self, watcher: "Watcher", callback: Callable[[], None]) -> None:
        self._watcher, self._callback = watcher, callback
        self._targets: frozenset[WatchTarget] = frozenset()
        self.uses: set[Use] = set()  # set by the watcher
        self._arranging: asyncio.Task[None] | None = None  # done when the watches are right
        self._stale = False  # something has changed since the targets were last resolved
        self._waiting = 0  # calls of `watch`
        self.polling_reason = ""

    async def watch(self, targets: frozenset[WatchTarget]) -> None:
        """Watch these targets instead of the former ones; return when they are watched.

        It may take as long as the filesystem takes to answer. The caller scans afterwards; where
        the call was cancelled, the callback is called instead.

        With the same targets it checks that the watches are still those of the directories at
        the paths: a change above a target's nearest existing ancestor has no event.
        """
        if not self._watcher.is_open:
            return
        if targets != self._targets:
            self._stop()  # the former targets may hang
            self._targets = targets
        self._watcher.subscriptions.add(self)
        self._waiting += 1
        try:
            await asyncio.wait({self.refresh()})
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Watch nothing; calls of `watch` return."""
        self._stop()
        self._targets = frozenset()
        self._watcher.subscriptions.discard(self)
        self._watcher.replace_uses(self, set())
        self.polling_reason = ""

    def notify(self) -> None:
        """Call the callback, unless the subscription was closed."""
        if self._targets:
            try:
                self._callback()
            except Exception:  # noqa: BLE001 (the other subscribers are notified all the same)
                _LOG.exception("a subscriber to file events failed")
                asyncio.get_running_loop().call_later(_RETRY_S, self.notify)

    def refresh(self) -> "asyncio.Task[None]":
        """Resolve the targets again; the task is done when they are watched."""
        self._stale = True
        if self._arranging is None or self._arranging.done():
            self._arranging = asyncio.create_task(self._arrange(), name="watch")
        return self._arranging

    def _stop(self) -> None:
        if self._arranging is not None:
            self._arranging.cancel()
            self._arranging = None

    async def _arrange(self) -> None:
        """Resolve the targets until that changes nothing.

        Events that were read before a watch is in use are lost, also that of its end; what was
        missing may have come before the directory above it was watched. Another round finds that.
        """
        clock = asyncio.get_running_loop().time
        rounds, changed = 0, False
        while self._stale or (changed and rounds < _ROUNDS_MAX):
            rounds = 0 if self._stale else rounds + 1
            self._stale = False
            began = clock()
            changed = await self._resolve()
            if changed and not self._waiting:
                self.notify()
            if self._stale or changed:
                # Directories that come and go all the time leave the processor to others.
                await asyncio.sleep(min(clock() - began, _REST_MAX_S))

    async def _resolve(self) -> bool:
        """Watch the directories of the targets; return whether they, or `polling_reason`, are new.

        Of all subscriptions, the first that cannot be watched logs it.
        """
        uses, error = self.uses, None
        try:
            resolved = await self._watcher.resolve(self._targets)
            uses, error = resolved.uses, resolved.error
        except OSError as failure:  # no inotify instance, or no thread
            error = failure
        except Exception as failure:  # noqa: BLE001 (a mistake of ours)
            _LOG.exception("watching failed")
            error = OSError(errno.EIO, f"failed: {failure!r}")
        reason = "" if error is None else describe_os_error(error)
        changed = uses != self.uses or bool(reason and not self.polling_reason)
        if error and not any(another.polling_reason for another in self._watcher.subscriptions):
            directory = {"directory": error.filename} if error.filename else {}
            fields = {"reason": reason, **directory}
            _LOG.warning("inotify unavailable, polling instead", extra={"fields": fields})
        self.polling_reason = reason
        self._watcher.replace_uses(self, uses)
        return changed


class Watcher:
    """Notifies subscribers, on the event loop, of changes in directories.

    Users enter it once, and make a `Subscription` each; the rest is for those.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._inotify: Inotify | None = None
        self.subscriptions: set[Subscription] = set()
        self._users: dict[int, set[tuple[Subscription, Use]]] = {}  # of each watch

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

    # ── for subscriptions ──

    async def resolve(self, targets: frozenset[WatchTarget]) -> ResolvedTargets:
        """Watch the directories of targets, in a thread; raise `OSError` if that is impossible."""
        inotify = self._inotify
        if inotify is None:
            inotify = Inotify()
            asyncio.get_running_loop().add_reader(inotify.fileno(), self._read, inotify)
            self._inotify = inotify
        work = run_in_thread("watch", functools.partial(ResolvedTargets, inotify, targets))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._end_resolved)
            raise

    def _end_resolved(self, work: "asyncio.Future[ResolvedTargets]") -> None:
        """End what a thread has watched for a subscription that has gone meanwhile."""
        if not work.cancelled() and work.exception() is None:
            self._end_unused(work.result().uses)

    def replace_uses(self, subscription: Subscription, uses: set[Use]) -> None:
        """Deliver the events of these watches alone; end the watches that nobody uses now."""
        former, subscription.uses = subscription.uses, uses
        for use in former:
            self._users[use.watch].discard((subscription, use))
        for use in uses:
            self._users.setdefault(use.watch, set()).add((subscription, use))
        self._end_unused(former)

    def _end_unused(self, uses: Iterable[Use]) -> None:
        for watch in {use.watch for use in uses if not self._users.get(use.watch)}:
            self._users.pop(watch, None)
            if self._inotify is not None and self.is_open:
                self._inotify.remove(watch)

    # ── events ──

    def _read(self, inotify: Inotify) -> None:
        """Notify the subscriptions that events concern; refresh those whose directories moved."""
        concerned: set[Subscription] = set()
        moved: set[Subscription] = set()
        for watch, mask, name in inotify.read():
            if mask & Flag.IN_Q_OVERFLOW:
                _LOG.debug("inotify queue overflow, scanning everything")
                moved |= self.subscriptions
            for subscription, use in self._users.get(watch, ()):
                is_lost = mask & (Flag.IN_IGNORED | Flag.IN_MOVE_SELF)
                if is_lost or (use.entry and use.entry == name):
                    moved.add(subscription)
                elif name and not use.entry:
                    extended = use.recursive and mask & Flag.IN_ISDIR
                    (moved if extended else concerned).add(subscription)
        for subscription in concerned | moved:
            subscription.notify()
        for subscription in moved & self.subscriptions:  # a callback may have closed some
            subscription.refresh()


async def follow_directory(
    watcher: Watcher, directory: Path, parts: Iterable[str] = ("",), *, required: bool = True
) -> AsyncGenerator[None]:
    """Yield when a directory is watched, which may be missing, and when it may have changed.

    With `parts` these directories in it are watched instead.

    Raises:
        BackendGoneError: It was removed, is the mount of a container, and is `required`.
    """
    changed = asyncio.Event()
    subscription = Subscription(watcher, changed.set)
    targets = frozenset(WatchTarget(str(directory / part)) for part in parts)
    try:
        while True:
            changed.clear()
            await subscription.watch(targets)
            if required and await run_in_thread("watch", lambda: _is_removed(directory)):
                raise BackendGoneError(f"{directory} was removed")
            yield
            await wait_at_most(_POLL_S, changed.wait)
    finally:
        subscription.close()


def _is_removed(directory: Path) -> bool:
    with contextlib.suppress(OSError):  # nothing is mounted there
        return os.stat(directory).st_nlink == 0
    return False
