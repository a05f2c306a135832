"""Watching directories: events never carry state, they only say "look again", and where.

The kernel's events are read on the event loop, without a thread; what is under this interface
can change. Its traps, and what is done about them: only directories are watched, no files (a
ConfigMap swaps links); one that is not there is waited for at its nearest existing ancestor; a
watch dies with its directory, so the ancestor's events set it up anew; what came before a watch
has no event, so it is looked again after that; a filesystem may never answer, so it is asked, and
watches are added, in a thread; and what has no event, or what inotify cannot give (limits), is
left to the caller's rescan.
"""

import asyncio
import logging
from collections.abc import Hashable, Iterable
from typing import Final, Self

from devhost.threads import in_thread
from devhost.watch.directories import Directories, Directory, Look
from devhost.watch.inotify import IS_DIRECTORY, LOST, MOVED_ITSELF, OVERFLOW, WRITTEN
from devhost.watch.spots import Spot, entry_towards
from devhost.watch.wanted import LookAgain, Wanted

_ROUNDS_MAX: Final = 50  # of looking and watching, until nothing new is found
_PROMPT_S: Final = 0.5
_LOG: Final = logging.getLogger(__name__)


class Watcher:
    """Calls back on the event loop when something under a watched directory changed."""

    def __init__(self) -> None:
        self._wanted: dict[Spot, Wanted] = {}
        self._spots: dict[Hashable, frozenset[Spot]] = {}
        self._unwatched: set[Spot] = set()
        self._directories: Directories | None = None
        self._open = False

    def degraded(self, key: Hashable) -> bool:
        """Whether something under a key cannot be watched: it has to be looked at regularly."""
        return not self._unwatched.isdisjoint(self._spots.get(key, ()))

    def directories(self, key: Hashable) -> frozenset[str]:
        """Return the directories whose entries count for a key, there or not."""
        return frozenset(
            path
            for spot in self._spots.get(key, ())
            for path in (spot.path, *self._wanted[spot].inside)
        )

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._directories is not None:
            asyncio.get_running_loop().remove_reader(self._directories.fileno())
            self._directories.close()
            self._directories = None
        for wanted in self._wanted.values():
            wanted.settle()
        self._wanted.clear()
        self._spots.clear()

    async def watch(self, key: Hashable, spots: frozenset[Spot], look_again: LookAgain) -> None:
        """Call ``look_again`` for changes under the spots, until `unwatch`; return when it does.

        It is called with the path of an entry, no directory, that came, went, moved or (where
        that counts) was written in a watched directory; and with ``None`` when anything else
        may have changed.

        Called again with other spots, they take the place of the former. It then also looks
        whether the watches are still of the directories at the paths: of what happens further
        up than a spot's nearest ancestor there is no event. It may take as long as the
        filesystem takes to answer; in case the caller did not wait, it is told to look again.
        """
        if not self._open:
            return
        for spot in self._spots.get(key, frozenset()) - spots:
            self._unsubscribe(spot, key)
        self._spots[key] = spots
        pending = set()
        for spot in spots:
            wanted = self._wanted.get(spot)
            if wanted is None:
                wanted = self._wanted[spot] = Wanted(spot)
            wanted.subscribers[key] = look_again
            pending.add(self._look(wanted))
        clock = asyncio.get_running_loop().time
        began = clock()
        if pending:
            await asyncio.wait(pending)
        if clock() - began > _PROMPT_S and self._spots.get(key) is spots:
            look_again(None)

    def unwatch(self, key: Hashable) -> None:
        """Drop all that was subscribed under a key."""
        for spot in self._spots.pop(key, ()):
            self._unsubscribe(spot, key)

    def _unsubscribe(self, spot: Spot, key: Hashable) -> None:
        wanted = self._wanted[spot]
        del wanted.subscribers[key]
        if not wanted.subscribers:
            del self._wanted[spot]
            self._unwatched.discard(spot)
            self._hold(wanted, None, {})
            wanted.settle()

    # ── which watches serve which spots ──

    def _look(self, wanted: Wanted) -> "asyncio.Future[None]":
        """Arrange a spot's watches by a look that begins after this."""
        if (looking := wanted.looking) is None:
            looking = wanted.looking = asyncio.get_running_loop().create_future()
            self._ask(wanted)
        else:
            wanted.again = True
        return looking

    def _ask(self, wanted: Wanted) -> None:
        try:
            directories = self._opened()
            look = in_thread("watch", lambda: directories.look(wanted.spot))
        except (OSError, RuntimeError) as error:  # no inotify, or no thread, is to be had
            self._note(wanted, [(wanted.spot.path, _text(error))])
            wanted.settle()
            return
        directories.expect()
        look.add_done_callback(lambda done: self._answered(wanted, directories, done.result()))

    def _opened(self) -> Directories:
        if self._directories is None:
            self._directories = Directories()
            reader = self._directories.fileno()
            asyncio.get_running_loop().add_reader(reader, self._read, self._directories)
        return self._directories

    def _answered(self, wanted: Wanted, directories: Directories, look: Look) -> None:
        if directories is not self._directories:
            return  # it has been left
        if self._wanted.get(wanted.spot) is wanted:  # else it was given up
            self._go_on(wanted, directories, look)
        directories.conclude(look)

    def _go_on(self, wanted: Wanted, directories: Directories, look: Look) -> None:
        missed = self._arrange(wanted, directories, look)
        if wanted.arranged and wanted.changed:  # something may have come before the watch
            wanted.changed = False
            wanted.tell(None)
        wanted.rounds = 0 if wanted.again else wanted.rounds + 1
        if self._wanted.get(wanted.spot) is not wanted:
            return
        if wanted.again or (missed and wanted.rounds < _ROUNDS_MAX):
            wanted.again = False
            self._ask(wanted)
            return
        wanted.arranged, wanted.changed, wanted.rounds = True, False, 0
        wanted.settle()

    def _arrange(self, wanted: Wanted, directories: Directories, look: Look) -> bool:
        """Have each directory itself watched where it is there, and its nearest ancestor always.

        Returns:
            Whether something may have come meanwhile that has to be watched too.
        """
        spot, there, errors = wanted.spot, look.there, list[tuple[str, str]]()
        above, inside = None, dict[str, Directory]()
        missed = directories.missed(look, wanted.directories)
        if there.above is not None:
            directory = self._directory(there.above, directories, look, errors)
            if directory is not None:
                above = directory, entry_towards(there.above, spot.path)
            unknown = above != wanted.above
            missed |= (unknown and not there.inside) or (directory is None and not errors)
        for path in there.inside:
            directory = self._directory(path, directories, look, errors)
            if directory is not None:
                inside[path] = directory
        fresh = any(wanted.inside.get(path) is not one for path, one in inside.items())
        wanted.changed |= (above, inside) != (wanted.above, wanted.inside)
        self._hold(wanted, above, inside)
        self._note(wanted, errors)
        return missed or (spot.recursive and fresh)

    def _directory(
        self, path: str, directories: Directories, look: Look, errors: list[tuple[str, str]]
    ) -> Directory | None:
        """Enter a directory's watch; whoever needs the one that was there before has to look."""
        watch, former = look.watches[path], directories.at(path)
        if isinstance(watch, OSError):
            if not isinstance(watch, FileNotFoundError | NotADirectoryError):
                errors.append((path, _text(watch)))
            return None
        directory = directories.enter(path, watch)
        if former is not None and former is not directory:
            self._lose(former)
        return directory

    def _hold(
        self, wanted: Wanted, above: tuple[Directory, str] | None, inside: dict[str, Directory]
    ) -> None:
        """Use other directories than until now; drop those that nobody needs any more."""
        spot, left = wanted.spot, wanted.directories
        if wanted.above is not None:
            directory, name = wanted.above
            directory.mislead(name, spot)
        for directory in left:
            directory.inside.discard(spot)
        wanted.above, wanted.inside = above, inside
        if above is not None:
            directory, name = above
            directory.lead(name, spot)
        for directory in inside.values():
            directory.inside.add(spot)
        for directory in left:
            if self._directories and not directory.inside and not directory.towards:
                self._directories.drop(directory)

    def _note(self, wanted: Wanted, errors: list[tuple[str, str]]) -> None:
        """Remember whether all that a spot needs is watched; warn of the first that is not."""
        spot = wanted.spot
        if not errors:
            self._unwatched.discard(spot)
        if not errors or spot in self._unwatched:
            return
        path, reason = errors[0]
        if not self._unwatched:
            fields = {"directory": path, "reason": reason}
            _LOG.warning("cannot watch for changes, so looking regularly", extra={"fields": fields})
        self._unwatched.add(spot)
        if wanted.arranged:  # who waits for events is to look regularly
            wanted.tell(None)

    # ── events ──

    def _read(self, directories: Directories) -> None:
        for watch, mask, name in directories.events():
            if mask & OVERFLOW:
                _LOG.debug("more events than the kernel keeps: looking everywhere")
                self._renew(list(self._wanted))
            for directory in directories.of(watch):
                if mask & LOST:
                    self._renew(self._lose(directory))
                elif mask & MOVED_ITSELF:
                    self._renew(directory.spots)
                elif name:
                    self._on_entry(directory, mask, name)

    def _on_entry(self, directory: Directory, mask: int, name: str) -> None:
        path, written = directory.entry(name), bool(mask & WRITTEN)
        for spot in list(directory.inside):
            wanted = self._wanted.get(spot)
            if wanted is None or (written and not spot.writes):
                continue
            if not mask & IS_DIRECTORY:
                wanted.tell(path)
            elif spot.recursive:
                self._renew([spot])
            else:
                wanted.tell(None)
        if not written:
            self._renew(list(directory.towards.get(name, ())))

    def _renew(self, spots: Iterable[Spot]) -> None:
        """Have the spots looked at, by their subscribers and for their watches."""
        for spot in spots:
            wanted = self._wanted.get(spot)
            if wanted is not None:
                wanted.tell(None)
            if wanted is not None and wanted.subscribers:
                self._look(wanted)

    def _lose(self, directory: Directory) -> set[Spot]:
        """A directory is no more at its path: have its spots watched anew, and return them."""
        spots = directory.spots
        for spot in spots:
            wanted = self._wanted[spot]
            inside = {path: one for path, one in wanted.inside.items() if one is not directory}
            above = wanted.above if wanted.above and wanted.above[0] is not directory else None
            wanted.changed = True
            self._hold(wanted, above, inside)
            self._look(wanted)
        if self._directories is not None:
            self._directories.drop(directory)
        return spots


def _text(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
