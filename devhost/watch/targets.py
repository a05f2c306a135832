"""Which directories have to be watched so that no change of a target is missed."""

import errno
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from devhost.immutable import immutable
from devhost.watch.inotify import Inotify

_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


@immutable
class WatchTarget:
    """A directory to watch.

    Attributes:
        path: Absolute. It may be a link to a directory, and may be missing.
        recursive: Whether directories below it are watched too; links below it are not followed.
        writes: Whether a written file is a change, too.
    """

    path: str
    recursive: bool = False
    writes: bool = False


class Use(NamedTuple):
    """Why a directory is watched.

    Attributes:
        watch: The number of its watch.
        path: The path by which the target leads to it.
        entry: In a directory above the target: the entry that leads to the target, else empty.
    """

    watch: int
    target: WatchTarget
    path: str
    entry: str = ""


class Resolved:
    """The watches of targets, each of which has one on its nearest existing ancestor, too.

    There the target, or the next directory on the way to it, appears and is replaced.

    Attributes:
        uses: Why directories are watched.
        error: Why a directory that exists is not watched.
    """

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self.uses: set[Use] = set()
        self.error: OSError | None = None

    def add(self, target: WatchTarget) -> None:
        """Watch the directories of a target. It may wait for a filesystem."""
        path, entry = os.path.split(target.path.rstrip("/"))
        while entry and not self._watch(target, path, entry):
            path, entry = os.path.split(path)
        pending = [target.path]
        while pending:
            path = pending.pop()
            if self._watch(target, path) and target.recursive:
                pending += _subdirectories(path)

    def _watch(self, target: WatchTarget, path: str, entry: str = "") -> bool:
        """Watch a directory; return whether it exists."""
        try:
            watch = self._inotify.add(path, writes=target.writes and not entry)
        except ValueError:  # the kernel knows no such path
            return False
        except OSError as error:
            if error.errno in _MISSING:
                return False
            self.error = self.error or error
        else:
            self.uses.add(Use(watch, target, path, entry))
        return True


def resolve(inotify: Inotify, targets: Iterable[WatchTarget]) -> Resolved:
    """Watch the directories of all targets. It may wait for a filesystem."""
    found = Resolved(inotify)
    for target in targets:
        found.add(target)
    return found


def _subdirectories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [one.path for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # gone, or not readable
