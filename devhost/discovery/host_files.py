"""The host's files, seen below a root: links are resolved below it, never out of it."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from devhost.immutable import immutable
from devhost.model.device import FileKind, FileState

_LINKS_MAX: Final = 40  # as the kernel's own limit
_KINDS: Final = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFCHR: FileKind.CHAR,
    stat.S_IFBLK: FileKind.BLOCK,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFIFO: FileKind.FIFO,
}
# The path leads nowhere: not there, or through something that is no directory.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _is_magic(link: list[str]) -> bool:
    """Whether a link (its path's parts) is one that the kernel does not follow by its text.

    All links below /proc/PID are such (proc_pid_link_inode_operations and its like in Linux's
    fs/proc/base.c and fd.c).
    """
    return len(link) > 2 and link[0] == "proc" and link[1].isdecimal()


def _state(realpath: str, found: os.stat_result) -> FileState | None:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return None
    number = (os.major(found.st_rdev), os.minor(found.st_rdev)) if kind.is_node else None
    stamp = (found.st_dev, found.st_ino, found.st_ctime_ns)
    return FileState(realpath, kind, number, stamp, stat.S_IMODE(found.st_mode))


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
            if _is_magic(done):
                text = f"leads through /{'/'.join(done)}, where each process sees other files"
                raise OSError(errno.ELOOP, text, path)
            done = [] if target.startswith("/") else done[:-1]
            pending += target.split("/")[::-1]
        return "/" + "/".join(done)

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
        try:
            with os.scandir(self.here(self.located(path))) as scan:
                return [
                    Entry(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for entry in scan
                ]
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise

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
        pending = [""]
        while pending:
            below = pending.pop()
            for entry in self.entries(f"{path}/{below}" if below else path) or ():
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
        if name in ("", ".", ".."):
            return self._files.look(path)
        try:
            where = self._located.get(parent)
            if where is None:
                where = self._located[parent] = self._files.located(parent).rstrip("/")
            realpath = path if where == parent else f"{where}/{name}"  # the same object
            found = os.lstat(self._files.here(realpath))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        if stat.S_ISLNK(found.st_mode):
            return self._files.look(path)
        return _state(realpath, found)
