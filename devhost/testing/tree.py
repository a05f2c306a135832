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
_CONTROLLER: Final = "/sys/devices/pci0000:00/0000:00:14.0"


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
        self._new(path).symlink_to(target)

    def char(self, path: str, major: int = 1, minor: int = 3, mode: int = 0o666) -> None:
        """Create a character device, by default with the numbers of ``/dev/null``."""
        self._node(path, "char", os.makedev(major, minor), mode)

    def block(self, path: str, major: int, minor: int, mode: int = 0o660) -> None:
        """Create a block device; majors 240 to 254 are for local use."""
        self._node(path, "block", os.makedev(major, minor), mode)

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

    def device(
        self,
        path: str,
        subsystem: str,
        /,
        *,
        bus: bool = False,
        driver: str = "",
        number: str = "",
        node: str = "",
        uevent: str = "",
        **files: str,
    ) -> None:
        """Create a device of the kernel: its directory below ``/sys/devices``, files and node.

        The subsystem is a class, or with `bus` a bus. With a number (``188:0``) it has a node, at a
        path below ``/dev`` that by default is its name.
        """
        name = path.rpartition("/")[2]
        if number:
            kind, node = "block" if subsystem == "block" else "char", node or name
            self._node(f"/dev/{node}", kind, os.makedev(*map(int, number.split(":"))), 0o660)
            self._relative(f"/sys/dev/{kind}/{number}", path)
            files, uevent = {**files, "dev": number}, f"{uevent}DEVNAME={node}\n"
        for file, text in files.items():
            self.file(f"{path}/{file}", f"{text}\n")
        self.file(f"{path}/uevent", uevent)
        owner = f"/sys/{'bus' if bus else 'class'}/{subsystem}"
        self._relative(f"{owner}/{'devices/' * bus}{name}", path)
        self._relative(f"{path}/subsystem", owner)
        if driver:
            self._relative(f"{path}/driver", f"/sys/bus/{subsystem}/drivers/{driver}")

    def pci(
        self,
        address: str,
        ids: str,
        /,
        *,
        below: str = "",
        code: str = "000000",
        driver: str = "",
        nodes: Iterable[str] = (),
        **files: str,
    ) -> str:
        """Create a PCI function (``8086:9bc8``) of a class, and its nodes; return its directory.

        Nodes are subsystems with paths below ``/dev``: ``["drm/dri/card0"]``. The function is
        below another device, or a root complex.
        """
        path = f"{below or f'/sys/devices/pci{address[:7]}'}/{address}"
        vendor, device = (f"0x{number}" for number in ids.split(":"))
        values = {"vendor": vendor, "device": device, "class": f"0x{code}", **files}
        uevent = f"PCI_ID={ids.upper()}\n"
        self.device(path, "pci", bus=True, driver=driver, uevent=uevent, **values)
        self._nodes(path, nodes)
        return path

    def usb(
        self,
        name: str,
        ids: str,
        /,
        *,
        below: str = "",
        code: str = "000000",
        driver: str = "",
        nodes: Iterable[str] = (),
        **files: str,
    ) -> str:
        """Create a USB device, and nodes of its first interface; return its directory.

        ``tree.usb("1-2", "0403:6001", serial="A1", driver="ftdi_sio", nodes=["tty/ttyUSB0"])``: in
        port 2 of the first bus, below a hub (``1-2.1``) or a controller, which is made.
        """
        path = f"{below}/{name}" if below else _usb_directory(name)
        above, _, hub = os.path.dirname(path).rpartition("/")
        if not below and not self.at(f"{above}/{hub}").is_dir():
            if hub.startswith("0000:"):
                self.pci(hub, "8086:06ed", code="0c0330", driver="xhci_hcd")
            else:
                self.usb(hub, "1d6b:0002", code="090001")
        bus = int(files.get("busnum", name.removeprefix("usb").partition("-")[0]))
        others = self._resolved(f"/dev/bus/usb/{bus:03}")
        number = int(files.get("devnum", len(list(others.glob("*"))) + 1))
        vendor, product = ids.split(":")
        values = {"idVendor": vendor, "idProduct": product, "busnum": f"{bus}", "devnum": f"{number}"}
        self.device(
            path,
            "usb",
            bus=True,
            driver="usb",
            number=f"189:{(bus - 1) * 128 + number - 1}",
            node=f"bus/usb/{bus:03}/{number:03}",
            **{**values, **_codes("bDevice", code), **files},
        )
        nodes = list(nodes)
        if driver or nodes:
            self._nodes(self.interface(f"{path}/{name}:1.0", "ffffff", driver), nodes)
        return path

    def interface(self, path: str, code: str, driver: str = "") -> str:
        """Create an interface of a USB device (``…/1-2/1-2:1.0``); return its directory."""
        number = f"{int(path.rpartition('.')[2]):02x}"
        values = {"bInterfaceNumber": number, **_codes("bInterface", code)}
        self.device(path, "usb", bus=True, driver=driver, **values)
        return path

    def _nodes(self, path: str, nodes: Iterable[str]) -> None:
        for node in nodes:
            subsystem, _, file = node.partition("/")
            kind = "block" if subsystem == "block" else "char"
            minor = len(list(self.at(f"/sys/dev/{kind}").iterdir()))
            name = file.rpartition("/")[2]
            self.device(f"{path}/{subsystem}/{name}", subsystem, number=f"240:{minor}", node=file)

    def _relative(self, path: str, target: str) -> None:
        self.link(path, os.path.relpath(target, os.path.dirname(path)))

    def _node(self, path: str, kind: str, number: int, mode: int) -> None:
        local = self._new(path)
        try:
            os.mknod(local, _KINDS[kind] | 0o600, number)
        except PermissionError:  # as root, outside of user namespaces
            if os.path.lexists(local):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(local)) from None
            file = self.root / ".node"
            file.write_text(node_text(_KINDS[kind] | mode, number), encoding="utf-8")
            file.rename(local)
        else:
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


def _usb_directory(name: str) -> str:
    """Return the directory of a USB device of the usual controller."""
    if name.startswith("usb"):
        return f"{_CONTROLLER}/{name}"
    hub = name.rpartition(".")[0] or f"usb{name.partition('-')[0]}"
    return f"{_usb_directory(hub)}/{name}"


def _codes(prefix: str, code: str) -> dict[str, str]:
    parts = ("Class", "SubClass", "Protocol")
    return {f"{prefix}{part}": code[2 * at : 2 * at + 2] for at, part in enumerate(parts)}


def _make(directory: Path) -> None:
    """Create a directory if it does not exist, whatever the umask: others must not write there."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir()
        directory.chmod(0o755)
