"""Socket names, and the other instances of devhost on the same plugin directory.

There are two instances during a surge update, or while the pod of one does not end. Kubelet sends
Allocate to the one that registered last (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/devicemanager/manager.go, PluginConnected) and takes lists from both, so they have
to agree which of them is active for a resource: of those that answer, the one that started last.
The others are on standby: they send no lists and allocate nothing.

The name of a socket says which instance owns it. Its mode says what the owner does with it; who
may connect does not depend on that:

- Executable: not registered yet, as a fresh socket is. (The set-user-ID bit would be plainer, but
  hardened systemd units may not set it.)
- Sticky: its owner is on standby. An instance sets it on its own socket when it gives way, and
  an instance that registers sets it on the sockets of those that do not answer, which find it when
  they continue.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from devhost.kubelet.channel import CANNOT_ASK, connect_error

PREFIX: Final = "devhost-"
_HASH_LENGTH: Final = 12
_NAME: Final = re.compile(rf"{PREFIX}([0-9a-f]{{12}})-([0-9a-f]{{20}})-[0-9]+\.sock")
_SAME_TIME_NS: Final = 100_000_000  # the kernel's clock for files goes in ticks
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its terminating zero
REGISTER_WITHIN_S: Final = 20.0  # longer than a newer instance waits for kubelet
_UNREGISTERED: Final = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_STANDBY: Final = stat.S_ISVTX


def new_instance() -> str:
    """Return an ID that sorts after those of all instances that started before on this host.

    The time since boot is the same in all containers, and is never set back.
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
    """The socket names of this instance, and which other instances are alive.

    Attributes:
        own: The ID of this instance.
        answers: Returns whether an instance answers; ``None`` while that is not known.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.answers: Callable[[str], bool | None] = lambda _: True
        self.own = new_instance()
        self._serial = itertools.count(1)
        # As of the last `read_directory`; a resource is known by its hash.
        self._listed: dict[str, dict[str, str]] = {}  # resource -> socket of another -> instance
        self._own_listed: dict[str, str] = {}  # own socket -> resource
        self._listed_version: object = None  # of the directory
        self._own_superseded: set[str] = set()
        self._refused: set[str] = set()  # connections, at the last `check_all`
        # Resource -> living sockets of others -> whether this instance has to give way to it.
        self._others: dict[str, dict[str, bool]] = {}
        self._answering_since: dict[str, float] = {}  # sockets of newer instances
        self._registered: set[str] = set()  # sockets of newer instances
        self._superseded: set[str] = set()  # sockets that this instance has marked

    def fresh_name(self, resource: str) -> str:
        """Return a socket name that no server had before.

        Kubelet's directory leaves 75 bytes of a socket path's 107, so the resource is hashed. A
        path that was registered once must not be used again: since 1.37 kubelet refuses a path
        that it takes as connected, and the refusal hides the end of that connection
        (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go, PluginConnected, and
        plugin/v1beta1/handler.go, deregisterClient).
        """
        return f"{PREFIX}{resource_hash(resource)}-{self.own}-{next(self._serial)}.sock"

    def may_be_other(self, name: str) -> bool:
        """Whether a file name may be that of another instance's socket."""
        return name.startswith(PREFIX) and self.own not in name

    def newer(self, resource: str) -> bool:
        """Whether an instance that started after this one serves a resource, or is about to."""
        return any(self._others.get(resource_hash(resource), {}).values())

    def older(self, resource: str) -> frozenset[str]:
        """Return the instances that started before this one and have a socket for a resource."""
        others = map(_instance, self._others.get(resource_hash(resource), ()))
        return frozenset(other for other in others if other < self.own)

    def listed(self, resource: str | None = None) -> set[str]:
        """Return the instances with a socket, for one resource or any, in the directory as read."""
        keys = self._listed if resource is None else (resource_hash(resource),)
        return {instance for key in keys for instance in self._listed.get(key, {}).values()}

    def sockets_of(self, instance: str) -> list[Path]:
        """Return the sockets of an instance in the directory as read."""
        names = (name for names in self._listed.values() for name in names)
        return [self._directory / name for name in names if _instance(name) == instance]

    @property
    def alone(self) -> bool:
        """Whether there is no other instance."""
        return not self._others

    @property
    def has_refused(self) -> bool:
        """Whether there are sockets that refused a connection once."""
        return bool(self._refused)

    def read_directory(self) -> None:
        """Read the names in the directory; what checks one resource or all uses these."""
        version = self._directory_version()
        try:
            found = self._names()
        except OSError:  # as of `CANNOT_ASK`: what is known is kept, and it is read again
            self._listed_version = object()
            return
        self._listed, self._own_listed = {}, {}
        for name in found:
            if parts := _NAME.fullmatch(name):
                resource, instance = parts.groups()
                if instance == self.own:
                    self._own_listed[name] = resource
                else:
                    self._listed.setdefault(resource, {})[name] = instance
        self._listed_version = version

    def _directory_version(self) -> object:
        """Return a value that differs after a change of the directory, or a unique one."""
        try:
            found = self._directory.stat()
        except OSError:
            return object()
        if abs(time.time_ns() - found.st_mtime_ns) < _SAME_TIME_NS:
            return object()  # another change may get the same time
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def check_all(self) -> tuple[set[str], int]:
        """Find out which other instances are there.

        Sockets that refuse a connection at two checks are dead, and unlinked. One check is not
        enough, because a socket appears a moment before its owner listens.

        Returns:
            The resources (`resource_hash`) for which something changed, and how many dead
            sockets were removed.
        """
        if self._directory_version() != self._listed_version:
            self.read_directory()
        sockets: dict[str, dict[str, str]] = {}  # by instance: name -> resource
        for resource, names in self._listed.items():
            for name, instance in names.items():
                sockets.setdefault(instance, {})[name] = resource
        others: dict[str, dict[str, bool]] = {}
        refused: set[str] = set()
        for resources in sockets.values():
            answers = {}
            for name in resources:
                answers[name] = connect_error(self._path(name))
                if answers[name] in CANNOT_ASK:
                    return set(), 0  # keep what is known
                if answers[name] == 0:
                    for one, resource in resources.items():
                        others.setdefault(resource, {})[one] = self._takes_precedence(one)
                    break
            else:
                refused.update(one for one, why in answers.items() if why == errno.ECONNREFUSED)
        removed = self._remove(refused & self._refused)
        self._refused = refused - self._refused  # for the first time
        self._forget(kept={name for names in others.values() for name in names})
        before, self._others = self._others, others
        resources_seen = before.keys() | others.keys()
        changed = {one for one in resources_seen if before.get(one) != others.get(one)}
        if resources_seen:  # one of the instances may have marked sockets of this one
            changed |= self._newly_superseded()
        return changed, removed

    def _newly_superseded(self) -> set[str]:
        """Return the resources whose own sockets were marked since the last time."""
        names, before = self._own_listed, self._own_superseded
        self._own_superseded = {one for one in names if is_standby(self._path(one))}
        return {names[one] for one in self._own_superseded - before}

    def _remove(self, names: set[str]) -> int:
        removed = 0
        for name in names:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()
                removed += 1
        return removed

    def _forget(self, kept: set[str]) -> None:
        self._registered &= kept
        self._superseded &= kept
        for name in self._answering_since.keys() - kept:
            del self._answering_since[name]

    def check(self, resource: str) -> None:
        """Find out which other instances, of the directory as read, serve a resource."""
        key = resource_hash(resource)
        living = {
            name: self._takes_precedence(name)
            for name in self._listed.get(key, ())
            if connect_error(self._path(name)) == 0
        }
        self._others.pop(key, None)
        if living:
            self._others[key] = living

    def _takes_precedence(self, name: str) -> bool:
        """Whether this instance has to give way to the owner of a socket.

        The owner has to be newer, but not of the future, to answer, and to have registered the
        socket, or to do so within `REGISTER_WITHIN_S`.
        """
        instance = _instance(name)
        if instance < self.own or name in self._superseded or instance > new_instance():
            return False  # one of the future is none of devhost
        if not self.answers(instance):
            self._answering_since.pop(name, None)
            return False
        if name in self._registered:
            return True
        now = time.monotonic()
        if now - self._answering_since.setdefault(name, now) < REGISTER_WITHIN_S:
            return True
        if is_registered(self._path(name)):
            self._registered.add(name)
        return name in self._registered

    def active_older(self, resource: str) -> set[str]:
        """Return the sockets of older instances that are neither on standby nor unresponsive."""
        self.check(resource)
        return {
            name
            for name in self._others.get(resource_hash(resource), ())
            if _instance(name) < self.own
            and self.answers(_instance(name)) is not False
            and not is_standby(self._path(name))
        }

    def supersede(self, resource: str) -> None:
        """Mark the sockets of the other instances, so that only this one serves a resource.

        Those that answer are on standby by now (`active_older`, `newer`). An instance that was
        not asked yet is left alone: it has not registered, and will wait for this one.
        """
        for name in self._others.get(resource_hash(resource), ()):
            if self.answers(_instance(name)) is not None:
                mark_standby(self._path(name))
                self._superseded.add(name)

    def serves(self, sha256: str) -> bool:
        """Whether any living instance serves the resource whose name has this SHA-256 in hex.

        Raises:
            OSError: The directory cannot be read.
        """
        prefix = f"{PREFIX}{sha256[:_HASH_LENGTH]}-"
        return any(
            connect_error(self._path(name)) == 0
            for name in self._names()
            if name.startswith(prefix) and _NAME.fullmatch(name)
        )

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"  # for thousands per check; a Path costs more

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)  # noqa: PTH208 (names are all that is wanted)
        except (FileNotFoundError, NotADirectoryError):
            return []


def is_registered(path: str | Path) -> bool:
    """Whether the owner of a socket has registered it."""
    mode = _mode(path)
    return mode is not None and not mode & _UNREGISTERED


def is_standby(path: str | Path) -> bool:
    """Whether the owner of a socket is on standby, or has to be."""
    return bool((_mode(path) or 0) & _STANDBY)


def mark_registered(path: str | Path) -> None:
    """Mark a socket, if it exists, as registered."""
    _change_mode(path, clear=_UNREGISTERED)


def mark_standby(path: str | Path) -> None:
    """Mark a socket, if it exists, so that its owner is on standby."""
    _change_mode(path, put=_STANDBY)


def _mode(path: str | Path) -> int | None:
    try:
        return os.stat(path).st_mode  # asked often; Path.stat costs more
    except OSError:
        return None


def _change_mode(path: str | Path, *, put: int = 0, clear: int = 0) -> None:
    mode = _mode(path)
    if mode is not None:
        with contextlib.suppress(OSError):
            Path(path).chmod(mode & ~clear | put)


def _instance(name: str) -> str:
    """Return the instance that owns a socket."""
    return name.rsplit("-", 2)[1]


@functools.lru_cache(maxsize=4096)
def resource_hash(resource: str) -> str:
    """Return how the names of sockets identify a resource."""
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]
