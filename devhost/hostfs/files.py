"""The host's files, seen below a root: links are resolved below it, never out of it.

They are looked at by path, and found below a directory by globs, within bounds.
"""

import contextvars
import ctypes
import errno
import fnmatch
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from devhost.model import names
from devhost.model.device import FileKind, FileState
from devhost.model.immutable import immutable
from devhost.model.limits import ENTRIES_FEW, ENTRIES_MAX, ENTRY_CHARACTERS

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
# Other filesystems below /dev, where more than the kernel and udev make files.
_NOT_DEV: Final = ("/dev/shm", "/dev/mqueue", "/dev/hugepages")  # noqa: S108 (not made here)
_STATFS_MAX: Final = 256  # more than struct statfs has, which begins with the filesystem's kind
_statfs: Final = ctypes.CDLL(None).statfs
_statfs.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
# The path leads nowhere: it does not exist, or a part of it is not a directory.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def is_in_dev(path: str) -> bool:
    """Whether a path is the host's own /dev or below it, where only the host makes files."""
    inside = f"{path}/"
    return inside.startswith("/dev/") and not any(inside.startswith(f"{one}/") for one in _NOT_DEV)


def filesystem(path: str) -> int | None:
    """Return the number of a file's kind of filesystem (linux/magic.h), if it can be told."""
    found = ctypes.create_string_buffer(_STATFS_MAX)
    if _statfs(os.fsencode(path), found) != 0:
        return None
    return int.from_bytes(found.raw[:4], sys.byteorder)


def _state(realpath: str, found: os.stat_result, former: FileState | None) -> FileState | None:
    """Return what is at a real path; what is as it was is the same object."""
    stamp = (found.st_dev, found.st_ino, found.st_ctime_ns)
    raw = (found.st_mode, found.st_rdev, found.st_mtime_ns)
    if former is not None and (former.stamp, former.raw, former.realpath) == (stamp, raw, realpath):
        return former
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return None
    is_node = kind in (FileKind.CHAR, FileKind.BLOCK)
    number = (os.major(found.st_rdev), os.minor(found.st_rdev)) if is_node else None
    modified = 0 if is_node else found.st_mtime_ns
    now = FileState(realpath, kind, number, stamp, stat.S_IMODE(found.st_mode), modified, raw)
    return former if now == former else now


class Progress:
    """When the host last answered what runs by it: a slow filesystem is not one that hangs."""

    def __init__(self) -> None:
        self.answered_at = time.monotonic()

    @classmethod
    def current(cls) -> "Progress":
        """Return that of the work which this thread does, or one that nobody waits for."""
        return _PROGRESS.get() or cls()

    def during(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``, noting each answer."""
        _PROGRESS.set(self)
        self.note()
        return work()

    def note(self) -> None:
        """Note that the host has answered."""
        self.answered_at = time.monotonic()


_PROGRESS: Final = contextvars.ContextVar[Progress | None]("progress", default=None)


class Tally:
    """Counts the entries of directories that are read; too many end the reading (E2BIG).

    A `refusal` may give a reason why there are too many before `ENTRIES_MAX`.
    """

    def __init__(self, refusal: Callable[[int], str | None] = lambda _count: None) -> None:
        self._refusal = refusal
        self.count = 0

    def add(self, directory: str, name: str) -> None:
        """Count an entry of a directory; raise an error if there are too many."""
        Progress.current().note()
        self.count += 1 + (len(directory) + len(name)) // ENTRY_CHARACTERS
        reason = self._refusal(self.count) if self.count > ENTRIES_FEW else None
        if self.count > ENTRIES_MAX:
            reason = f"more than {ENTRIES_MAX:,} entries"
        if reason:
            raise OSError(errno.E2BIG, reason, directory)


@immutable
class HostFiles:
    """The host's files below a `root`: ``/``, or where the host's root is mounted.

    What matches one of the globs `shown` may be told even from directories that not every user may
    look into; ``None``: all may.
    """

    root: str = "/"
    shown: tuple[str, ...] | None = None

    @property
    def is_host(self) -> bool:
        """Whether this process sees the host's files at their own paths."""
        return self.root == "/"

    def to_local(self, path: str) -> str:
        """Return the path at which this process sees a host path, without following links.

        Who asks for it has the host's answer to what was asked before.
        """
        Progress.current().note()
        return path if self.is_host else self.root.rstrip("/") + path

    def resolve(self, path: str) -> str:
        """Return what `realpath` does, or the path itself, normalized, where that fails."""
        try:
            return self.realpath(path)
        except OSError:
            return os.path.realpath(path) if self.is_host else os.path.normpath(path)

    def realpath(self, path: str) -> str:
        """Return the host path with links and ``..`` resolved, as far as it exists.

        It is an error if links form a loop, ``..`` follows what is no directory, or the way leads
        through a process's own view: the text of such a link (``/proc/1/root``, ``/proc/1/fd/3``)
        is not where the kernel goes.
        """
        *_, (place, _, _) = self.way(path)
        return place

    def stays_in_dev(self, path: str) -> bool:
        """Whether only the host decides where a path leads: no link on the way leaves its /dev."""
        try:
            return all(is_in_dev(place) for place, _, _ in self.way(path))
        except OSError:
            return False

    def check_shown(self, directory: str, name: str | None = None) -> str | None:
        """Refuse (EACCES) to tell what is in a directory that not every user may look into.

        Unless `shown` names it; without a name to look for, all its names are read. Blocks. Returns
        the real path, if it had to be found.
        """
        if self.shown is None:
            return None
        place = ""
        for place, rest, mode in self.way(directory):
            if place == "/" or is_in_dev(place):
                continue
            needed = stat.S_IXOTH if rest or name else stat.S_IROTH | stat.S_IXOTH
            if not stat.S_ISDIR(mode) or mode & needed == needed:
                continue
            whole = "/".join(filter(None, (place, *reversed(rest), name)))
            below = (whole, f"{whole}/")  # what is allowed below a directory may be listed
            if not any(fnmatch.fnmatchcase(one, glob) for one in below for glob in self.shown):
                text = f"not every user may look into {place}: it needs --allow-path '{whole}'"
                raise OSError(errno.EACCES, text)
        return place.rstrip("/")

    def way(self, path: str) -> Iterator[tuple[str, list[str], int]]:
        """Yield each place on a path's way, the end too, the names that follow, and the mode there.

        The last name is the first. The mode is 0 where there is nothing, or it cannot be told.
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
        """Whether a link (its path's parts) is one that the kernel does not follow by its text.

        All links below /proc/PID are (proc_pid_link_inode_operations and the like in Linux's
        fs/proc/base.c and fd.c). There may be other procfs, as in a chroot, and parts of one
        mounted elsewhere; their links are known by the names that only a procfs has.
        """
        *above, name = link
        if len(above) > 1 and above[0] == "proc" and above[1].isdecimal():
            return True
        if not _MAGIC.fullmatch(name) and not any(part.isdecimal() for part in above):
            return False
        return filesystem(self.to_local("/" + "/".join(above))) == _PROC_SUPER_MAGIC

    def stat(self, path: str) -> FileState | None:
        """Return what a path leads to; ``None`` where it leads nowhere."""
        return CachedFiles(self).stat(path)

    def entries(self, path: str) -> list[os.DirEntry[str]] | None:
        """Return a directory's entries; ``None`` where there is none. Very many are an error."""
        return CachedFiles(self).entries(path)


def _parts(path: str) -> list[str]:
    """Return the names in a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


class CachedFiles:
    """Reads many paths; where a directory leads is found out once."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._realpaths: dict[str, str] = {}
        self._listed: set[str] = set()

    def stat(self, path: str, former: FileState | None = None) -> FileState | None:
        """Return what `HostFiles.stat` does, or what was there before if it is as it was."""
        parent, _, name = path.rpartition("/")
        try:
            dots = name in _DOTS
            realpath = self._files.realpath(path) if dots else f"{self._where(parent)}/{name}"
            found = os.lstat(self._files.to_local(realpath))
            if stat.S_ISLNK(found.st_mode):
                realpath = self._files.realpath(path)
                found = os.lstat(self._files.to_local(realpath))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return _state(realpath, found, former)  # none for a link: to itself, or made just now

    def is_link(self, path: str) -> bool | None:
        """Whether an entry of a directory is a link; ``None`` where there is none."""
        parent, _, name = path.rpartition("/")
        try:
            if parent not in self._listed:
                self._files.check_shown(parent, name)
            mode = os.lstat(self._files.to_local(f"{self._where(parent)}/{name}")).st_mode
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return stat.S_ISLNK(mode)

    def entries(self, path: str, *, tally: Tally | None = None) -> list[os.DirEntry[str]] | None:
        """Return what `HostFiles.entries` does, and count them."""
        add = (tally or Tally()).add
        try:
            if (real := self._files.check_shown(path)) is not None:
                self._realpaths[path] = real
            self._listed.add(path)
            with os.scandir(self._files.to_local(self._where(path) or "/")) as scan:
                found = []
                for one in scan:
                    add(path, one.name)
                    found.append(one)
                return found
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise

    def _where(self, path: str) -> str:
        """Return a directory's real path, without a slash at its end."""
        below: list[str] = []
        while (where := self._realpaths.get(path)) is None:
            if path.rpartition("/")[2] in _DOTS:
                where = self._realpaths[path] = self._files.realpath(path).rstrip("/")
                break
            below.append(path)
            path = path.rpartition("/")[0]
        for one in reversed(below):
            where += one[one.rindex("/") :]
            if os.path.islink(self._files.to_local(where)):
                where = self._files.realpath(one).rstrip("/")
            self._realpaths[one] = where
        return where


# ── what is below a directory, by globs and within bounds ──

Parts = tuple[str, ...]


class Walk:
    """One search below a directory.

    It goes through a tree once, and holds at each directory what is left of the pattern by each of
    the ways that lead there. No recursion: a tree may be deeper than that can go. It is an error if
    the directory itself cannot be read, or there is too much below it.

    The `base` has no slash at its end. In the pattern, ``**`` matches any directories, but no links
    to some; names that begin with a dot match wildcards only if `hidden` is set. No wildcard looks
    into the directories to `leave_out`.

    Attributes:
        found: The paths below the directory, and whether they are links.
        unreadable: Of such paths, why they, or what is below them, cannot be read.
    """

    def __init__(
        self,
        files: HostFiles,
        base: str,
        pattern: str = "**",
        tally: Tally | None = None,
        *,
        hidden: bool = False,
        leave_out: Iterable[str] = (),
    ) -> None:
        self.files, self._base, self._tally = CachedFiles(files), base, tally or Tally()
        self._hidden, self._leave_out = hidden, frozenset(leave_out)
        self.matches: dict[str, bool] = {}
        self.unreadable: dict[str, str] = {}
        parts = tuple(pattern.split("/"))
        pending = [("", {parts if parts[-1] != "**" else (*parts, "*")})]
        while pending:
            below, lefts = pending.pop()
            children = self._children(below, lefts)
            pending += [(f"{below}{name}/", left) for name, left in children.items()]

    def _children(self, below: str, lefts: set[Parts]) -> dict[str, set[Parts]]:
        """Look at one directory; return where to go on, with what is left of the pattern there."""
        children: dict[str, set[Parts]] = {}
        for left in list(lefts):  # ** may also match no directory
            while left[0] == "**":
                left = left[1:]  # noqa: PLW2901
                lefts.add(left)
        for name, *rest in (left for left in lefts if not is_wild(left[0])):
            if rest:
                children.setdefault(name, set()).add(tuple(rest))
            elif (is_link := self._is_link(f"{below}{name}")) is not None:
                self.matches[f"{below}{name}"] = is_link
        wild = [left for left in lefts if is_wild(left[0])]
        entries = self._entries(below) if wild else ()
        for left in wild:
            for entry in entries:
                after = self._after(entry, left)
                if after == ():
                    self.matches[f"{below}{entry.name}"] = _is_link(entry)
                elif after and f"{self._base}/{below}{entry.name}" not in self._leave_out:
                    children.setdefault(entry.name, set()).add(after)
        return children

    def _after(self, entry: os.DirEntry[str], left: Parts) -> Parts | None:
        """Return what is left of a pattern at an entry; ``None`` where it does not go on there."""
        part, further = left[0], left[1:]
        if part == "**":
            shown = self._hidden or not entry.name.startswith(".")
            return left if shown and _is_directory(entry) else None
        if not matches_glob(entry.name, part, hidden=self._hidden):
            return None
        return further if not further or _is_link(entry) or _is_directory(entry) else None

    def _is_link(self, name: str) -> bool | None:
        try:
            return self.files.is_link(f"{self._base}/{name}")
        except OSError as error:
            self.unreadable[name] = describe_read_error(error)
            return None

    def _entries(self, below: str) -> list[os.DirEntry[str]]:
        path = f"{self._base}/{below}".rstrip("/")
        try:
            return self.files.entries(path or "/", tally=self._tally) or []
        except OSError as error:
            if not below or error.errno == errno.E2BIG:  # too many
                raise
            self.unreadable[below.rstrip("/")] = describe_read_error(error)
            return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # it cannot be read: reading it as a directory says why
        return True


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return False


def is_wild(part: str) -> bool:
    """Whether a glob may match more than one text."""
    return any(character in part for character in "*?[")


def matches_glob(name: str, part: str, *, hidden: bool = False) -> bool:
    """Whether a name matches a glob; without `hidden`, a dot at its front needs one there."""
    if not hidden and name.startswith(".") and not part.startswith("."):
        return False
    return part == "*" or fnmatch.fnmatchcase(name, part)


def describe_read_error(error: OSError) -> str:
    """Return why the host could not say something."""
    where = f" ({error.filename})" if error.filename else ""
    return names.printable(f"{error.strerror or error}{where}")
