"""The host's files, seen below a root: links are resolved below it, never out of it."""

import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Final

from devhost.immutable import immutable
from devhost.model.device import FileKind, FileState

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
# Links that a process has in a procfs: by their own names, and those of its open and mapped files.
_MAGIC: Final = re.compile(r"cwd|exe|root|[0-9]+|[0-9a-f]+-[0-9a-f]+")
_PROC_SUPER_MAGIC: Final = 0x9FA0  # linux/magic.h
_STATFS_MAX: Final = 256  # more than struct statfs has, which begins with the filesystem's kind
_statfs: Final = ctypes.CDLL(None).statfs
_statfs.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
# The path leads nowhere: not there, or through something that is no directory.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _is_of_proc(directory: str) -> bool:
    """Whether a directory is one of a procfs, wherever that is mounted."""
    told = ctypes.create_string_buffer(_STATFS_MAX)
    if _statfs(os.fsencode(directory), told) != 0:
        return False
    return int.from_bytes(told.raw[:4], sys.byteorder) == _PROC_SUPER_MAGIC


def _state(realpath: str, found: os.stat_result) -> FileState | None:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return None
    number = (os.major(found.st_rdev), os.minor(found.st_rdev)) if kind.is_node else None
    modified = 0 if kind.is_node else found.st_mtime_ns
    stamp = (found.st_dev, found.st_ino, found.st_ctime_ns)
    return FileState(realpath, kind, number, stamp, stat.S_IMODE(found.st_mode), modified)


@immutable
class Entry:
    """A directory entry; `is_directory` and `is_link` are of the entry itself."""

    name: str
    is_directory: bool
    is_link: bool


@immutable
class HostFiles:
    """Where the host's files are seen.

    Attributes:
        root: ``/``, or the directory under which the host's root is mounted.
    """

    root: str = "/"

    @property
    def is_host(self) -> bool:
        """Whether this process sees the host's files at their own paths."""
        return self.root == "/"

    def here(self, path: str) -> str:
        """Return where this process sees a host path (not following links)."""
        return path if self.is_host else self.root.rstrip("/") + path

    def resolve(self, path: str) -> str:
        """Return the host path with links and ``..`` resolved, as far as it exists."""
        try:
            return self.located(path)
        except OSError:
            return os.path.realpath(path) if self.is_host else os.path.normpath(path)

    def located(self, path: str) -> str:
        """Return what `resolve` does, where that can be said.

        Raises:
            OSError: Links lead in circles, or through a process's own view: what stands in
                such a link (``/proc/1/root``, ``/proc/1/fd/3``) is not where the kernel goes.
        """
        pending = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            try:
                target = os.readlink(self.here("/" + "/".join(done)))
            except OSError:
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if self._is_magic(done):
                text = f"leads through /{'/'.join(done)}, where each process sees other files"
                raise OSError(errno.ELOOP, text, path)
            done = [] if target.startswith("/") else done[:-1]
            pending += target.split("/")[::-1]
        return "/" + "/".join(done)

    def _is_magic(self, link: list[str]) -> bool:
        """Whether a link (its path's parts) is one that the kernel does not follow by its text.

        All links below /proc/PID are such (proc_pid_link_inode_operations and its like in Linux's
        fs/proc/base.c and fd.c). There may be other procfs, as in a chroot, and parts of one
        mounted elsewhere; all that has no name as in a procfs is none of them.
        """
        *above, name = link
        if len(above) > 1 and above[0] == "proc" and above[1].isdecimal():
            return True
        if not _MAGIC.fullmatch(name) and not any(part.isdecimal() for part in above):
            return False
        return _is_of_proc(self.here("/" + "/".join(above)))

    def look(self, path: str) -> FileState | None:
        """Return what a path leads to; ``None`` where it leads nowhere.

        Raises:
            OSError: The host could not say.
        """
        try:
            realpath = self.located(path)
            found = os.lstat(self.here(realpath))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return _state(realpath, found)  # none for a link: to itself, or made this very moment

    def looks(self) -> "Looks":
        """Return what looks at many paths of one moment."""
        return Looks(self)

    def exists(self, path: str) -> bool:
        """Whether there is something at a path, be it a link that leads nowhere."""
        return os.path.lexists(self.here(path))

    def is_link(self, path: str) -> bool:
        """Whether the path itself is a symbolic link."""
        parent, _, name = path.rpartition("/")
        return os.path.islink(self.here(self.resolve(parent or "/").rstrip("/") + "/" + name))

    def entries(self, path: str) -> list[Entry] | None:
        """Return a directory's entries; ``None`` where there is no such directory.

        Raises:
            OSError: The directory is there but cannot be read.
        """
        return Looks(self).entries(path)

    def walk(
        self, path: str, *, hidden: bool = False, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[str]:
        """Yield the paths below a directory, relative to it; links are not followed.

        Args:
            path: The host's directory.
            hidden: Whether names that begin with a dot count.
            leave_out: Directories, relative to it, that are not looked into.

        Raises:
            OSError: A directory cannot be read.
        """
        looks = self.looks()
        pending = [""]
        while pending:
            below = pending.pop()
            for entry in looks.entries(f"{path}/{below}" if below else path, below=path) or ():
                if entry.name.startswith(".") and not hidden:
                    continue
                name = f"{below}/{entry.name}" if below else entry.name
                yield name
                if entry.is_directory and name not in leave_out:
                    pending.append(name)


class Looks:
    """Many looks at one moment: where a directory is, is found out once."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._located: dict[str, str] = {}

    def look(self, path: str) -> FileState | None:
        """Return what `HostFiles.look` does."""
        parent, _, name = path.rpartition("/")
        if name in _DOTS:
            return self._files.look(path)
        try:
            where = self._where(parent)
            realpath = path if where == parent else f"{where}/{name}"  # the same object
            found = os.lstat(self._files.here(realpath))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        if stat.S_ISLNK(found.st_mode):
            return self._files.look(path)
        return _state(realpath, found)

    def exists(self, path: str) -> bool:
        """Whether there is something at a path that was made of a directory's and a name.

        Be it a link that leads nowhere; a path that is too long for the kernel is not there.

        Raises:
            OSError: The host could not say.
        """
        parent, _, name = path.rpartition("/")
        try:
            os.lstat(self._files.here(f"{self._where(parent)}/{name}"))
        except OSError as error:
            if error.errno in (*_ABSENT, errno.ENAMETOOLONG):
                return False
            raise
        return True

    def entries(self, path: str, *, below: str | None = None) -> list[Entry] | None:
        """Return what `HostFiles.entries` does.

        What is `below` another directory is as if it were not there if its path is too long for
        the kernel: it is too deep.
        """
        try:
            with os.scandir(self._files.here(self._where(path) or "/")) as scan:
                return [
                    Entry(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for entry in scan
                ]
        except OSError as error:
            too_deep = error.errno == errno.ENAMETOOLONG and below not in (None, path)
            if error.errno in _ABSENT or too_deep:
                return None
            raise

    def _where(self, path: str) -> str:
        """Return where a directory is, without a slash at its end."""
        below: list[str] = []
        while (where := self._located.get(path)) is None:
            if path.rpartition("/")[2] in _DOTS:
                where = self._located[path] = self._files.located(path).rstrip("/")
                break
            below.append(path)
            path = path.rpartition("/")[0]
        for one in reversed(below):
            where += one[one.rindex("/") :]
            if os.path.islink(self._files.here(where)):
                where = self._files.located(one).rstrip("/")
            self._located[one] = where
        return where
