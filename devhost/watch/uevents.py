"""The kernel's events of devices: one netlink socket, without udev and without privileges.

An event says that a device of a subsystem came, went or was bound to a driver; its receiver reads
the devices again.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from devhost.errors import describe_os_error

_NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL_GROUP: Final = 1
_RECEIVE_BUFFER: Final = 1 << 20  # an event takes 832 bytes; the default holds 256
_MESSAGE_MAX: Final = 8192
_MESSAGES_MAX: Final = 1000  # in one turn of the event loop
_ACTIONS: Final = frozenset({b"add", b"remove", b"bind", b"unbind", b"move", b"online", b"offline"})
_LOG: Final = logging.getLogger(__name__)


def open_socket() -> socket.socket:
    """Return a socket that receives the kernel's events; raise `OSError` where there are none."""
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    netlink = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
    try:
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        netlink.bind((0, _KERNEL_GROUP))
    except OSError:
        netlink.close()
        raise
    return netlink


def subsystem_of(message: bytes) -> str | None:
    """Return the subsystem of an event that may matter; ``None`` for any other event."""
    header, *fields = message.split(b"\0")
    action, at, _ = header.partition(b"@")
    if not at or action not in _ACTIONS:
        return None
    for field in fields:
        if field.startswith(b"SUBSYSTEM="):
            return field.removeprefix(b"SUBSYSTEM=").decode("utf-8", "replace")
    return None


class Uevents:
    """The kernel's events, for all subscribers; without subscribers there is no socket.

    `polling_reason` says why no events arrive, `overruns` how often some were lost.
    """

    def __init__(self, connect: Callable[[], socket.socket] = open_socket) -> None:
        self._connect = connect
        self._socket: socket.socket | None = None
        self._subscribers: dict[Callable[[], None], frozenset[str]] = {}
        self.polling_reason: str | None = None
        self.overruns = 0

    def subscribe(self, subsystems: frozenset[str], changed: Callable[[], None]) -> None:
        """Add a function that is called when devices of these subsystems may have changed."""
        self._subscribers[changed] = subsystems
        if self.polling_reason is None:
            self.open()

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        """Remove a function; with the last of them, close the socket."""
        self._subscribers.pop(changed, None)
        if not self._subscribers:
            self.close()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def open(self) -> None:
        """Open the socket, if there is none; `polling_reason` says why that fails."""
        if self._socket is not None:
            return
        before, self.polling_reason = self.polling_reason, None
        try:
            self._socket = self._connect()
        except OSError as error:
            self.polling_reason = f"no socket for device events: {describe_os_error(error)}"
            if self.polling_reason != before:
                _LOG.warning("device events unavailable, polling instead: %s", self.polling_reason)
        else:
            asyncio.get_running_loop().add_reader(self._socket, self._read, self._socket)

    def _read(self, source: socket.socket) -> None:
        """Read the events that have arrived, and call the subscribers that they concern."""
        concerned: set[str] = set()
        overrun = False
        for _ in range(_MESSAGES_MAX):
            try:
                message, sender = source.recvfrom(_MESSAGE_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True  # events while the buffer was full are lost; the rest is read
                self.overruns += 1
                continue
            if sender == (0, _KERNEL_GROUP) and (subsystem := subsystem_of(message)) is not None:
                concerned.add(subsystem)
        for changed, subsystems in list(self._subscribers.items()):
            if overrun or not subsystems.isdisjoint(concerned):
                changed()
