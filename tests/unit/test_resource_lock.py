"""One instance at a time has the lock of a resource."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from devhost.backends.deviceplugin.plugin_sockets import (
    fresh_name,
    link_socket,
    path_length_problem,
    remove_dead_sockets,
    server_socket,
)
from devhost.backends.resource_lock import (
    LOCKS,
    ResourceLock,
    ResourceLocks,
    publisher_number,
    resource_hash,
)
from devhost.watch.inotify import Inotify

T, U, V = "example.com/t", "example.com/u", "example.com/v"


def file_of(directory: Path, resource: str) -> Path:
    return directory / LOCKS / f"{resource_hash(resource)}.lock"


def lock_of(directory: Path, resource: str = T) -> ResourceLock:
    return ResourceLock(directory, resource_hash(resource))


def test_resource_lock_passes_on_when_released(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("")
    assert first.acquire(""), "it has it already"
    assert not second.acquire("")
    assert (first.other_publisher, second.other_publisher) == (None, 0)
    assert lock_of(tmp_path, U).acquire("")
    first.release()
    assert second.other_publisher is None
    assert second.acquire("")


def test_asking_for_a_lock_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    lock, asking, ended = lock_of(tmp_path), lock_of(tmp_path), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            _ = asking.other_publisher

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(2000):
            assert lock.acquire("")
            lock.release()
    finally:
        ended.set()
        thread.join()


def test_fifo_in_place_of_a_lock_file_is_a_lock(tmp_path: Path) -> None:
    """To open it does not wait for a writer."""
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("")
    (path,) = (tmp_path / "devhost-locks").iterdir()
    first.release()
    path.unlink()
    os.mkfifo(path)
    assert first.acquire("")
    assert second.other_publisher == 0
    assert not second.acquire("")


def test_lock_file_goes_with_what_it_stood_for(tmp_path: Path) -> None:
    """A waiting process takes the next file: never two have the lock."""
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("")
    first.release()
    path = file_of(tmp_path, T)
    assert path.exists()
    assert first.acquire("")
    first.release(remove=True)
    assert not path.exists()
    assert second.acquire("")
    assert not first.acquire("")


def test_lock_says_by_what_the_resource_is_published(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("gpu.example.com")
    assert not second.acquire("")
    assert second.other_publisher == publisher_number("gpu.example.com")
    assert first.acquire(""), "the other backend goes on in this process"
    assert second.other_publisher == publisher_number("") == 0


def test_who_waits_for_a_lock_makes_no_event_for_who_waits(tmp_path: Path) -> None:
    """Else two that wait would wake each other without end."""
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("")
    assert not second.acquire("")
    inotify = Inotify()
    inotify.add(str(tmp_path / LOCKS), writes=False, closes=True)
    assert not second.acquire("")
    assert second.other_publisher == 0
    assert inotify.read() == []
    first.release()
    assert [event.name for event in inotify.read()] == [file_of(tmp_path, T).name]
    inotify.close()


@pytest.mark.parametrize("place", ["", "/{}.lock"])
def test_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, place: str) -> None:
    lock, elsewhere = lock_of(tmp_path), tmp_path / "elsewhere"
    path = tmp_path / (LOCKS + place.format(resource_hash(T)))
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(elsewhere)
    if not place:
        elsewhere.mkdir()
    with pytest.raises(OSError, match=r": devhost-locks or a file in it is a link"):
        lock.acquire("")
    assert not elsewhere.exists() or not [*elsewhere.iterdir()]


def test_directory_and_files_of_locks_are_for_nobody_else(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        assert lock_of(tmp_path).acquire("")
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / LOCKS, file_of(tmp_path, T))]
    assert modes == [0o700, 0o600]


def test_dead_sockets_of_every_resource_are_removed(tmp_path: Path) -> None:
    """Kubelet's own stay, those of this process, and of a resource that another one serves."""
    token = "0" * 8

    def made(resource: str) -> list[Path]:
        names = [fresh_name(resource), server_socket(resource)]
        parts = [name.rsplit("-", 2) for name in names]
        return [tmp_path / f"{before}-{token}-{after}" for before, _, after in parts]

    locks = ResourceLocks(tmp_path)
    held, elsewhere = locks.get(T), lock_of(tmp_path, V)
    assert held.acquire("")
    assert elsewhere.acquire("")
    dead = made(T) + made(U)
    kept = [*made(V), tmp_path / fresh_name(T), tmp_path / server_socket(T)]
    kept += [tmp_path / "kubelet.sock", tmp_path / "devhost-of-somebody.sock"]
    for path in dead + kept:
        path.touch()
    remove_dead_sockets(locks)
    assert [path for path in dead if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []


def test_resource_lock_whose_file_was_removed_is_lost(tmp_path: Path) -> None:
    """Else two would have the lock, each of another file."""
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.acquire("")
    shutil.rmtree(tmp_path / "devhost-locks")
    assert second.acquire("")
    assert not first.acquire("")
    second.release()
    assert first.acquire("")


def test_resource_lock_without_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot make a lock in .*/gone: No such file or directory"):
        ResourceLock(tmp_path / "gone", resource_hash(T)).acquire("")


def test_linked_socket_has_a_fresh_name_until_the_end(tmp_path: Path) -> None:
    """A failure has one text, not another one for each name."""
    (tmp_path / "server").touch()
    names = set()
    for _ in range(2):
        with link_socket(tmp_path, "server", T) as name:
            assert (tmp_path / name).samefile(tmp_path / "server")
        names.add(name)
        assert not (tmp_path / name).exists()
    assert len(names) == 2
    with pytest.raises(
        OSError, match=r"^cannot make a socket in [^:]*: No such file or directory$"
    ):
        link_socket(tmp_path, "none", T).__enter__()


def test_plugin_directory_path_too_long_is_a_problem() -> None:
    room = 107 - len(f"/{server_socket(T)}") - 5
    assert path_length_problem(Path("/" + "x" * (room - 3))) is None
    assert "is too long" in str(path_length_problem(Path("/" + "x" * room)))
