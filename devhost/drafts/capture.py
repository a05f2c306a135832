"""A machine as an archive: what devhost reads of it, for ``--root`` elsewhere.

It has names, links, small public files of /sys, and what is read of /proc and of CDI; nothing from
within a device. In place of a node is a file that stands for it: not everybody can make nodes.
"""

import contextlib
import gzip
import io
import os
import posixpath
import re
import stat
import tarfile
import zlib
from pathlib import Path
from typing import Final

from devhost.drafts import kinds
from devhost.drafts.entries import LIBRARIES
from devhost.drafts.selectors import is_good_serial
from devhost.hostfs.files import HostFiles, node_text
from devhost.hostfs.mounts import HostUse
from devhost.hostfs.sysfs import VALUE_MAX
from devhost.model.limits import ARCHIVE_MAX, CDI_SPEC_MAX

Contents = dict[str, bytes | str | None]  # by path: of a file, a link's target, or a directory

_TOPS: Final = (
    *("/sys/devices", "/sys/class", "/sys/bus", "/sys/dev", "/sys/fs/btrfs", "/dev"),
    *("/proc/driver/nvidia", "/etc/cdi", "/var/run/cdi"),
)
_LEFT_OUT: Final = {  # directories, by name
    *("fd", "hugepages", "mqueue", "pts", "shm"),
    *("drivers", "gids", "hwmon", "mq", "msi_irqs", "power", "queues", "statistics"),
}
_PROCESSORS: Final = "/sys/devices/system"  # and memory: large, and no devices
_IDENTIFYING: Final = re.compile(
    "/sys/.*/(cid|eui|hostid|hostnqn|nguid|node_guid|(node|port|fabric|target|initiator)_?name"
    "|phys_(port|switch)_id|sas_address|serial|serial_number|subsysnqn|sys_image_guid|uniq"
    "|unique_id|uuid|wwid|wwn|net/[^/]+/address)"
)
_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ADDRESS: Final = r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,}|\d{1,3}(?:\.\d{1,3}){3}"  # MAC, IPv4
_LONG: Final = re.compile(r"(\w\W*){5}")  # a shorter number identifies nothing
_OF_MEDIUM: Final = re.compile("/dev/disk/by-(?!path/).*/.*")


def capture(files: HostFiles, *, anonymous: bool = False) -> Contents:
    """Return what devhost reads of a machine. Blocks."""
    contents: Contents = {}
    for top in _TOPS:
        base = files.resolve(top)
        for local, directories, names in os.walk(files.to_local(base)):
            below = local.removeprefix(files.to_local(base))
            contents[f"{top}{below}"] = None
            for name in (*directories, *names):
                with contextlib.suppress(OSError):  # it has just been unplugged
                    if (content := _content(f"{base}{below}/{name}", files)) is not None:
                        contents[f"{top}{below}/{name}"] = content
            is_last = f"{base}{below}" == _PROCESSORS
            directories[:] = [name for name in directories if not is_last and name not in _LEFT_OUT]
    for name in {name for row in kinds.rows().values() for name in row.libraries}:
        libraries = (f"{directory}/{name}" for directory in LIBRARIES)
        contents |= {path: b"" for path in libraries if files.stat(path) is not None}
    use = HostUse(files)
    for path in ("/proc/consoles", "/proc/devices", "/proc/swaps", "/proc/1/mountinfo"):
        lines = dict.fromkeys(use.lines(path, path.replace("/1/", "/self/")))
        of_disks = (line for line in lines if " /dev/" in line or " 0:" not in line)
        text = "\n".join(line.replace(f" {files.root} ", " / ") for line in of_disks)
        contents[path] = os.fsencode(text)
    return _anonymous(contents) if anonymous else contents


def _content(path: str, files: HostFiles) -> bytes | str | None:
    """Return the content of a file, or the target of a link; ``None`` to leave it out."""
    local, status = files.to_local(path), files.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        return _relative(path, os.readlink(local))
    if path.startswith("/dev/") and kind != stat.S_IFDIR:
        node = node_text(status.st_mode, status.st_rdev, status.st_uid, status.st_gid)
        return b"" if kind == stat.S_IFREG else node
    if kind != stat.S_IFREG or not status.st_mode & stat.S_IROTH or path.startswith("/sys/fs/"):
        return None
    limit = VALUE_MAX if path.startswith("/sys/") else CDI_SPEC_MAX
    with Path(local).open("rb") as file:
        content = file.read(limit + 1)
    return None if len(content) > limit or b"\0" in content else content


def _relative(path: str, target: str) -> str:
    """Return the target of a link from its directory; however it was written, below the root."""
    directory = os.path.dirname(path)
    return os.path.relpath(posixpath.join(directory, target), directory)


def _anonymous(contents: Contents) -> Contents:
    """Return the contents with another number for each serial number, address and UUID."""
    names = {path.rpartition("/")[2] for path in contents}  # a root hub's is its controller's
    texts: set[str] = set()
    for path, content in contents.items():
        value = os.fsdecode(content or "").strip()
        if _IDENTIFYING.fullmatch(path) and value not in names and is_good_serial(value):
            name = re.sub(r"[^\w#+.:=@-]", "_", " ".join(value.split()))  # as udev has it in links
            texts |= {value, name, value.replace(":", ""), re.split(r"[.\s]", value)[-1]}
    chosen = sorted(filter(_LONG.search, texts), reverse=True)
    either = "|".join((_UUID, _ADDRESS, *map(re.escape, chosen)))
    pattern = re.compile(rf"(?<![0-9A-Za-z])((?:0x|enx)?)({either})(?![0-9A-Za-z])")
    numbers: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        # From 2 on: 0001 is a number that nobody has set (is_good_serial).
        number = numbers.setdefault(re.sub(r"\W|_", "", match[2]).lower(), len(numbers) + 2)
        return f"{match[1]}{number:0{len(match[2])}}"

    replaced: Contents = {}
    for path, content in sorted(contents.items()):
        name = pattern.sub(replace, path)
        if isinstance(content, str):
            content = pattern.sub(replace, content)  # noqa: PLW2901
        elif content is not None and not path.startswith("/dev/"):
            content = os.fsencode(pattern.sub(replace, os.fsdecode(content)))  # noqa: PLW2901
        if name != path or not _OF_MEDIUM.fullmatch(path):  # else a number that no file has
            replaced[name] = content
    return replaced


def pack(contents: Contents) -> bytes:
    """Return an archive; raise `ValueError` if it would be too large."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path, content in sorted(contents.items()):
            member, data = tarfile.TarInfo(path[1:]), content if isinstance(content, bytes) else b""
            member.mode, member.size = 0o755, len(data)
            if not isinstance(content, bytes):
                member.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
                member.linkname = content or ""
            archive.addfile(member, io.BytesIO(data))
    if raw.tell() > ARCHIVE_MAX:
        raise ValueError(f"the archive would have more than {ARCHIVE_MAX:,} bytes")
    return gzip.compress(raw.getvalue(), mtime=0)


def unpack(archive: Path, directory: Path) -> None:
    """Create the files of an archive in a new directory.

    All are below it, whatever their names; no link leads out of it, and none is written through.
    Raises `ValueError` if it is no such archive, is too large or cannot be read.
    """
    try:
        with archive.open("rb") as file:
            raw = file.read(ARCHIVE_MAX + 1)
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(ARCHIVE_MAX + 1)
        if len(raw) > ARCHIVE_MAX:
            raise ValueError(f"more than {ARCHIVE_MAX:,} bytes")  # noqa: TRY301
        directory.mkdir()
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as members:
            _create(members, directory)
    except (OSError, ValueError, EOFError, RecursionError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{archive} is no archive of `devhost capture`: {error}") from None


def _create(members: tarfile.TarFile, directory: Path) -> None:
    links: dict[str, str] = {}
    for member in members:
        path = os.path.normpath(f"/{member.name.lstrip('/')}")
        local = Path(f"{directory}{path}")
        (local if member.isdir() else local.parent).mkdir(parents=True, exist_ok=True)
        if member.issym():
            links[path] = member.linkname
        elif member.isreg() and not member.issparse() and (file := members.extractfile(member)):
            local.write_bytes(file.read())
        elif not member.isdir():
            raise ValueError(f"{member.name!r} is no file or link")
    for path, target in links.items():
        Path(f"{directory}{path}").symlink_to(_relative(path, target))
