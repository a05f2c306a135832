"""The kernel's inotify, as a descriptor that never blocks and that no child process inherits.

Only watchdog's bindings are used. Its observers start a thread for each directory, and its
`InotifyFD` holds a lock while the kernel adds a watch: a filesystem that hangs would hold up all.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from watchdog.observers.inotify_c import (
    InotifyConstants,
    Mask,
    WatchDescriptor,
    inotify_add_watch,
    inotify_rm_watch,
    libc,
)

IS_DIRECTORY: Final = InotifyConstants.IN_ISDIR
LOST: Final = InotifyConstants.IN_IGNORED
MOVED_ITSELF: Final = InotifyConstants.IN_MOVE_SELF
OVERFLOW: Final = InotifyConstants.IN_Q_OVERFLOW
WRITTEN: Final = InotifyConstants.IN_CLOSE_WRITE
# A directory that is removed needs no bit: the loss of its watch is an event in any case. The watch
# of a directory is the same by whatever path it is reached, so a mask is added to the former one.
_STRUCTURE: Final = (
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | MOVED_ITSELF
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_EXCL_UNLINK
    | InotifyConstants.IN_MASK_ADD
)
_REASONS: Final = {
    errno.ENOSPC: "inotify watch limit reached",
    errno.EMFILE: "inotify instance limit reached",
}
_HEAD: Final = struct.Struct("iIII")
_BUFFER: Final = 8 * 1024  # some 250 events, so that other callbacks run in between
# With the system's flags: watchdog's IN_CLOEXEC and IN_NONBLOCK have wrong values.
_init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)(("inotify_init1", libc))


class Event(NamedTuple):
    """What happened to a watched directory (then the name is empty), or to an entry of it."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance of inotify; raises `OSError` where the limit of the kernel is reached."""

    def __init__(self) -> None:
        self._descriptor: int = _init(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor == -1:
            raise _failure()
        self.watches: set[int] = set()
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are events."""
        return self._descriptor

    def add(self, path: str, *, writes: bool) -> int:
        """Watch a directory; return the number of its watch. May be called in any thread.

        It waits for the directory's filesystem. A directory that is watched already keeps its
        number, by whatever path it is reached.

        Raises:
            OSError: It cannot be watched, the limit is reached, or this was closed.
            ValueError: No path can be like this.
        """
        encoded = os.fsencode(path)
        if b"\0" in encoded:  # the kernel would see only what is before it
            raise ValueError("embedded null byte")
        if self._closed:  # another file may have the descriptor's number by now
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        mask = Mask(_STRUCTURE | WRITTEN if writes else _STRUCTURE)
        watch = inotify_add_watch(self._descriptor, encoded, mask)
        if watch == -1:
            raise _failure(path)
        self.watches.add(watch)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch, unless it has ended with its directory."""
        inotify_rm_watch(self._descriptor, WatchDescriptor(watch))

    def read(self) -> list[Event]:
        """Return the queued events, or the first of very many."""
        try:
            events = list(parsed(os.read(self._descriptor, _BUFFER)))
        except BlockingIOError:
            return []
        self.watches -= {one.watch for one in events if one.mask & LOST}
        return events

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        os.close(self._descriptor)


def parsed(buffer: bytes) -> Iterator[Event]:
    """Parse what the kernel wrote; after a part of an event, events count as lost."""
    at = 0
    while len(buffer) - at >= _HEAD.size:
        watch, mask, _, length = _HEAD.unpack_from(buffer, at)
        end = at + _HEAD.size + length
        if end > len(buffer):
            break
        yield Event(watch, mask, os.fsdecode(buffer[end - length : end].rstrip(b"\0")))
        at = end
    if at < len(buffer):
        yield Event(-1, OVERFLOW, "")


def _failure(path: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, _REASONS.get(number) or os.strerror(number), path)
