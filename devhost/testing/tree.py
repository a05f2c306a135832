"""A host's files below a directory: what a test lets devhost find."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path, PurePosixPath

from devhost.errors import DevhostError
from devhost.hostfs.files import HostFiles


class NotPermittedError(DevhostError):
    """This process may not make device nodes; `can_make_nodes` says so beforehand."""


def can_make_nodes() -> bool:
    """Say whether this process may make device nodes: as root, outside of user namespaces."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            HostTree(Path(directory)).char("/dev/null")
        except NotPermittedError:
            return False
    return True


class HostTree:
    """Builds a host's files below a directory.

    Paths are the host's: ``/dev/ttyUSB0`` is made at ``root/dev/ttyUSB0``, and the directories
    on the way with it. Links are followed below the root, never out of it, so that a test does
    not touch the machine that it runs on. There is a ``/sys`` from the start, so that the
    machine's own tells nothing about the devices of the tree.

    All methods raise `ValueError` for a path that is not absolute or has ``..`` in it, and
    `OSError` where a file cannot be made.

    Attributes:
        root: The directory, without links: what ``--root`` or `devhost.testing.serving` takes.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        if self.root == Path("/"):
            raise ValueError("a tree at / would be the machine's own files")
        self._files = HostFiles(str(self.root))
        self.directory("/sys/dev/block")
        self.directory("/sys/dev/char")

    def at(self, path: str) -> Path:
        """Return where a host path is; of a link, where the link itself is."""
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or not path.startswith("/") or ".." in parts:
            raise ValueError(f"{path!r}: a host path is absolute and has no '..'")
        return self._resolved(str(PurePosixPath(path).parent)) / parts[-1]

    def file(self, path: str, text: str = "", mode: int = 0o644) -> None:
        """Write a regular file, a new one or over what it held; a link leads to it."""
        self.at(path)
        here = self._resolved(path)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_text(text, encoding="utf-8")
        here.chmod(mode)

    def directory(self, path: str) -> None:
        """Make a directory, if it is not there."""
        self.at(path)
        self._resolved(path).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link; its target may be relative, or a host path."""
        self._new(path).symlink_to(target)

    def char(self, path: str, major: int = 1, minor: int = 3, mode: int = 0o666) -> None:
        """Make a character device; unless told, it is another ``/dev/null``.

        Raises:
            NotPermittedError: This process may not.
        """
        self._node(path, stat.S_IFCHR, (major, minor), mode)

    def block(self, path: str, major: int, minor: int, mode: int = 0o660) -> None:
        """Make a block device.

        The majors 240 to 254 are for local use. A number that the machine has mounted or swaps
        on is in use in the tree too.

        Raises:
            NotPermittedError: This process may not.
        """
        self._node(path, stat.S_IFBLK, (major, minor), mode)

    def numa(self, major: int, minor: int, node: int, *, block: bool = False) -> None:
        """Say in sysfs to which NUMA node a device is attached (-1: to none in particular)."""
        kind = "block" if block else "char"
        device = f"devices/devhost/{kind}-{major}-{minor}"
        self.file(f"/sys/{device}/numa_node", f"{node}\n")
        link = f"/sys/dev/{kind}/{major}:{minor}"
        if not self.at(link).is_symlink():
            self.link(link, f"../../{device}")

    def remove(self, path: str) -> None:
        """Remove a file, a node, a link (not what it leads to), or a directory with all in it."""
        here = self.at(path)
        if here.is_dir() and not here.is_symlink():
            shutil.rmtree(here)
        else:
            here.unlink()

    def _node(self, path: str, kind: int, number: tuple[int, int], mode: int) -> None:
        here = self._new(path)
        try:
            os.mknod(here, kind | 0o600, os.makedev(*number))
        except PermissionError as error:
            reason = "making device nodes needs root, outside of user namespaces"
            raise NotPermittedError(f"{here}: {reason}; see can_make_nodes()") from error
        here.chmod(mode)  # not by mknod: the umask would count

    def _resolved(self, path: str) -> Path:
        here = Path(self._files.to_local(self._files.resolve(path)))
        if Path(os.path.realpath(here)) != here:  # links in circles; they might leave the root
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return here

    def _new(self, path: str) -> Path:
        here = self.at(path)
        here.parent.mkdir(parents=True, exist_ok=True)
        return here
