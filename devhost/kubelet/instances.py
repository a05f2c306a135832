"""Socket names, and the other instances of devhost on the same plugin directory.

Two instances meet in a surge update, or beside a pod that does not want to end. The kubelet
hands Allocate to the one that registered last and takes lists from both, so they must agree
who speaks: the one that started last. A socket's name says whose it is; whether its owner
lives, only a connect tells.
"""

import contextlib
import errno
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
    """This instance's socket names, and which others live."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = new_instance()
        self._serial = itertools.count(1)
        self._refused: set[str] = set()
        self._others: dict[str, set[str]] = {}  # instances by resource (its hash)

    def fresh_name(self, resource: str) -> str:
        """Return a socket name that no server had before.

        The kubelet's directory leaves 75 bytes of a socket path's 107, so the resource is
        hashed. A path that was registered once must not be used again: kubelet 1.37 would
        refuse it for good (k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
        """
        return f"{PREFIX}{_hash(resource)}-{self._own}-{next(self._serial)}.sock"

    def newer(self, resource: str) -> bool:
        """Whether an instance that started after this one serves a resource."""
        return any(other > self._own for other in self._others.get(_hash(resource), ()))

    def older(self, resource: str) -> frozenset[str]:
        """Return the instances that started before this one and serve a resource."""
        others = self._others.get(_hash(resource), set())
        return frozenset(other for other in others if other < self._own)

    @property
    def alone(self) -> bool:
        """Whether no other instance lives."""
        return not self._others

    @property
    def in_doubt(self) -> bool:
        """Whether there are sockets that refused once."""
        return bool(self._refused)

    def look(self) -> tuple[bool, int]:
        """Look who else is there.

        Sockets that refused at two looks are dead, and unlinked; one look is not enough,
        because a socket appears a moment before it listens.

        Returns:
            Whether something changed, and how many dead sockets were removed.
        """
        sockets: dict[str, dict[str, str]] = {}  # by instance: name -> resource
        for name in self._names():
            if (parts := _NAME.fullmatch(name)) and parts[2] != self._own:
                sockets.setdefault(parts[2], {})[name] = parts[1]
        others: dict[str, set[str]] = {}
        refused: set[str] = set()  # for the first time
        removed = 0
        for instance, names in sockets.items():
            answers = [connected(self._directory / name) for name in names]
            if 0 in answers:
                for resource in names.values():
                    others.setdefault(resource, set()).add(instance)
                continue
            dead = {
                name
                for name, answer in zip(names, answers, strict=True)
                if answer == errno.ECONNREFUSED
            }
            refused |= dead - self._refused
            for name in self._refused & dead:
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()
                    removed += 1
        changed, self._others = others != self._others, others
        self._refused = refused
        return changed, removed

    def speaking(self, resource: str) -> set[str]:
        """Look who else serves a resource at this very moment.

        Returns:
            The sockets of older instances that have not said that they are quiet.
        """
        prefix = f"{PREFIX}{_hash(resource)}-"
        found = [_NAME.fullmatch(name) for name in self._names() if name.startswith(prefix)]
        living = {
            parts[0]: parts[2]
            for parts in found
            if parts and parts[2] != self._own and connected(self._directory / parts[0]) == 0
        }
        self._others.pop(_hash(resource), None)
        if living:
            self._others[_hash(resource)] = set(living.values())
        return {name for name, one in living.items() if one < self._own and self.speaks(name)}

    def serves(self, resource_hash: str) -> bool:
        """Whether any living instance serves a resource, told the SHA-256 of its name in hex."""
        prefix = f"{PREFIX}{resource_hash[:_HASH_LENGTH]}-"
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


def connected(path: Path) -> int:
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


def _hash(resource: str) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]
