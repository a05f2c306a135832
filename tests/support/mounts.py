"""Filesystems that misbehave: one that never answers, a full one, one that cannot be written."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
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
    """Mount a filesystem.

    Raises:
        OSError: It cannot be.
    """
    _mount(source, target, kind, 0, data)


def unmount(target: Path) -> None:
    """Unmount it immediately from where it is seen, though somebody may be using it."""
    _LIBC.umount2(str(target).encode(), _MNT_DETACH)


class HungMount:
    """A FUSE mount that nobody answers: who touches it waits until `end`.

    Nothing in the test may touch it meanwhile.
    """

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
    """Mount a filesystem that never answers; at the end it is unmounted."""
    mount = HungMount(place, options)
    try:
        yield mount
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
    """Mount a filesystem of its own."""
    with mounted("tmpfs", place, options):
        yield


@contextlib.contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    """Mount a directory over another."""
    try:
        _mount(str(source), place, None, _MS_BIND)
    except OSError as error:
        pytest.skip(f"cannot mount: {error}")
    try:
        yield
    finally:
        unmount(place)


def read_only(place: Path, *, on: bool) -> None:
    """Remount a filesystem so that it cannot be written, or can again."""
    _mount("tmpfs", place, None, _MS_REMOUNT | (_MS_RDONLY if on else 0))
