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

from watchdog.observers import inotify_c
from watchdog.observers.inotify_c import InotifyConstants as Flag

# A directory that is removed needs no bit: the loss of its watch is an event in any case. The watch
# of a directory is the same by whatever path it is reached, so a mask is added to the former one.
_MASK: Final = (
    Flag.IN_CREATE
    | Flag.IN_DELETE
    | Flag.IN_MOVE
    | Flag.IN_MOVE_SELF
    | Flag.IN_ONLYDIR
    | Flag.IN_EXCL_UNLINK
    | Flag.IN_MASK_ADD
)
_REASONS: Final = {
    errno.ENOSPC: "inotify watch limit reached",
    errno.EMFILE: "inotify instance limit reached",
}
_HEADER: Final = struct.Struct("iIII")
_BUFFER_BYTES: Final = 8 * 1024  # some 250 events, so that other callbacks run in between
# With the system's flags: watchdog's IN_CLOEXEC and IN_NONBLOCK have wrong values.
_init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)(
    ("inotify_init1", inotify_c.libc)
)


class Event(NamedTuple):
    """A change of a watched directory (then the name is empty), or of an entry of it."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance of inotify; raises `OSError` where the limit of the kernel is reached."""

    def __init__(self) -> None:
        self._descriptor = _check(_init(os.O_CLOEXEC | os.O_NONBLOCK))
        self.watches: set[int] = set()

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are events."""
        return self._descriptor

    def add(self, path: str, *, writes: bool, closes: bool = False) -> int:
        """Watch a directory; return the number of its watch. May be called in any thread.

        It waits for the directory's filesystem. A directory that is watched already keeps its
        number, by whatever path it is reached. Raises `OSError` if it cannot be watched, the limit
        is reached, or this was closed.
        """
        mask = _MASK | (Flag.IN_CLOSE_WRITE if writes or closes else 0)
        mask = inotify_c.Mask(mask | (Flag.IN_CLOSE_NOWRITE if closes else 0))
        add = inotify_c.inotify_add_watch
        watch = _check(add(self._descriptor, os.fsencode(path), mask), path)
        self.watches.add(watch)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch, unless it has ended with its directory."""
        inotify_c.inotify_rm_watch(self._descriptor, inotify_c.WatchDescriptor(watch))
        self.watches.discard(watch)  # the event of its end is lost where the queue overflows

    def read(self) -> list[Event]:
        """Return the queued events, or the first of very many."""
        try:
            events = list(parse_events(os.read(self._descriptor, _BUFFER_BYTES)))
        except BlockingIOError:
            return []
        self.watches -= {event.watch for event in events if event.mask & Flag.IN_IGNORED}
        return events

    def close(self) -> None:
        """End all watches; another file may have the descriptor's number from now on."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def parse_events(buffer: bytes) -> Iterator[Event]:
    """Yield the events in a buffer that the kernel filled: whole events, always."""
    end = 0
    while end < len(buffer):
        watch, mask, _, length = _HEADER.unpack_from(buffer, end)
        end += _HEADER.size + length
        yield Event(watch, mask, os.fsdecode(buffer[end - length : end].rstrip(b"\0")))


def _check(result: int, path: str | None = None) -> int:
    """Return the result of a system call, or raise its error."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, _REASONS.get(number) or os.strerror(number), path)
    return result
