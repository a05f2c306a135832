"""The kernel's events of devices: one netlink socket, without udev and without privileges.

An event says that something of a subsystem came, went or was bound to a driver; what is there then
is read again. The kernel drops the frequent ``change`` events before they reach this process.
"""

import asyncio
import ctypes
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

_NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL_GROUP: Final = 1
_RECEIVE_BUFFER: Final = 1 << 20  # an event takes 832 bytes; the default holds 256
_MESSAGE_MAX: Final = 8192
_MESSAGES_MAX: Final = 1000  # in one turn of the event loop
_PAUSE_S: Final = 0.1  # between two calls of a subscriber
_ACTIONS: Final = frozenset({b"add", b"remove", b"bind", b"unbind", b"move", b"online", b"offline"})
_SO_ATTACH_FILTER: Final = 26
_NS_GET_USERNS: Final = 0xB701  # linux/nsfs.h
_PROC_USER_INIT_INO: Final = 0xEFFFFFFD  # linux/proc_ns.h
# ld [0]; jeq "chan", drop; ret -1; drop: ret 0
_FILTER: Final = (
    (0x20, 0, 0, 0),
    (0x15, 1, 0, 0x6368616E),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)
_LOG: Final = logging.getLogger(__name__)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def open_socket() -> socket.socket:
    """Return a socket that receives the kernel's events.

    Raises:
        OSError: The kernel or the sandbox has none.
    """
    found = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        _NETLINK_KOBJECT_UEVENT,
    )
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        instructions = (_Instruction * len(_FILTER))(*(_Instruction(*one) for one in _FILTER))
        program = _Program(len(_FILTER), instructions)
        found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
        found.bind((0, _KERNEL_GROUP))
    except OSError:
        found.close()
        raise
    return found


def deafness() -> str | None:
    """Return why the kernel sends this process no events, if it does not.

    It sends those of devices to network namespaces that the initial user namespace owns (Linux's
    lib/kobject_uevent.c, since 4.18); in others nothing arrives, and no call fails.
    """
    try:
        descriptor = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        owner = fcntl.ioctl(descriptor, _NS_GET_USERNS)
    except OSError:  # EPERM: it is further up
        return None
    finally:
        os.close(descriptor)
    try:
        if os.fstat(owner).st_ino == _PROC_USER_INIT_INO:
            return None
    finally:
        os.close(owner)
    return "a user namespace owns the network namespace, so the kernel sends no device events"


def subsystem_of(message: bytes) -> str | None:
    """Return the subsystem of an event that may matter; ``None`` for any other."""
    header, *fields = message.split(b"\0")
    action, at, _ = header.partition(b"@")
    if not at or action not in _ACTIONS:
        return None
    for one in fields:
        if one.startswith(b"SUBSYSTEM="):
            return one.removeprefix(b"SUBSYSTEM=").decode("utf-8", "replace")
    return None


class Interest:
    """Who is called for events of some subsystems."""

    def __init__(
        self, owner: "Uevents", subsystems: frozenset[str], changed: Callable[[], None]
    ) -> None:
        self._owner, self.subsystems, self._changed = owner, subsystems, changed
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    @property
    def degraded(self) -> str:
        """Why no events arrive, so that what is there has to be polled; else empty."""
        return self._owner.deaf or ""

    def retry(self) -> None:
        """Try again to hear of events, where none arrive."""
        self._owner.open()

    def notify(self) -> None:
        """Call now, or after a pause if that was a moment ago."""
        if self._timer is None:
            self._again = False
            self._changed()
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._rested)
        else:
            self._again = True

    def _rested(self) -> None:
        self._timer = None
        if self._again:
            self.notify()

    def close(self) -> None:
        """Call no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._owner.forget(self)


class Uevents:
    """The kernel's events, for all who are interested; without any there is no socket.

    Attributes:
        deaf: Why no events arrive, if that is so.
        overruns: How many times the kernel had more events than the socket could hold.
    """

    def __init__(self, connect: Callable[[], socket.socket] = open_socket) -> None:
        self._connect = connect
        self._socket: socket.socket | None = None
        self._interests: list[Interest] = []
        self.deaf: str | None = None
        self.overruns = 0

    def subscribe(self, subsystems: frozenset[str], changed: Callable[[], None]) -> Interest:
        """Call a function when something of these subsystems may have changed."""
        one = Interest(self, subsystems, changed)
        self._interests.append(one)
        if self.deaf is None:
            self.open()
        return one

    def forget(self, interest: Interest) -> None:
        """End a subscription; the last one closes the socket."""
        if interest in self._interests:
            self._interests.remove(interest)
        if not self._interests:
            self.close()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def open(self) -> None:
        """Open the socket, if there is none; `deaf` says why that fails."""
        if self._socket is not None:
            return
        before, self.deaf = self.deaf, deafness()
        if self.deaf is None:
            try:
                self._socket = self._connect()
            except OSError as error:
                self.deaf = f"no socket for device events: {error.strerror or error}"
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._read)
        elif self.deaf != before:
            _LOG.warning("device events unavailable, polling instead: %s", self.deaf)

    def _read(self) -> None:
        """Read what has arrived, and call those who are interested in it."""
        seen: set[str] = set()
        overrun = False
        for _ in range(_MESSAGES_MAX):
            if self._socket is None:
                break
            try:
                message, sender = self._socket.recvfrom(_MESSAGE_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True  # what came while the buffer was full is lost; the rest is read
                self.overruns += 1
                continue
            if sender == (0, _KERNEL_GROUP) and (found := subsystem_of(message)) is not None:
                seen.add(found)
        if not seen and not overrun:
            return
        for one in list(self._interests):
            if overrun or not one.subsystems.isdisjoint(seen):
                one.notify()
