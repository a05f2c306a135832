"""The directories that are watched, by path, and for which spots."""

from dataclasses import dataclass, field

from devhost.inotify import Event, Inotify
from devhost.watch_spots import Spot


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


class Directories:
    """Watched directories. One that is reached by two paths has one watch."""

    def __init__(self) -> None:
        self._inotify = Inotify()
        self._at: dict[str, Directory] = {}
        self._of: dict[int, list[Directory]] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._inotify.fileno()

    def events(self) -> list[Event]:
        """Return the events that wait."""
        return self._inotify.read()

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()

    def at(self, path: str) -> Directory | None:
        """Return what is watched at a path."""
        return self._at.get(path)

    def of(self, watch: int) -> list[Directory]:
        """Return what a watch serves; nothing if it has ended."""
        return list(self._of.get(watch, ()))

    def watch(self, path: str, *, writes: bool) -> Directory:
        """Watch the directory at a path; one that was there before it stays, but is no more `at`.

        Raises:
            OSError: It cannot be watched.
        """
        watch, directory = self._inotify.add(path, writes=writes), self._at.get(path)
        if directory is None or directory.watch != watch:
            directory = self._at[path] = Directory(path, watch)
            self._of.setdefault(watch, []).append(directory)
        return directory

    def drop(self, directory: Directory) -> None:
        """Watch a directory at its path no more."""
        if self._at.get(directory.path) is directory:
            del self._at[directory.path]
        served = self._of.get(directory.watch, [])
        if directory in served:
            served.remove(directory)
            if not served:
                del self._of[directory.watch]
                self._inotify.remove(directory.watch)
