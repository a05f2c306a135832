"""Which directories have to be watched so that no change of a target is missed."""

import errno
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from devhost.budget import Share
from devhost.immutable import immutable
from devhost.limits import ENTRIES_MAX
from devhost.watch.inotify import Inotify

_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


@immutable
class WatchTarget:
    """A directory to watch.

    Attributes:
        path: Absolute. It may be a link to a directory, and may be missing.
        recursive: Whether directories below it are watched too; links below it are not followed.
        writes: Whether a written file is a change, too.
        leave_out: Directories below it that are not watched.
    """

    path: str
    recursive: bool = False
    writes: bool = False
    leave_out: frozenset[str] = frozenset()


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
        missing: Whether a directory was missing.
        error: Why a directory that exists is not watched.
    """

    def __init__(self, inotify: Inotify, watches: Share) -> None:
        self._inotify, self._watches = inotify, watches
        self._read = 0  # entries, in the search for directories
        self.uses: set[Use] = set()
        self.missing = False
        self.error: OSError | None = None

    def add(self, target: WatchTarget) -> None:
        """Watch the directories of a target. It may wait for a filesystem."""
        path, entry = os.path.split(target.path.rstrip("/"))
        while entry and not self._watch(target, path, entry):
            path, entry = os.path.split(path)
        pending = deque([target.path])
        while pending and self._room(target):
            path = pending.popleft()  # those that are not deep first
            if self._watch(target, path) and target.recursive:
                pending += (one for one in self._below(path) if one not in target.leave_out)

    def _room(self, target: WatchTarget) -> bool:
        """Whether one more directory of a target may be watched."""
        reason = self._watches.refusal(len(self.uses) + 1)
        if reason is not None:
            self.error = self.error or OSError(errno.ENOSPC, reason, target.path)
        return reason is None

    def _below(self, path: str) -> Iterator[str]:
        """Yield the directories in a directory."""
        try:
            with os.scandir(path) as entries:
                for one in entries:
                    self._read += 1
                    if self._read > ENTRIES_MAX:
                        reason = f"more than {ENTRIES_MAX:,} entries"
                        self.error = self.error or OSError(errno.ENOSPC, reason, path)
                        return
                    if one.is_dir(follow_symlinks=False):
                        yield one.path
        except OSError:
            return  # gone, or not readable

    def _watch(self, target: WatchTarget, path: str, entry: str = "") -> bool:
        """Watch a directory; return whether it exists."""
        try:
            watch = self._inotify.add(path, writes=target.writes and not entry)
        except ValueError:  # the kernel knows no such path
            return False
        except OSError as error:
            if error.errno in _MISSING:
                self.missing = True
                return False
            self.error = self.error or error
        else:
            self.uses.add(Use(watch, target, path, entry))
        return True


def resolve(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
    """Watch the directories of all targets. It may wait for a filesystem."""
    found = Resolved(inotify, watches)
    for target in targets:
        found.add(target)
    return found
