"""One instance at a time has the lock of a resource."""

import shutil
from pathlib import Path

import pytest

from devhost.kubelet.resource_lock import (
    ResourceLock,
    fresh_name,
    linked,
    path_length_problem,
    server_socket,
)

T, U = "example.com/t", "example.com/u"


def test_resource_lock_passes_on_when_released(tmp_path: Path) -> None:
    first, second = ResourceLock(tmp_path, T), ResourceLock(tmp_path, T)
    assert first.acquire()
    assert first.acquire(), "it has it already"
    assert not second.acquire()
    assert (first.elsewhere, second.elsewhere) == (False, True)
    assert ResourceLock(tmp_path, U).acquire()
    first.release()
    assert not second.elsewhere
    assert second.acquire()


def test_resource_lock_removes_dead_sockets_of_the_resource(tmp_path: Path) -> None:
    """Kubelet's own, and those of other resources, stay."""
    dead, server, other, kubelet = (
        tmp_path / name for name in (fresh_name(T), server_socket(T), fresh_name(U), "kubelet.sock")
    )
    server.parent.mkdir()
    for path in (dead, server, other, kubelet):
        path.touch()
    first, second = ResourceLock(tmp_path, T), ResourceLock(tmp_path, T)
    assert first.acquire()
    assert not dead.exists()
    assert not server.exists()
    dead.touch()
    assert not second.acquire()
    assert dead.exists()
    assert other.exists()
    assert kubelet.exists()


def test_resource_lock_whose_file_was_removed_is_lost(tmp_path: Path) -> None:
    """Else two would have the lock, each of another file."""
    first, second = ResourceLock(tmp_path, T), ResourceLock(tmp_path, T)
    assert first.acquire()
    shutil.rmtree(tmp_path / "devhost-locks")
    assert second.acquire()
    assert not first.acquire()
    second.release()
    assert first.acquire()


def test_resource_lock_without_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot make a lock in .*/gone: No such file or directory"):
        ResourceLock(tmp_path / "gone", T).acquire()


def test_linked_socket_has_a_fresh_name_until_the_end(tmp_path: Path) -> None:
    """What fails has one text, not another one for each name."""
    (tmp_path / "server").touch()
    names = set()
    for _ in range(2):
        with linked(tmp_path, "server", T) as name:
            assert (tmp_path / name).samefile(tmp_path / "server")
        names.add(name)
        assert not (tmp_path / name).exists()
    assert len(names) == 2
    with pytest.raises(
        OSError, match=r"^cannot make a socket in [^:]*: No such file or directory$"
    ):
        linked(tmp_path, "none", T).__enter__()


def test_plugin_directory_path_too_long_is_a_problem() -> None:
    room = 107 - len(f"/{server_socket(T)}") - 5
    assert path_length_problem(Path("/" + "x" * (room - 3))) is None
    assert "is too long" in str(path_length_problem(Path("/" + "x" * room)))
