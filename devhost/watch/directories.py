"""The directories that are watched, by path, and for which spots."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from devhost.immutable import immutable
from devhost.watch.inotify import Event, Inotify
from devhost.watch.spots import Places, Spot, places


@dataclass(slots=True, eq=False)
class Directory:
    """A directory that is watched at a path.

    Attributes:
        inside: The spots that it belongs to.
        towards: By name: the spots to which that entry leads, or would lead if it were there.
    """

    path: str
    watch: int
    inside: set[Spot] = field(default_factory=set)
    towards: dict[str, set[Spot]] = field(default_factory=dict)

    @property
    def spots(self) -> set[Spot]:
        """All spots that need it."""
        return self.inside.union(*self.towards.values())

    def entry(self, name: str) -> str:
        """Return the path of what is in it."""
        return f"{self.path.rstrip('/')}/{name}"

    def lead(self, name: str, spot: Spot) -> None:
        """An entry leads to a spot."""
        self.towards.setdefault(name, set()).add(spot)

    def mislead(self, name: str, spot: Spot) -> None:
        """Undo `lead`."""
        spots = self.towards.get(name, set())
        spots.discard(spot)
        if not spots:
            self.towards.pop(name, None)


@immutable
class Look:
    """What was seen of a spot in a thread, which has also added the watches.

    Attributes:
        there: Which directories have to be watched.
        watches: By path: the number of its watch, or why it has none.
    """

    there: Places
    watches: dict[str, int | OSError]


class Directories:
    """Watched directories. One that is reached by two paths has one watch.

    To add a watch waits for the filesystem, so threads do that (`look`), and what they have added
    is entered afterwards. Of what the kernel tells of it meanwhile (also that it has ended) nobody
    hears, so it is remembered that there was something: whoever has `missed` it looks again.
    """

    def __init__(self) -> None:
        self._inotify = Inotify()
        self._at: dict[str, Directory] = {}
        self._of: dict[int, list[Directory]] = {}
        self._looks = 0
        self._stirred: set[int] = set()  # watches with events while there were looks

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._inotify.fileno()

    def events(self) -> list[Event]:
        """Return the events that wait."""
        events = self._inotify.read()
        if self._looks:
            self._stirred.update(event.watch for event in events)
        return events

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()

    def at(self, path: str) -> Directory | None:
        """Return what is watched at a path."""
        return self._at.get(path)

    def of(self, watch: int) -> list[Directory]:
        """Return what a watch serves; nothing if it has ended."""
        return list(self._of.get(watch, ()))

    def look(self, spot: Spot) -> Look:
        """Look which directories have to be watched for a spot, and watch them. Blocks."""
        there = places(spot)
        watches: dict[str, int | OSError] = {}
        if there.above is not None:  # first, so that it tells of what comes and goes from now on
            watches[there.above] = self._added(there.above, writes=False)
        for path in there.inside:
            watches[path] = self._added(path, writes=spot.writes)
        return Look(there, watches)

    def _added(self, path: str, *, writes: bool) -> int | OSError:
        try:
            return self._inotify.add(path, writes=writes)
        except OSError as error:
            return error

    def expect(self) -> None:
        """A look begins, which `conclude` is to end."""
        self._looks += 1

    def missed(self, look: Look, known: Iterable[Directory]) -> bool:
        """Whether there was an event of a watch that a look has added, beside the known ones."""
        before = {one.path: one.watch for one in known}
        return any(
            watch in self._stirred and before.get(path) != watch
            for path, watch in look.watches.items()
        )

    def enter(self, path: str, watch: int) -> Directory:
        """Have a watch be that of a path; the directory before it stays, but is no more `at`."""
        directory = self._at.get(path)
        if directory is None or directory.watch != watch:
            directory = self._at[path] = Directory(path, watch)
            self._of.setdefault(watch, []).append(directory)
        return directory

    def conclude(self, look: Look) -> None:
        """What a look has added was entered, as far as it is needed; end the other watches."""
        for watch in look.watches.values():
            if isinstance(watch, int) and watch not in self._of:
                self._inotify.remove(watch)
        self._looks -= 1
        if not self._looks:
            self._stirred.clear()

    def drop(self, directory: Directory) -> None:
        """Watch a directory at its path no more."""
        if self._at.get(directory.path) is directory:
            del self._at[directory.path]
        served = self._of.get(directory.watch, [])
        if directory in served:
            served.remove(directory)
            if not served:
                del self._of[directory.watch]
                # A look may just have got it, too: that it has ended is told, as an event.
                self._inotify.remove(directory.watch)
