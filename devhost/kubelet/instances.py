"""Socket names, and the other instances of devhost on the same plugin directory.

Two instances meet in a surge update, or beside a pod that does not want to end. The kubelet
hands Allocate to the one that registered last and takes lists from both, so they must agree
who serves a resource: of those that answer, the one that started last. A socket's name says
whose it is, and its mode (`devhost.kubelet.marks`) what its owner does with it.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from devhost.kubelet import marks

PREFIX: Final = "devhost-"
_HASH_LENGTH: Final = 12
_NAME: Final = re.compile(rf"{PREFIX}([0-9a-f]{{12}})-([0-9a-f]{{20}})-[0-9]+\.sock")
_SAME_TIME_NS: Final = 100_000_000  # the kernel's clock for files goes in ticks
CANNOT_ASK: Final = (errno.EMFILE, errno.ENFILE)
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its end
REGISTER_WITHIN_S: Final = 20.0  # longer than a newer instance waits for the kubelet


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
        answers: Tells whether an instance answers, ``None`` while that is not known.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.answers: Callable[[str], bool | None] = lambda _: True
        self.own = new_instance()
        self._serial = itertools.count(1)
        self._listed: dict[str, dict[str, str]] = {}  # names of others: by resource, to instance
        self._own_listed: dict[str, str] = {}  # own names, to resource
        self._own_silent: set[str] = set()
        self._listed_at: object = None  # what the directory was then, if that tells a change
        self._refused: set[str] = set()
        # Living sockets of others by resource (its hash), and whether to give way to them.
        self._others: dict[str, dict[str, bool]] = {}
        self._answering_since: dict[str, float] = {}  # sockets of newer instances
        self._registered: set[str] = set()
        self._silenced: set[str] = set()  # by this instance

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
        """Whether an instance that started after this one serves a resource, or is about to."""
        return any(self._others.get(resource_hash(resource), {}).values())

    def older(self, resource: str) -> frozenset[str]:
        """Return the instances that started before this one and have a socket for a resource."""
        others = map(_instance, self._others.get(resource_hash(resource), ()))
        return frozenset(other for other in others if other < self.own)

    def present(self, resource: str | None = None) -> set[str]:
        """Return the instances that had a socket, for a resource or any, at the last `read`."""
        keys = self._listed if resource is None else (resource_hash(resource),)
        return {instance for key in keys for instance in self._listed.get(key, {}).values()}

    def sockets(self, instance: str) -> list[Path]:
        """Return the sockets that an instance had at the last `read`."""
        names = (name for names in self._listed.values() for name in names)
        return [self._directory / name for name in names if _instance(name) == instance]

    @property
    def alone(self) -> bool:
        """Whether there is no other instance."""
        return not self._others

    @property
    def in_doubt(self) -> bool:
        """Whether there are sockets that refused once."""
        return bool(self._refused)

    def read(self) -> None:
        """Read the directory: all that looks, at one resource or at all, goes by the last time."""
        stamp = self._stamp()
        self._listed, self._own_listed = {}, {}
        for name in self._names():
            if parts := _NAME.fullmatch(name):
                resource, instance = parts.groups()
                if instance == self.own:
                    self._own_listed[name] = resource
                else:
                    self._listed.setdefault(resource, {})[name] = instance
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
        others: dict[str, dict[str, bool]] = {}
        refused: set[str] = set()
        for resources in sockets.values():
            answers = {}
            for name in resources:
                answers[name] = connected(self._path(name))
                if answers[name] in CANNOT_ASK:
                    return set(), 0  # what was known stays
                if answers[name] == 0:
                    for one, resource in resources.items():
                        others.setdefault(resource, {})[one] = self._leads(one)
                    break
            else:
                refused.update(one for one, why in answers.items() if why == errno.ECONNREFUSED)
        removed = self._remove(refused & self._refused)
        self._refused = refused - self._refused  # for the first time
        self._forget(kept={name for names in others.values() for name in names})
        before, self._others = self._others, others
        resources_seen = before.keys() | others.keys()
        changed = {one for one in resources_seen if before.get(one) != others.get(one)}
        if resources_seen:  # one of those may have marked own sockets
            changed |= self._newly_silent()
        return changed, removed

    def _newly_silent(self) -> set[str]:
        """Look which own sockets were marked since the last time; return their resources."""
        names, before = self._own_listed, self._own_silent
        self._own_silent = {one for one in names if marks.silent(self._path(one))}
        return {names[one] for one in self._own_silent - before}

    def _remove(self, names: set[str]) -> int:
        removed = 0
        for name in names:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()
                removed += 1
        return removed

    def _forget(self, kept: set[str]) -> None:
        self._registered &= kept
        self._silenced &= kept
        for name in self._answering_since.keys() - kept:
            del self._answering_since[name]

    def look_at(self, resource: str) -> None:
        """Look who else, of those that were there at the last `read`, serves a resource."""
        key = resource_hash(resource)
        living = {
            name: self._leads(name)
            for name in self._listed.get(key, ())
            if connected(self._path(name)) == 0
        }
        self._others.pop(key, None)
        if living:
            self._others[key] = living

    def _leads(self, name: str) -> bool:
        """Whether to give way to the owner of a socket.

        It has to be newer, to answer, and to have registered the socket or to do so soon.
        """
        instance = _instance(name)
        if instance < self.own or name in self._silenced:
            return False
        if not self.answers(instance):
            self._answering_since.pop(name, None)
            return False
        if name in self._registered:
            return True
        now = time.monotonic()
        if now - self._answering_since.setdefault(name, now) < REGISTER_WITHIN_S:
            return True
        if marks.registered(self._path(name)):
            self._registered.add(name)
        return name in self._registered

    def speaking(self, resource: str) -> set[str]:
        """Return the sockets of older instances that may send lists and hand out devices.

        Those that have gone, have said that they give way, or do not answer may not.
        """
        self.look_at(resource)
        return {
            name
            for name in self._others.get(resource_hash(resource), ())
            if _instance(name) < self.own
            and self.answers(_instance(name)) is not False
            and not marks.silent(self._path(name))
        }

    def silence(self, resource: str) -> None:
        """Mark the sockets of the other instances, so that this one serves a resource alone.

        Who has to be waited for has been (`speaking`, `newer`). One of which it is not known
        yet whether it answers is left: it has not registered, and will wait for this one.
        """
        for name in self._others.get(resource_hash(resource), ()):
            if self.answers(_instance(name)) is not None:
                marks.set_silent(self._path(name))
                self._silenced.add(name)

    def serves(self, sha256: str) -> bool:
        """Whether any living instance serves a resource, told the SHA-256 of its name in hex."""
        prefix = f"{PREFIX}{sha256[:_HASH_LENGTH]}-"
        return any(
            connected(self._path(name)) == 0
            for name in self._names()
            if name.startswith(prefix) and _NAME.fullmatch(name)
        )

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"  # for thousands at a look, where a Path costs more

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


def _instance(name: str) -> str:
    """Return whose socket that is."""
    return name.rsplit("-", 2)[1]


@functools.lru_cache(maxsize=4096)
def resource_hash(resource: str) -> str:
    """Return what stands for a resource in a socket's name."""
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]
