"""The host's files, seen below a root: links are resolved below it, never out of it."""

import contextlib
import ctypes
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeVar

from devhost.errors import describe_os_error
from devhost.model import names
from devhost.model.device_node import FileKind, FileState
from devhost.model.limits import ENTRIES_FEW, ENTRIES_MAX, ENTRY_BYTES
from devhost.model.pattern import matches_any

_T = TypeVar("_T")

_DOTS: Final = ("", ".", "..")
_LINKS_MAX: Final = 40  # as the kernel's own limit
_KINDS: Final = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFCHR: FileKind.CHAR,
    stat.S_IFBLK: FileKind.BLOCK,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFIFO: FileKind.FIFO,
}
# Links of a process in a procfs: by their own names, and those of its open and mapped files.
_MAGIC: Final = re.compile(r"cwd|exe|root|[0-9]+|[0-9a-f]+-[0-9a-f]+")
_PROC_SUPER_MAGIC: Final = 0x9FA0  # linux/magic.h
_SYSFS_MAGIC: Final = 0x62656572
# Other filesystems below /dev, where more than the kernel and udev make files; those of large pages
# have names such as /dev/hugepages1G.
_NOT_DEV: Final = ("/dev/shm/", "/dev/mqueue/", "/dev/hugepages")  # noqa: S108 (not made here)
_STATFS_MAX: Final = 256  # more than struct statfs has, which begins with the filesystem's kind
_statfs: Final = ctypes.CDLL(None).statfs
_statfs.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
# A file that stands for a node in a copy of a machine, where not everybody can make nodes.
_NODE_MAX: Final = 80
_NODE: Final = re.compile(rb"devhost node (0o[0-7]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)\n")
# The path leads nowhere: it does not exist, or a part of it is not a directory.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def is_in_dev(path: str) -> bool:
    """Whether a path is the host's own /dev or below it, where only the host makes files."""
    inside = f"{path}/"
    return inside.startswith("/dev/") and not inside.startswith(_NOT_DEV)


def filesystem_magic(path: str) -> int | None:
    """Return the number of the filesystem's type (linux/magic.h) at a path, if it has an answer."""
    buffer = ctypes.create_string_buffer(_STATFS_MAX)
    if _statfs(os.fsencode(path), buffer) != 0:
        return None
    return int.from_bytes(buffer.raw[:4], sys.byteorder)


def node_text(mode: int, number: int, user: int = 0, group: int = 0) -> bytes:
    """Return the content of a file that stands for a node in a copy of a machine."""
    numbers = (mode, os.major(number), os.minor(number), user, group)
    return "devhost node {:#o} {} {} {} {}\n".format(*numbers).encode()


def _state(realpath: str, status: os.stat_result, former: FileState | None) -> FileState | None:
    """Return the state of a file at a real path: the former object where nothing has changed."""
    stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
    raw = (status.st_mode, status.st_rdev, status.st_mtime_ns)
    if former is not None and (former.stamp, former.raw, former.realpath) == (stamp, raw, realpath):
        return former
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return None
    number = (os.major(status.st_rdev), os.minor(status.st_rdev)) if kind.is_node else None
    modified = 0 if kind.is_node else status.st_mtime_ns
    mode, links = stat.S_IMODE(status.st_mode), status.st_nlink
    state = FileState(realpath, kind, number, stamp, mode, modified, links, raw)
    return former if state == former else state


class Progress:
    """The time of the host's last answer to a call: a slow filesystem is not one that hangs.

    A call is made by one thread, and `HostFiles.to_local` notes the answers to it: the host has
    answered a thread that comes to its next file.
    """

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Set the time of the last answer to now."""
        self.answered_at = monotonic()

    def measure(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``, whose progress this is."""
        THREAD.progress = self
        self.note()
        return work()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.progress = Progress()  # of the call that this thread makes


THREAD: Final = _Thread()


def note_answer() -> None:
    """Set the time of the host's last answer to this thread to now."""
    THREAD.progress.answered_at = monotonic()


class Tally:
    """Counts the entries of directories that are read; too many end the reading (E2BIG).

    A `refusal` may give a reason why there are too many before `ENTRIES_MAX`.
    """

    def __init__(self, refusal: Callable[[int], str | None] = lambda _count: None) -> None:
        self._refusal = refusal
        self.count = 0

    def add(self, directory: str, name: str) -> None:
        """Count an entry of a directory; raise an error if there are too many."""
        note_answer()
        width = 1 if directory.isascii() and name.isascii() else 4  # bytes of a character, at most
        self.count += 1 + (len(directory) + len(name)) * width // ENTRY_BYTES
        reason = self._refusal(self.count) if self.count > ENTRIES_FEW else None
        if self.count > ENTRIES_MAX:
            reason = f"more than {ENTRIES_MAX:,} entries"
        if reason:
            raise OSError(errno.E2BIG, reason, directory)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The host's files below a `root`: ``/``, or where the host's root is mounted.

    Names that match one of the globs `shown` may be told even from directories that not every user
    may look into; ``None``: all names may be told. Container runtimes look for CDI specs in
    `cdi_dirs`, of which a later one has precedence.
    """

    root: str = "/"
    shown: tuple[str, ...] | None = None
    cdi_dirs: tuple[str, ...] = names.CDI_DIRS

    @property
    def is_host(self) -> bool:
        """Whether this process sees the host's files at their own paths."""
        return self.root == "/"

    @property
    def is_copy(self) -> bool:
        """Whether the root is a copy of a machine's files: its /sys is not the kernel's."""
        places = () if self.is_host else ("/sys/dev", "/sys/devices")
        kinds = {filesystem_magic(self.to_local(place)) for place in places} - {None}
        return bool(kinds) and _SYSFS_MAGIC not in kinds

    def to_local(self, path: str) -> str:
        """Return the path at which this process sees a host path, without following links."""
        note_answer()
        return path if self.root == "/" else self.root.rstrip("/") + path

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of a file; in a copy of a machine, of the node that it stands for."""
        local = self.to_local(path)
        status = os.lstat(local)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _NODE_MAX or not self.is_copy:
            return status
        with open(local, "rb") as file:  # noqa: PTH123 (a path takes longer)
            match = _NODE.fullmatch(file.read(_NODE_MAX))
        if match is None:
            return status
        mode, major, minor, user, group = (int(number, 0) for number in match.groups())
        values = {name: getattr(status, name) for name in ("st_mtime_ns", "st_ctime_ns")}
        values["st_rdev"] = os.makedev(major, minor)
        return os.stat_result((mode, *status[1:4], user, group, *status[6:]), values)

    def resolve(self, path: str) -> str:
        """Return the `realpath`, or the path itself, normalized, where that fails."""
        try:
            return self.realpath(path)
        except OSError:
            return os.path.realpath(path) if self.is_host else os.path.normpath(path)

    def realpath(self, path: str) -> str:
        """Return the host path with links and ``..`` resolved, as far as it exists.

        Raises `OSError` if links form a loop, ``..`` follows a file that is no directory, or the
        way leads through a process's own view: the text of such a link (``/proc/1/root``,
        ``/proc/1/fd/3``) is not where the kernel goes.
        """
        *_, (place, _, _) = self.follow(path)
        return place

    def stays_in_dev(self, path: str) -> bool:
        """Whether only the host decides where a path leads: no link on the way leaves its /dev."""
        try:
            return all(is_in_dev(place) for place, _, _ in self.follow(path))
        except OSError:
            return False

    def check_shown(self, directory: str, name: str | None = None) -> str | None:
        """Raise EACCES for a directory that not every user may look into, unless `shown` has it.

        With a name, only that is to be looked up; without a name, all names are to be read. Returns
        the real path; ``None`` where all names may be told. Blocks.
        """
        if self.shown is None:
            return None
        place = ""
        for place, rest, mode in self.follow(directory):
            if place == "/" or is_in_dev(place):
                continue
            needed = stat.S_IXOTH if rest or name else stat.S_IROTH | stat.S_IXOTH
            if not stat.S_ISDIR(mode) or mode & needed == needed:
                continue
            whole = "/".join(filter(None, (place, *reversed(rest), name)))
            forms = (whole, f"{whole}/")  # names that are allowed below a directory may be listed
            if not any(matches_any(form, self.shown) for form in forms):
                text = f"not every user may look into {place}: it needs --allow-path '{whole}'"
                raise OSError(errno.EACCES, text)
        return place.rstrip("/")

    def follow(self, path: str) -> Iterator[tuple[str, list[str], int]]:
        """Yield each place on a path's way, its end too, with the names that follow, and its mode.

        The names are in reverse order. The mode is 0 where there is no file, or no answer.
        """
        pending = _parts(path)
        done: list[str] = []
        links = mode = 0
        while pending:
            part = pending.pop()
            if part == "..":
                place = "/" + "/".join(done)
                if not stat.S_ISDIR(os.lstat(self.to_local(place)).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place)
                del done[-1:]
                continue
            done.append(part)
            place = "/" + "/".join(done)
            local = self.to_local(place)
            try:
                mode = os.lstat(local).st_mode
                target = os.readlink(local) if stat.S_ISLNK(mode) else ""
            except OSError:
                mode, target = 0, ""
            yield place, pending, mode
            if not target:
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if self._is_magic(done):
                text = f"leads through {place}, where each process sees other files"
                raise OSError(errno.ELOOP, text, path)
            done = [] if target.startswith("/") else done[:-1]
            pending += _parts(target)
        yield "/" + "/".join(done), pending, mode

    def _is_magic(self, link: list[str]) -> bool:
        """Whether a link, given as its path's parts, leads elsewhere than its text says.

        All links below /proc/PID do (proc_pid_link_inode_operations and the like in Linux's
        fs/proc/base.c and fd.c). There may be other procfs, as in a chroot, and parts of one
        mounted elsewhere; their links are known by the names that only a procfs has.
        """
        *above, name = link
        if len(above) > 1 and above[0] == "proc" and above[1].isdecimal():
            return True
        if not _MAGIC.fullmatch(name) and not any(part.isdecimal() for part in above):
            return False
        return filesystem_magic(self.to_local("/" + "/".join(above))) == _PROC_SUPER_MAGIC

    def stat(self, path: str) -> FileState | None:
        """Return the state of the file that a path leads to; ``None`` where it leads nowhere."""
        return CachedFiles(self).stat(path)

    def entries(self, path: str) -> list[os.DirEntry[str]] | None:
        """Return a directory's entries; ``None`` where there is no directory. Bounded."""
        return CachedFiles(self).entries(path)


@contextlib.contextmanager
def pinned_path(path: str) -> Iterator[str]:
    """Yield a path of the file that is at a path now, whatever comes to be there later."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _parts(path: str) -> list[str]:
    """Return the names in a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


class CachedFiles:
    """Reads many paths; each directory's real path is looked up once."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._realpaths: dict[str, str] = {}

    def stat(self, path: str, former: FileState | None = None) -> FileState | None:
        """Return the same as `HostFiles.stat`, and the former object where nothing has changed."""
        parent, _, name = path.rpartition("/")
        try:
            dots = name in _DOTS
            real = self._files.realpath(path) if dots else f"{self._real_directory(parent)}/{name}"
            status = self._files.lstat(real)
            if stat.S_ISLNK(status.st_mode):
                real = self._files.realpath(path)
                status = self._files.lstat(real)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return _state(real, status, former)  # none for a link: to itself, or made just now

    def is_link(self, path: str) -> bool | None:
        """Whether an entry of a directory is a link; ``None`` where there is no such entry."""
        parent, _, name = path.rpartition("/")
        try:
            self._files.check_shown(parent, name)
            real = f"{self._real_directory(parent)}/{name}"
            mode = os.lstat(self._files.to_local(real)).st_mode
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return stat.S_ISLNK(mode)

    def entries(self, path: str, *, tally: Tally | None = None) -> list[os.DirEntry[str]] | None:
        """Return the same as `HostFiles.entries`, counted by a tally."""
        tally = tally or Tally()
        try:
            if (real := self._files.check_shown(path)) is not None:
                self._realpaths[path] = real
            with os.scandir(self._files.to_local(self._real_directory(path) or "/")) as scan:
                entries = []
                for entry in scan:
                    tally.add(path, entry.name)
                    entries.append(entry)
                return entries
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise

    def _real_directory(self, path: str) -> str:
        """Return a directory's real path, without a slash at its end."""
        if (real := self._realpaths.get(path)) is None:
            parent, _, name = path.rpartition("/")
            above = self._realpaths.get(parent)
            real = f"{above}/{name}"
            if above is None or name in _DOTS or os.path.islink(self._files.to_local(real)):
                real = self._files.realpath(path).rstrip("/")
            self._realpaths[path] = real
        return real


def is_wild(part: str) -> bool:
    """Whether a glob may match more than one text."""
    return any(character in part for character in "*?[")


def describe_read_error(error: OSError) -> str:
    """Return what an error of the host says, with the path that it is about."""
    where = f" ({error.filename})" if error.filename else ""
    return names.printable(f"{describe_os_error(error)}{where}")
