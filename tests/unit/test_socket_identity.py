"""Which kubelet.sock it is, and why it cannot be connected to."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.kubelet import kubelet_socket
from devhost.kubelet.kubelet_socket import KUBELET_SOCKET, KubeletSocket


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeletSocket]:
    """What looks at a kubelet.sock in the current directory."""
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    with contextlib.closing(KubeletSocket(Path())) as kubelet:
        yield kubelet


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Listen on a fresh socket, as a kubelet does that starts."""
    Path(KUBELET_SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(KUBELET_SOCKET)
        one.listen()
        yield


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_touched_socket_is_the_same_one(kubelet: KubeletSocket) -> None:
    """Mode, owner, times and links may change: backups and relabelling do that."""
    with listening():
        identity = kubelet.identity()
        assert identity is not None
        path = Path(KUBELET_SOCKET)
        path.chmod(0o600)
        os.utime(path, (0, 0))
        os.chown(path, os.getuid(), os.getgid())
        Path("copy").hardlink_to(path)
        path.rename("moved")
        assert kubelet.identity() is None
        assert not kubelet.replaced(identity)
        Path("moved").rename(path)
        assert kubelet.identity() == identity


def test_each_kubelet_has_another_one(kubelet: KubeletSocket) -> None:
    """Although filesystems give a number that is free again to the next file."""
    seen: set[int] = set()
    for number in range(50):
        with listening():
            identity = kubelet.identity()
            assert identity is not None
            assert identity not in seen
            assert all(map(kubelet.replaced, seen)), number
            seen.add(identity)


def test_one_descriptor_is_open_at_a_time(kubelet: KubeletSocket) -> None:
    """And none in the end."""
    before = descriptors()
    for _ in range(5):
        with listening():
            kubelet.identity()
    assert descriptors() == before + 1
    kubelet.close()
    assert descriptors() == before


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_without_a_descriptor_the_number_has_to_do(
    kubelet: KubeletSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many files are open."""

    with listening():
        monkeypatch.setattr("devhost.kubelet.kubelet_socket.os.open", no_descriptor)
        identity = kubelet.identity()
        assert identity is not None
        assert kubelet.identity() == identity


def test_the_directory_was_renamed(short_path: Path) -> None:
    """Not the socket alone."""
    with contextlib.closing(KubeletSocket(short_path / "plugins")) as kubelet:
        assert kubelet.problem() == f"{short_path / 'plugins'} is not there"


def test_why_there_is_no_kubelet(kubelet: KubeletSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has to know whether it is away or whether it may not be reached."""
    assert kubelet.problem() == "kubelet.sock is not there"
    with listening():
        assert kubelet.problem() is None
    assert kubelet.problem() is None, "a connect a moment ago counts"
    kubelet.recheck()
    assert kubelet.problem() == "nobody listens on kubelet.sock"
    monkeypatch.setattr(kubelet_socket, "connect_error", lambda _: errno.EACCES)
    assert kubelet.problem() == "cannot connect to kubelet.sock: Permission denied"


def test_a_descriptor_that_is_missing_for_a_moment(
    kubelet: KubeletSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened later, or the next kubelet with the same inode would be taken for this one."""

    with listening():
        with monkeypatch.context() as short:
            short.setattr(os, "open", no_descriptor)
            identity = kubelet.identity()
        before = descriptors()
        assert kubelet.identity() == identity
        assert descriptors() == before + 1
    with listening():
        assert kubelet.identity() != identity
