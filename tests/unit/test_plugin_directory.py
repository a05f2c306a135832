"""Why the kubelet.sock that is used cannot be connected to."""

import errno
import socket
from pathlib import Path

import pytest

from devhost.backends.deviceplugin import kubelet_socket
from devhost.backends.deviceplugin.kubelet_socket import KUBELET_SOCKET, KubeletSocket


def test_kubelet_problem_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has to know whether it is away or whether it may not be reached."""
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    kubelet = KubeletSocket(Path())
    assert kubelet.kubelet_problem() == "no kubelet: kubelet.sock is not there"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(KUBELET_SOCKET)
        listener.listen()
        assert kubelet.kubelet_problem() is None
    assert kubelet.kubelet_problem() == "no kubelet: nobody listens on kubelet.sock"
    gone = KubeletSocket(Path("gone"))
    assert gone.kubelet_problem() == "no kubelet: gone is not there"
    monkeypatch.setattr(kubelet_socket, "connect_error", lambda _: errno.EACCES)
    says = "no kubelet: cannot connect to kubelet.sock: Permission denied"
    assert kubelet.kubelet_problem() == says
