"""The kubelet.sock that is used, and why it cannot be connected to."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.backends.deviceplugin import directory as directory_module
from devhost.backends.deviceplugin.directory import KUBELET_SOCKET, KubeletSocket


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeletSocket:
    """The current directory, with or without a kubelet.sock."""
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    return KubeletSocket(Path())


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Listen on a fresh socket, as a kubelet does that starts."""
    Path(KUBELET_SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(KUBELET_SOCKET)
        listener.listen()
        yield


def test_kubelet_problem_says_why(kubelet: KubeletSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has to know whether it is away or whether it may not be reached."""
    assert kubelet.kubelet_problem() == "no kubelet: kubelet.sock is not there"
    with listening():
        assert kubelet.kubelet_problem() is None
    assert kubelet.kubelet_problem() == "no kubelet: nobody listens on kubelet.sock"
    gone = KubeletSocket(Path("gone"))
    assert gone.kubelet_problem() == "no kubelet: gone is not there"
    monkeypatch.setattr(directory_module, "connect_error", lambda _: errno.EACCES)
    says = "no kubelet: cannot connect to kubelet.sock: Permission denied"
    assert kubelet.kubelet_problem() == says
