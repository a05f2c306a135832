"""A directory tree in place of the host's files."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path, PurePosixPath

from devhost.errors import DevhostError
from devhost.hostfs.files import HostFiles


class NotPermittedError(DevhostError):
    """This process may not create device nodes; see `can_make_nodes`."""


def can_make_nodes() -> bool:
    """Whether this process may create device nodes: as root, outside of user namespaces."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            HostTree(Path(directory)).char("/dev/null")
        except NotPermittedError:
            return False
    return True


class HostTree:
    """Creates a host's files below a directory.

    Paths are the host's: ``/dev/ttyUSB0`` is created as ``root/dev/ttyUSB0``, with missing parent
    directories. Links are resolved below the root and never lead out of it, so that a test does
    not touch the machine it runs on. The tree has its own ``/sys``.

    All methods raise `ValueError` for a path that is not absolute or contains ``..``, and
    `OSError` if a file cannot be created.

    Attributes:
        root: The directory with links resolved, for ``--root`` or `devhost.testing.serving`.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        if self.root == Path("/"):
            raise ValueError("the root of a tree cannot be /, the machine's own files")
        self._files = HostFiles(str(self.root))
        self.directory("/sys/dev/block")
        self.directory("/sys/dev/char")

    def at(self, path: str) -> Path:
        """Return the location of a host path; a link as the last part is not resolved."""
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or not path.startswith("/") or ".." in parts:
            raise ValueError(f"{path!r}: a host path must be absolute and must not contain '..'")
        return self._resolved(str(PurePosixPath(path).parent)) / parts[-1]

    def file(self, path: str, text: str = "", mode: int = 0o644) -> None:
        """Write a regular file, or overwrite it; links are followed."""
        self.at(path)
        local = self._resolved(path)
        _make(local.parent)
        local.write_text(text, encoding="utf-8")
        local.chmod(mode)

    def directory(self, path: str) -> None:
        """Create a directory if it does not exist."""
        self.at(path)
        _make(self._resolved(path))

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link; its target is relative or a host path."""
        self._new(path).symlink_to(target)

    def char(self, path: str, major: int = 1, minor: int = 3, mode: int = 0o666) -> None:
        """Create a character device, by default with the numbers of ``/dev/null``."""
        self._node(path, stat.S_IFCHR, (major, minor), mode)

    def block(self, path: str, major: int, minor: int, mode: int = 0o660) -> None:
        """Create a block device; majors 240 to 254 are for local use."""
        self._node(path, stat.S_IFBLK, (major, minor), mode)

    def numa(self, major: int, minor: int, node: int, *, block: bool = False) -> None:
        """Set the NUMA node of a device in sysfs (-1: none)."""
        kind = "block" if block else "char"
        device = f"devices/devhost/{kind}-{major}-{minor}"
        self.file(f"/sys/{device}/numa_node", f"{node}\n")
        link = f"/sys/dev/{kind}/{major}:{minor}"
        if not self.at(link).is_symlink():
            self.link(link, f"../../{device}")

    def remove(self, path: str) -> None:
        """Remove a file, a node, a link (not its target), or a directory with its content."""
        local = self.at(path)
        if local.is_dir() and not local.is_symlink():
            shutil.rmtree(local)
        else:
            local.unlink()

    def _node(self, path: str, kind: int, number: tuple[int, int], mode: int) -> None:
        local = self._new(path)
        try:
            os.mknod(local, kind | 0o600, os.makedev(*number))
        except PermissionError as error:
            reason = "creating device nodes needs root, outside of user namespaces"
            raise NotPermittedError(f"{local}: {reason}; see can_make_nodes()") from error
        local.chmod(mode)  # not in mknod, which applies the umask

    def _resolved(self, path: str) -> Path:
        local = Path(self._files.to_local(self._files.resolve(path)))
        if Path(os.path.realpath(local)) != local:  # a loop of links, which might leave the root
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return local

    def _new(self, path: str) -> Path:
        local = self.at(path)
        _make(local.parent)
        return local


def _make(directory: Path) -> None:
    """Create a directory if it does not exist, whatever the umask: others must not write there."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir()
        directory.chmod(0o755)
