"""What the kernel can tell of the host's files from its memory, without waiting for anything.

For most of what is handed out it can: the way to a device node was walked a moment ago. Such a
look takes less than to ask a thread for it, and may be taken on the event loop.
"""

import ctypes
import errno
import functools
import os
import stat
from struct import Struct
from typing import Final, NoReturn

from devhost.discovery.host_files import Entry, HostFiles, Looks
from devhost.discovery.mounts import mounts
from devhost.immutable import immutable
from devhost.model.device import FileKind, FileState

_OPENAT2: Final = 437  # on every architecture; libc has no name for it yet
_NO_MAGICLINKS, _IN_ROOT, _CACHED = 0x02, 0x10, 0x20  # RESOLVE_* of linux/openat2.h
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH, _DONT_SYNC = 0x1000, 0x4000  # AT_* of linux/fcntl.h
_BASIC: Final = 0x7FF  # STATX_BASIC_STATS
_GONE: Final = " (deleted)"
# Of struct statx: mask; mode, inode; times of the last change of the inode and of what the file
# holds; numbers of the node and of its filesystem.
_STATX: Final = Struct("=I24xH2xQ56xqI4xqI4xIIII112x")
_KINDS: Final = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFCHR: FileKind.CHAR,
    stat.S_IFBLK: FileKind.BLOCK,
}


class _How(ctypes.Structure):
    """struct open_how."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


# Keeps the interpreter's lock: nothing here waits.
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_openat2: Final = _LIBC.syscall
_openat2.restype = ctypes.c_long
_openat2.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_How),
    ctypes.c_size_t,
)
_statx: Final = getattr(_LIBC, "statx", None)
if _statx is not None:
    _statx.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
_Buffer = ctypes.c_char * _STATX.size
_S: Final = 1_000_000_000  # ns
_FLAGS: Final = os.O_PATH | os.O_CLOEXEC
_ANYWHERE: Final = _How(_FLAGS, 0, _CACHED | _NO_MAGICLINKS)
_BELOW: Final = _How(_FLAGS, 0, _CACHED | _NO_MAGICLINKS | _IN_ROOT)
_ITSELF: Final = _How(_FLAGS | os.O_NOFOLLOW, 0, _CACHED | _NO_MAGICLINKS)
_HOW_SIZE: Final = ctypes.sizeof(_How)


class WouldWait(Exception):  # noqa: N818 (no error: ask `HostFiles`, beside the event loop)
    """The kernel cannot tell without waiting, or what it tells needs a closer look."""


@immutable
class InstantFiles(HostFiles):
    """`HostFiles` that never wait: each answer is the same, or `WouldWait` is raised.

    The kernel finds a path by names that it holds (openat2 with RESOLVE_CACHED, made for this);
    what a filesystem would have to be asked for, it refuses. What is found has its state as it is
    known (AT_STATX_DONT_SYNC). Wherever something is odd or new, so is the answer.
    """

    def look(self, path: str) -> FileState | None:
        """Return what `HostFiles.look` does.

        Raises:
            WouldWait: Look beside the event loop.
        """
        if self.is_host:
            return _look(_AT_FDCWD, path, _ANYWHERE, "")
        root = _opened(_AT_FDCWD, self.root, _ANYWHERE)
        if root is None:
            raise WouldWait(path)
        try:
            return _look(root, path, _BELOW, _where(root))
        finally:
            os.close(root)

    def looks(self) -> Looks:
        """Return what looks at many paths, each at once."""
        return _Looks(self)

    def exists(self, path: str) -> bool:
        """Return what `HostFiles.exists` does.

        Raises:
            WouldWait: Look beside the event loop.
        """
        found = _opened(_AT_FDCWD, self.here(path), _ITSELF)
        if found is not None:
            os.close(found)
        return found is not None

    def located(self, path: str) -> str:
        """Not to be told at once."""
        self._wait(path)

    def entries(self, path: str) -> list[Entry] | None:
        """Not to be told at once."""
        self._wait(path)

    def _wait(self, path: str) -> NoReturn:
        raise WouldWait(path)


class _Looks(Looks):
    """The kernel has found out where the directories are."""

    def look(self, path: str) -> FileState | None:
        return self._files.look(path)

    def entries(self, path: str, *, below: str | None = None) -> list[Entry] | None:  # noqa: ARG002 (not told at once)
        return self._files.entries(path)


def _look(start: int, path: str, how: _How, root: str) -> FileState | None:
    """Look at a path below an open root, which is at ``root``."""
    if not path.startswith("/"):
        raise WouldWait(path)
    found = _opened(start, path, how)
    if found is None:
        return None
    try:
        realpath = _where(found)
        mask, mode, inode, s, ns, modified_s, modified_ns, major, minor, *device = _stated(found)
    finally:
        os.close(found)
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is None or mask & _BASIC != _BASIC:
        raise WouldWait(path)
    if root:
        if not realpath.startswith(f"{root}/"):
            raise WouldWait(path)
        realpath = realpath[len(root) :]
    if realpath.startswith("/proc/"):  # some of its links lead each process elsewhere
        raise WouldWait(path)
    number = (major, minor) if kind.is_node else None
    modified = 0 if kind.is_node else modified_s * _S + modified_ns
    stamp = (os.makedev(*device), inode, s * _S + ns)
    return FileState(realpath, kind, number, stamp, stat.S_IMODE(mode), modified)


def _stated(descriptor: int) -> tuple[int, ...]:
    """Return what is known of something open: see `_STATX`."""
    buffer = _Buffer()
    if _statx is None or _statx(descriptor, b"", _AT_EMPTY_PATH | _DONT_SYNC, _BASIC, buffer):
        raise WouldWait(str(descriptor))
    return _STATX.unpack(buffer)


def _opened(start: int, path: str, how: _How) -> int | None:
    """Open a path as a mere place, of which nothing can be read; ``None`` if it leads nowhere."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise WouldWait(path)
    descriptor: int = _openat2(_OPENAT2, start, encoded, how, _HOW_SIZE)
    if descriptor >= 0:
        return descriptor
    if ctypes.get_errno() in (errno.ENOENT, errno.EAGAIN) and _is_missing(start, path, how):
        return None
    raise WouldWait(path)


def _is_missing(start: int, path: str, how: _How) -> bool:
    """Whether a directory that is there lacks the name.

    Of a node that was removed in /dev the kernel keeps no note: it has to look, but that waits
    for nothing.
    """
    parent, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        return False
    directory: int = _openat2(_OPENAT2, start, os.fsencode(parent or "/"), how, _HOW_SIZE)
    if directory < 0:
        return False
    try:
        found: int = _openat2(_OPENAT2, directory, os.fsencode(name), _ITSELF, _HOW_SIZE)
        if found >= 0:
            os.close(found)
            return False
        if ctypes.get_errno() == errno.ENOENT:
            return True
        if os.makedev(*_stated(directory)[-2:]) != _devtmpfs():
            return False
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(directory)
    return False


@functools.cache
def _devtmpfs() -> int | None:
    """Return the number of the filesystem of device nodes: there is one, as long as the kernel."""
    for mount in mounts("/proc/self/mountinfo"):
        if mount.kind == "devtmpfs":
            return os.makedev(*mount.number)
    return None


def _where(descriptor: int) -> str:
    """Return where something open is, with links resolved."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        raise WouldWait(str(descriptor)) from None
    if not path.startswith("/") or path.endswith(_GONE):
        raise WouldWait(path)
    return path
