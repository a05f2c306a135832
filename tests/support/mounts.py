"""Filesystems that misbehave: one that never answers or is slow, a full one, one that cannot be written."""

import contextlib
import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MNT_DETACH = 2


def _mount(source: str, target: Path, kind: str | None, flags: int, data: str = "") -> None:
    arguments = [
        part.encode() if part is not None else None for part in (source, str(target), kind)
    ]
    if _LIBC.mount(*arguments, flags, data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind}: {os.strerror(number)}", str(target))


def mount(source: str, target: Path, kind: str, data: str = "") -> None:
    """Mount a filesystem, or raise `OSError`."""
    _mount(source, target, kind, 0, data)


def unmount(target: Path) -> None:
    """Unmount it immediately from where it is seen, though somebody may be using it."""
    _LIBC.umount2(str(target).encode(), _MNT_DETACH)


class HungMount:
    """A FUSE mount that nobody answers: all access, by the test too, waits until `end`."""

    def __init__(self, place: Path, options: str = "") -> None:
        self._place = place
        try:
            self._descriptor = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            pytest.skip(f"no FUSE: {error}")
        data = f"fd={self._descriptor},rootmode=40000,user_id=0,group_id=0{options}"
        try:
            _mount("hung", place, "fuse", 0, data)
        except OSError as error:
            os.close(self._descriptor)
            pytest.skip(f"no FUSE: {error}")

    def abort(self) -> None:
        """Give up: who waits gets an error, and so does who comes later."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def end(self) -> None:
        """Abort and unmount."""
        self.abort()
        unmount(self._place)


@contextlib.contextmanager
def hung(place: Path, options: str = "") -> Iterator[HungMount]:
    mount = HungMount(place, options)
    try:
        yield mount
    finally:
        mount.end()


class SlowMount(HungMount):
    """A FUSE mount of a directory with files, which takes its time for each answer."""

    _INIT, _LOOKUP, _GETATTR, _OPEN, _RELEASE, _OPENDIR, _READDIR, _RELEASEDIR = (
        *(26, 1, 3, 14, 18),
        *(27, 28, 29),
    )

    def __init__(self, place: Path, names: Sequence[str], seconds: float) -> None:
        super().__init__(place)
        self._names, self._seconds = names, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        os.set_blocking(self._descriptor, False)
        while not self._ended.is_set():
            if not select.select([self._descriptor], [], [], 0.1)[0]:
                continue
            try:
                request = os.read(self._descriptor, 1 << 20)
            except OSError:  # it was interrupted, or unmounted
                continue
            _, code, unique, node = struct.unpack_from("IIQQ", request)
            if code != self._INIT:
                self._ended.wait(self._seconds)
            answer = self._answer(code, node, request[40:])
            error, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
            with contextlib.suppress(OSError):
                os.write(self._descriptor, struct.pack("IiQ", 16 + len(body), error, unique) + body)

    def _answer(self, code: int, node: int, body: bytes) -> bytes | int:
        if code == self._INIT:
            return struct.pack("IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 12, 1 << 16, 1, 0, 0, 0)
        if code == self._GETATTR:
            return struct.pack("QII", 0, 0, 0) + self._attributes(node)
        if code == self._LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self._names:
                return errno.ENOENT
            inode = 2 + self._names.index(name)
            return struct.pack("QQQQII", inode, 0, 0, 0, 0, 0) + self._attributes(inode)
        if code in (self._OPEN, self._OPENDIR):
            return bytes(16)
        if code == self._READDIR:
            return self._entries(struct.unpack_from("QQ", body)[1])
        return b"" if code in (self._RELEASE, self._RELEASEDIR) else errno.ENOSYS

    def _attributes(self, inode: int) -> bytes:
        mode = 0o40755 if inode == 1 else 0o100644
        return struct.pack(
            "QQQQQQIIIIIIIIII", inode, 0, 0, 0, 0, 0, *(0, 0, 0), mode, *[1, 0, 0, 0, 512, 0]
        )

    def _entries(self, offset: int) -> bytes:
        block = b""
        for number, name in enumerate(self._names[offset : offset + 64], offset):
            raw = name.encode()
            entry = struct.pack("QQII", 2 + number, number + 1, len(raw), 8) + raw
            block += entry + bytes(-len(entry) % 8)
        return block

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        super().end()


@contextlib.contextmanager
def slow(place: Path, names: Sequence[str], seconds: float) -> Iterator[None]:
    """Mount a directory with files that takes so long for each answer."""
    mount = SlowMount(place, names, seconds)
    try:
        yield
    finally:
        mount.end()


@contextlib.contextmanager
def mounted(kind: str, place: Path, options: str = "") -> Iterator[None]:
    """Mount a filesystem of a kind that needs no device."""
    place.mkdir(exist_ok=True)
    try:
        _mount(kind, place, kind, 0, options)
    except OSError as error:
        pytest.skip(f"cannot mount: {error}")
    try:
        yield
    finally:
        unmount(place)


@contextlib.contextmanager
def tmpfs(place: Path, options: str = "size=1m") -> Iterator[None]:
    with mounted("tmpfs", place, options):
        yield


@contextlib.contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    try:
        _mount(str(source), place, None, _MS_BIND)
    except OSError as error:
        pytest.skip(f"cannot mount: {error}")
    try:
        yield
    finally:
        unmount(place)


def read_only(place: Path, *, on: bool) -> None:
    _mount("tmpfs", place, None, _MS_REMOUNT | (_MS_RDONLY if on else 0))
