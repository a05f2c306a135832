"""A filesystem as a server has it: others change it, and of that the kernel tells nothing.

The protocol is that of Linux's include/uapi/linux/fuse.h, in its version 7.22.
"""

import contextlib
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import mount, unmount

_UNANSWERED = (2, 36, 42)  # FUSE_FORGET, FUSE_INTERRUPT, FUSE_BATCH_FORGET
_REQUEST, _ANSWER = struct.Struct("IIQQIIII"), struct.Struct("IiQ")
_ATTRIBUTES, _ENTRY = struct.Struct("6Q3I7I"), struct.Struct("QQQQII")
_TOP = 1


class RemoteDirectory:
    """A directory of empty files.

    Attributes:
        names: Its files; who changes them gives it another modification time, too.
        modified: That time, in seconds.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.names: list[str] = []
        self.modified = int(time.time()) - 1000

    def change(self, *names: str) -> None:
        """Have other files, as from another machine."""
        self.names, self.modified = list(names), self.modified + 1

    def serve(self) -> None:
        """Answer the kernel until it is unmounted."""
        while True:
            try:
                request = os.read(self._descriptor, 128 * 1024)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            _, code, unique, node, *_ = _REQUEST.unpack_from(request)
            if code in _UNANSWERED:
                continue
            try:
                data, number = self._answer(code, node, request[_REQUEST.size :]), 0
            except OSError as error:
                data, number = b"", error.errno or 0
            answer = _ANSWER.pack(_ANSWER.size + len(data), -number, unique) + data
            with contextlib.suppress(OSError):  # the program that asked has gone
                os.write(self._descriptor, answer)

    def _answer(self, code: int, node: int, body: bytes) -> bytes:
        match code:
            case 26:  # FUSE_INIT
                return struct.pack("IIIIHHI", 7, 22, 0, 0, 0, 0, 4096)
            case 3:  # FUSE_GETATTR
                return struct.pack("QII", 0, 0, 0) + self._attributes(node)
            case 1:  # FUSE_LOOKUP
                name = body.rstrip(b"\0").decode()
                if name not in self.names:
                    raise OSError(errno.ENOENT, name)
                found = _TOP + 1 + self.names.index(name)
                return _ENTRY.pack(found, 0, 0, 0, 0, 0) + self._attributes(found)
            case 27:  # FUSE_OPENDIR
                return struct.pack("QII", 0, 0, 0)
            case 28:  # FUSE_READDIR
                (offset,) = struct.unpack_from("Q", body, 8)
                return b"".join(self._entries()[offset:])
            case 29:  # FUSE_RELEASEDIR
                return b""
            case _:
                raise OSError(errno.ENOSYS, str(code))

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _TOP else stat.S_IFREG | 0o644
        times = [self.modified] * 3
        return _ATTRIBUTES.pack(node, 0, 0, *times, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _entries(self) -> list[bytes]:
        found = []
        for number, name in enumerate(self.names):
            raw = name.encode()
            head = struct.pack("QQII", _TOP + 1 + number, number + 1, len(raw), stat.S_IFREG >> 12)
            found.append((head + raw).ljust(-(-(len(head) + len(raw)) // 8) * 8, b"\0"))
        return found


@contextlib.contextmanager
def remote_directory(place: Path) -> Iterator[RemoteDirectory]:
    """Mount a directory that is changed behind the kernel's back."""
    place.mkdir(exist_ok=True)
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE: {error}")
    served = RemoteDirectory(descriptor)
    serving = threading.Thread(target=served.serve, name="fuse", daemon=True)
    try:
        try:
            mount("remote", place, "fuse", f"fd={descriptor},rootmode=40000,user_id=0,group_id=0")
        except OSError as error:
            pytest.skip(f"no FUSE: {error}")
        serving.start()
        try:
            yield served
        finally:
            unmount(place)
            serving.join(10)
    finally:
        os.close(descriptor)
