"""One instance at a time has the lock of a resource."""

import shutil
from pathlib import Path

import pytest

from devhost.kubelet.resource_lock import ResourceLock, fresh_name, path_length_problem

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
    dead, other, kubelet = (
        tmp_path / fresh_name(T),
        tmp_path / fresh_name(U),
        tmp_path / "kubelet.sock",
    )
    for path in (dead, other, kubelet):
        path.touch()
    first, second = ResourceLock(tmp_path, T), ResourceLock(tmp_path, T)
    assert first.acquire()
    assert not dead.exists()
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


def test_socket_names_are_fresh() -> None:
    assert fresh_name(T) != fresh_name(T)
    assert fresh_name(T).startswith("devhost-")


def test_plugin_directory_path_too_long_is_a_problem() -> None:
    room = 107 - len(f"/{fresh_name(T)}") - 5
    assert path_length_problem(Path("/" + "x" * (room - 3))) is None
    assert "is too long" in str(path_length_problem(Path("/" + "x" * room)))
