"""A directory tree in place of the host's files."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from devhost.drafts.capture import unpack
from devhost.hostfs.files import HostFiles, node_text

_KINDS: Final = {"char": stat.S_IFCHR, "block": stat.S_IFBLK}


class HostTree:
    """Creates a host's files below a directory.

    Paths are the host's: ``/dev/ttyUSB0`` is created as ``root/dev/ttyUSB0``, with missing parent
    directories. Links are resolved below the root and never lead out of it, so that a test does
    not touch the machine it runs on. The tree has its own ``/sys``. Where this process may not
    create device nodes, files stand for them: devhost takes them for nodes, but nothing can be
    opened there.

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

    @classmethod
    def of(cls, archive: Path, root: Path) -> "HostTree":
        """Return the tree of an archive of ``devhost capture``, in a new directory."""
        unpack(archive, root)
        return cls(root)

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
        local = self.at(path)
        _make(local.parent)
        local.symlink_to(target)

    def relative_link(self, path: str, target: str) -> None:
        """Create a symbolic link to a host path as udev and the kernel make them: relative."""
        self.link(path, os.path.relpath(target, os.path.dirname(path)))

    def char(self, path: str, major: int = 1, minor: int = 3, mode: int = 0o666) -> None:
        """Create a character device, by default with the numbers of ``/dev/null``."""
        self._node(path, "char", os.makedev(major, minor), mode)

    def block(self, path: str, major: int, minor: int, mode: int = 0o660) -> None:
        """Create a block device; majors 240 to 254 are for local use."""
        self._node(path, "block", os.makedev(major, minor), mode)

    def remove(self, path: str) -> None:
        """Remove a file, a node, a link (not its target), or a directory with its content."""
        local = self.at(path)
        if local.is_dir() and not local.is_symlink():
            shutil.rmtree(local)
        else:
            local.unlink()

    def device(self, path: str, subsystem: str, /, node: str = "", **files: str) -> str:
        """Create a device of the kernel below ``/sys/devices`` with its files; return its path.

        The subsystem is one below ``/sys``: ``class/tty``, ``bus/usb``. With a number as `dev` it
        has a node, below ``/dev`` and by default of its name. A `driver` is no file, but a link.
        """
        name, driver = path.rpartition("/")[2], files.pop("driver", "")
        if number := files.get("dev"):
            node, kind = node or name, "block" if subsystem == "class/block" else "char"
            self._node(f"/dev/{node}", kind, os.makedev(*map(int, number.split(":"))), 0o660)
            self.relative_link(f"/sys/dev/{kind}/{number}", path)
            files["uevent"] = f"DEVNAME={node}\n{files.get('uevent', '')}"
        for file, text in {"uevent": "", **files}.items():
            self.file(f"{path}/{file}", f"{text}\n")
        members = f"{subsystem}/devices" if subsystem.startswith("bus/") else subsystem
        self.relative_link(f"/sys/{members}/{name}", path)
        self.relative_link(f"{path}/subsystem", f"/sys/{subsystem}")
        if driver:
            self.relative_link(f"{path}/driver", f"/sys/{subsystem}/drivers/{driver}")
        return path

    def pci(
        self, address: str, ids: str, /, below: str = "", nodes: Iterable[str] = (), **files: str
    ) -> str:
        """Create a PCI function (``8086:9bc8``) with nodes and files; return its path in sysfs.

        ``tree.pci("0000:00:02.0", "8086:9bc8", driver="i915", nodes=["drm/dri/renderD128"])``: a
        node is its class, and its path below ``/dev``.
        """
        vendor, device = (f"0x{number}" for number in ids.split(":"))
        values = {"vendor": vendor, "device": device, "uevent": f"PCI_ID={ids.upper()}"}
        above = below or f"/sys/devices/pci{address[:7]}"
        path = self.device(f"{above}/{address}", "bus/pci", **values | files)
        _add_nodes(self, path, nodes)
        return path

    def usb(
        self, name: str, ids: str, /, below: str = "", nodes: Iterable[str] = (), **files: str
    ) -> str:
        """Create a USB device with files, and an interface with nodes; return its path in sysfs.

        ``tree.usb("1-2", "0403:6001", serial="A1", driver="ftdi_sio", nodes=["tty/ttyUSB0"])``: in
        port 2 of a root hub that is made, if it is not `below` a hub.
        """
        bus = int(name.removeprefix("usb").partition("-")[0])
        above = below or f"/sys/devices/pci0000:00/0000:00:{0x13 + bus:02x}.0/usb{bus}"
        if not below and not self.at(above).is_dir():
            self.pci(above.split("/")[-2], "8086:06ed", **{"class": "0x0c0330"})
            self.usb(f"usb{bus}", "1d6b:0002", os.path.dirname(above), bDeviceClass="09")
        nodes_of_bus = self._resolved(f"/dev/bus/usb/{bus:03}").glob("*")
        last = max((int(node.name) for node in nodes_of_bus), default=0)
        number = int(files.get("devnum", last + 1))
        values = dict(zip(("idVendor", "idProduct"), ids.split(":"), strict=True))
        values |= {"busnum": f"{bus}", "devnum": f"{number}"}
        values["dev"], driver = f"189:{(bus - 1) * 128 + number - 1}", files.pop("driver", "")
        node = f"bus/usb/{bus:03}/{number:03}"
        path = self.device(f"{above}/{name}", "bus/usb", node, driver="usb", **values | files)
        if driver:
            codes = {"bInterfaceNumber": "00", "bInterfaceClass": "ff", "driver": driver}
            _add_nodes(self, self.device(f"{path}/{name}:1.0", "bus/usb", **codes), nodes)
        return path

    def _node(self, path: str, kind: str, number: int, mode: int) -> None:
        local = self.at(path)
        _make(local.parent)
        try:
            os.mknod(local, _KINDS[kind] | 0o600, number)
        except PermissionError:  # as root, outside of user namespaces
            if os.path.lexists(local):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(local)) from None
            file = self.root / ".node"
            file.write_bytes(node_text(_KINDS[kind] | mode, number))
            file.rename(local)
        else:
            local.chmod(mode)  # not in mknod, which applies the umask

    def _resolved(self, path: str) -> Path:
        local = Path(self._files.to_local(self._files.resolve(path)))
        if Path(os.path.realpath(local)) != local:  # a loop of links, which might leave the root
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return local


def _add_nodes(tree: HostTree, path: str, nodes: Iterable[str]) -> None:
    """Create devices of the kernel with nodes below another one."""
    for node in nodes:
        subsystem, _, file = node.partition("/")
        numbered = tree.at("/sys/dev").glob("*/240:*")
        last = max((int(link.name.partition(":")[2]) for link in numbered), default=-1)
        place = f"{path}/{subsystem}/{file.rpartition('/')[2]}"
        tree.device(place, f"class/{subsystem}", file, dev=f"240:{last + 1}")


def _make(directory: Path) -> None:
    """Create a directory if it does not exist, whatever the umask: others must not write there."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir()
        directory.chmod(0o755)
