"""The kernel's events of devices."""

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost.watch.uevents import Uevents

NULL: Final = Path("/sys/devices/virtual/mem/null/uevent")
KERNEL: Final = (0, 1)


def message(action: str = "add", subsystem: str = "usb") -> bytes:
    return f"{action}@/devices/x\0ACTION={action}\0DEVPATH=/devices/x\0SUBSYSTEM={subsystem}\0".encode()


class FakeSocket:
    """Gives what is put in, and wakes the reader by a pair of real sockets."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair(type=socket.SOCK_DGRAM)
        self._here.setblocking(False)
        self.pending: list[tuple[bytes, tuple[int, int]] | OSError] = []

    def send(self, *messages: bytes | OSError, sender: tuple[int, int] = KERNEL) -> None:
        self.pending += [(m, sender) if isinstance(m, bytes) else m for m in messages]
        self._there.send(b"x")

    def fileno(self) -> int:
        return self._here.fileno()

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.pending:
            with contextlib.suppress(BlockingIOError):
                self._here.recv(1)
            raise BlockingIOError
        datagram = self.pending.pop(0)
        if isinstance(datagram, OSError):
            raise datagram
        return datagram

    def close(self) -> None:
        self._here.close()
        self._there.close()


@pytest.fixture
def fake() -> Iterator[FakeSocket]:
    fake_socket = FakeSocket()
    yield fake_socket
    fake_socket.close()


async def all_read(fake: FakeSocket) -> None:
    """Wait until nothing is pending any more."""
    while fake.pending:
        await asyncio.sleep(0.001)


class Calls:
    """Counts calls."""

    def __init__(self) -> None:
        self.count, self._event = 0, asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    async def next(self) -> None:
        await asyncio.wait_for(self._event.wait(), 60)
        self._event.clear()


async def test_uevent_calls_once_the_subscribers_of_its_subsystem(fake: FakeSocket) -> None:
    opened: list[FakeSocket] = []
    events = Uevents(lambda: opened.append(fake) or fake)  # type: ignore[arg-type,return-value,func-returns-value]
    usb, pci = Calls(), Calls()
    assert not opened
    events.subscribe(frozenset({"usb", "tty"}), usb)
    events.subscribe(frozenset({"pci"}), pci)
    assert opened == [fake]
    fake.send(*[message("add", "tty")] * 300)
    await usb.next()
    assert (usb.count, pci.count, fake.pending) == (1, 0, [])
    events.unsubscribe(usb)
    events.unsubscribe(pci)
    assert fake.fileno() == -1  # as nobody is interested any more


async def test_uevent_malformed_or_not_from_the_kernel_calls_nobody(fake: FakeSocket) -> None:
    events, usb = Uevents(lambda: fake), Calls()  # type: ignore[arg-type,return-value]
    events.subscribe(frozenset({"usb"}), usb)
    fake.send(b"", b"add", b"add@", b"\xff" * 8192, b"add@/x", b"add@/x\0SUBSYSTEM")
    fake.send(b"libudev\0\xfe\xed\xca\xfe", message("change"), message("offer"))
    fake.send(message(), sender=(4711, 1))  # a process's
    await all_read(fake)
    assert usb.count == 0
    fake.send(message("remove"))
    await usb.next()
    events.close()


async def test_uevent_overrun_calls_all(fake: FakeSocket) -> None:
    events, usb, pci = Uevents(lambda: fake), Calls(), Calls()  # type: ignore[arg-type,return-value]
    events.subscribe(frozenset({"usb"}), usb)
    events.subscribe(frozenset({"pci"}), pci)
    fake.send(OSError(errno.ENOBUFS, "No buffer space available"), message("add", "usb"))
    await usb.next()
    await pci.next()
    assert (usb.count, pci.count, events.overruns) == (1, 1, 1)
    events.close()


async def test_uevents_try_again(fake: FakeSocket, caplog: pytest.LogCaptureFixture) -> None:
    left: list[FakeSocket] = []

    def connect() -> FakeSocket:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        return left.pop()

    events, usb = Uevents(connect), Calls()  # type: ignore[arg-type]
    events.subscribe(frozenset({"usb"}), usb)
    events.subscribe(frozenset({"pci"}), Calls())
    events.open()
    assert events.polling_reason == "no socket for device events: Too many open files"
    (record,) = caplog.records
    assert "polling instead" in record.getMessage()
    left.append(fake)
    for _ in range(2):
        events.open()
        assert not events.polling_reason
    fake.send(message())
    await usb.next()
    events.close()


real = pytest.mark.skipif(
    not os.access(NULL, os.W_OK), reason="sysfs is read-only, or a user namespace gets no events"
)


@real
async def test_uevent_of_the_real_kernel_arrives_and_a_change_does_not() -> None:
    events, mem = Uevents(), Calls()
    events.subscribe(frozenset({"mem"}), mem)
    NULL.write_text("change")
    NULL.write_text("add")
    await mem.next()
    assert mem.count == 1
    events.close()


HEARS: Final = """
from devhost.watch.uevents import open_socket
found = open_socket()
found.setblocking(True)
print("ready", flush=True)
found.recv(8192)
"""


@real
def test_uevents_are_heard_in_a_network_namespace() -> None:
    """A pod has a network namespace, too, and no privileges."""
    sandbox = ("unshare", "-n", "setpriv", "--reuid=65534", "--clear-groups")
    listener = subprocess.Popen(
        [*sandbox, sys.executable, "-c", HEARS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listener.stdout is not None
    try:
        if listener.stdout.readline() != b"ready\n":
            _, reason = listener.communicate(timeout=60)
            assert b"unshare" in reason or b"setpriv" in reason or b"Permission" in reason, reason
            pytest.skip(reason.decode())
        NULL.write_text("add")
        assert listener.wait(60) == 0
    finally:
        listener.kill()
        listener.communicate()
