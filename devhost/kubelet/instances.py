"""Socket names, and the other instances of devhost on the same plugin directory.

Two instances meet in a surge update, or beside a pod that does not want to end. The kubelet
hands Allocate to the one that registered last and takes lists from both, so they must agree
who speaks: the one that started last. A socket's name says whose it is; whether its owner
lives, only a connect tells.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import socket
import stat
import time
from pathlib import Path
from typing import Final

PREFIX: Final = "devhost-"
_HASH_LENGTH: Final = 12
_NAME: Final = re.compile(rf"{PREFIX}([0-9a-f]{{12}})-([0-9a-f]{{20}})-[0-9]+\.sock")
_SAME_TIME_NS: Final = 100_000_000  # the kernel's clock for files goes in ticks
_CANNOT_ASK: Final = (errno.EMFILE, errno.ENFILE)
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its end


def new_instance() -> str:
    """Return an ID that sorts after those of all instances that started before on this host.

    The time since boot goes on in all containers alike, and no clock is ever set back.
    """
    return f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME):016x}{secrets.token_hex(2)}"


def path_length_problem(directory: Path) -> str | None:
    """Say that a directory's path leaves no room for a socket's name, or return ``None``."""
    name = Instances(directory).fresh_name("")
    longest = len(os.fsencode(directory)) + 1 + len(name) + len("00000")
    if longest <= _SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {_SOCKET_PATH_MAX}"


class Instances:
    """This instance's socket names, and which others live.

    Attributes:
        own: The ID of this instance.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.own = new_instance()
        self._serial = itertools.count(1)
        self._listed: dict[str, dict[str, str]] = {}  # names of others: by resource, to instance
        self._listed_at: object = None  # what the directory was then, if that tells a change
        self._refused: set[str] = set()
        self._others: dict[str, set[str]] = {}  # instances by resource (its hash)

    def fresh_name(self, resource: str) -> str:
        """Return a socket name that no server had before.

        The kubelet's directory leaves 75 bytes of a socket path's 107, so the resource is
        hashed. A path that was registered once must not be used again: kubelet 1.37 would
        refuse it for good (k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
        """
        return f"{PREFIX}{resource_hash(resource)}-{self.own}-{next(self._serial)}.sock"

    def may_matter(self, name: str) -> bool:
        """Whether a name may be that of another instance's socket."""
        return name.startswith(PREFIX) and self.own not in name

    def newer(self, resource: str) -> bool:
        """Whether an instance that started after this one serves a resource."""
        return any(other > self.own for other in self._others.get(resource_hash(resource), ()))

    def older(self, resource: str) -> frozenset[str]:
        """Return the instances that started before this one and serve a resource."""
        others = self._others.get(resource_hash(resource), set())
        return frozenset(other for other in others if other < self.own)

    @property
    def alone(self) -> bool:
        """Whether no other instance lives."""
        return not self._others

    @property
    def in_doubt(self) -> bool:
        """Whether there are sockets that refused once."""
        return bool(self._refused)

    def read(self) -> None:
        """Read the directory: all that looks, at one resource or at all, goes by the last time."""
        stamp = self._stamp()
        self._listed = {}
        for name in self._names():
            if self.may_matter(name) and (parts := _NAME.fullmatch(name)):
                self._listed.setdefault(parts[1], {})[name] = parts[2]
        self._listed_at = stamp

    def _stamp(self) -> object:
        """Return what is another one after a change of the directory, or something unique."""
        try:
            found = self._directory.stat()
        except OSError:
            return object()
        if abs(time.time_ns() - found.st_mtime_ns) < _SAME_TIME_NS:
            return object()  # another change may get the same time
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def look(self) -> tuple[set[str], int]:
        """Look who else is there.

        Sockets that refused at two looks are dead, and unlinked; one look is not enough,
        because a socket appears a moment before it listens.

        Returns:
            The resources (`resource_hash`) of which something changed, and how many dead
            sockets were removed.
        """
        if self._stamp() != self._listed_at:
            self.read()
        sockets: dict[str, dict[str, str]] = {}  # by instance: name -> resource
        for resource, names in self._listed.items():
            for name, instance in names.items():
                sockets.setdefault(instance, {})[name] = resource
        others: dict[str, set[str]] = {}
        refused: set[str] = set()
        for instance, resources in sockets.items():
            answers = {}
            for name in resources:
                answers[name] = connected(self._directory / name)
                if answers[name] in _CANNOT_ASK:
                    return set(), 0  # what was known stays
                if answers[name] == 0:
                    for resource in resources.values():
                        others.setdefault(resource, set()).add(instance)
                    break
            else:
                refused.update(one for one, why in answers.items() if why == errno.ECONNREFUSED)
        removed = self._remove(refused & self._refused)
        self._refused = refused - self._refused  # for the first time
        before, self._others = self._others, others
        resources_seen = before.keys() | others.keys()
        return {one for one in resources_seen if before.get(one) != others.get(one)}, removed

    def _remove(self, names: set[str]) -> int:
        removed = 0
        for name in names:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()
                removed += 1
        return removed

    def speaking(self, resource: str) -> set[str]:
        """Look who else, of those that were there at the last `read`, serves a resource.

        Returns:
            The sockets of older instances that have not said that they are quiet.
        """
        key = resource_hash(resource)
        living = {
            name: instance
            for name, instance in self._listed.get(key, {}).items()
            if connected(self._directory / name) == 0
        }
        self._others.pop(key, None)
        if living:
            self._others[key] = set(living.values())
        return {name for name, one in living.items() if one < self.own and self.speaks(name)}

    def serves(self, sha256: str) -> bool:
        """Whether any living instance serves a resource, told the SHA-256 of its name in hex."""
        prefix = f"{PREFIX}{sha256[:_HASH_LENGTH]}-"
        return any(
            connected(self._directory / name) == 0
            for name in self._names()
            if name.startswith(prefix) and _NAME.fullmatch(name)
        )

    def speaks(self, name: str) -> bool:
        """Whether the owner of a socket lives and has not said that it is quiet."""
        path = self._directory / name
        try:
            quiet = path.stat().st_mode & stat.S_ISVTX
        except OSError:
            return False
        return not quiet and connected(path) == 0

    def mark_quiet(self, name: str) -> None:
        """Say on an own socket that it sends no more lists: others read its sticky bit."""
        path = self._directory / name
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | stat.S_ISVTX)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)  # noqa: PTH208 (names are all that is wanted)
        except OSError:
            return []


def connected(path: str | Path) -> int:
    """Try whether somebody listens on a socket; never waits.

    Returns:
        0, or the error's number; `errno.ECONNREFUSED` for a dead one.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            answer = probe.connect_ex(str(path))
    except OSError as error:
        return error.errno or errno.EIO
    return 0 if answer == errno.EAGAIN else answer  # EAGAIN: its queue is full


@functools.lru_cache(maxsize=4096)
def resource_hash(resource: str) -> str:
    """Return what stands for a resource in a socket's name."""
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]
