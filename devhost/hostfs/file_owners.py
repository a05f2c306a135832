"""Who owns a file of the host, and what others may do, as people read it."""

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable

_SIZE_MAX: Final = 1 << 20
_FILES: Final = {"owner": "/etc/passwd", "group": "/etc/group"}


@immutable
class FileAccess:
    """Who owns a file, and its permission bits.

    Attributes:
        uid: The owner's number.
        gid: The group's number.
        mode: The permission bits.
        names: The names of the ``owner`` and the ``group``, where the host has some.
    """

    uid: int
    gid: int
    mode: int
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """``root dialout (20) 0660``: names where they are known."""
        group = self.names.get("group")
        shown = f"{group} ({self.gid})" if group and self.gid else group or str(self.gid)
        return f"{self.names.get('owner', self.uid)} {shown} {self.mode:04o}"

    @property
    def only_by_group(self) -> bool:
        """Whether a process that is not root needs the group to read and write."""
        return bool(self.gid) and self.mode & 0o060 == 0o060 and self.mode & 0o006 != 0o006


class FileOwners:
    """Reads who owns files, and the names of users and groups that the host has."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._known = {kind: self._names(path) for kind, path in _FILES.items()}

    def of(self, realpath: str) -> FileAccess | None:
        """Return who owns what is at a path; ``None`` where nothing is. Blocks."""
        try:
            found = os.lstat(self._files.to_local(realpath))
        except OSError:
            return None
        numbers = {"owner": found.st_uid, "group": found.st_gid}
        known = {kind: self._known[kind].get(number) for kind, number in numbers.items()}
        some = {kind: name for kind, name in known.items() if name is not None}
        return FileAccess(found.st_uid, found.st_gid, found.st_mode & 0o7777, some)

    def _names(self, path: str) -> dict[int, str]:
        known = {0: "root"}
        try:
            local = self._files.to_local(self._files.resolve(path))
            descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return known
        try:
            text = os.read(descriptor, _SIZE_MAX).decode("utf-8", "replace")
        except OSError:
            return known
        finally:
            os.close(descriptor)
        for line in text.splitlines():
            name, _, number, *_rest = [*line.split(":"), "", "", ""]
            if number.isdecimal() and name.isprintable():
                known.setdefault(int(number), name)
        return known
