"""Where sockets outlive a kubelet that starts."""

import asyncio
import socket
from pathlib import Path

import pytest

from devhost.kubelet.flag import Flag
from devhost.kubelet.instances import connected, new_instance
from devhost.kubelet.shelter import Shelter


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a socket's path is at most 107 bytes long."""
    monkeypatch.chdir(tmp_path)
    place = Path("p")
    place.mkdir()
    return place


def test_a_name_made_later_leads_to_the_same_socket(plugins: Path) -> None:
    """Whatever has removed the first."""
    shelter = Shelter(plugins, new_instance())
    with socket.socket(socket.AF_UNIX) as own:
        own.bind("p/a.sock")
        own.listen()
        kept = shelter.keep(plugins / "a.sock")
        assert kept is not None
        (plugins / "a.sock").unlink()
        (plugins / "b.sock").hardlink_to(kept)
        assert connected(plugins / "b.sock") == 0
    shelter.close()
    assert [path.name for path in plugins.iterdir()] == ["b.sock"]


def test_those_of_the_dead_are_removed(plugins: Path) -> None:
    """And nothing else that may lie there: who lives holds a lock."""
    (plugins / "a.sock").touch()
    dead, living, own = (Shelter(plugins, new_instance()) for _ in range(3))
    for one in (dead, living, own):
        one.keep(plugins / "a.sock")
    dead._unlock()  # what the kernel does when a process ends
    for other in ("devhost", "devhost-state", "devhost-0123456789abcdef012"):
        (plugins / other).mkdir()
    kept = {path for path in plugins.iterdir() if path != dead._path}
    own.remove_dead()
    assert set(plugins.iterdir()) == kept
    living.close()
    own.close()


def test_a_plugin_directory_that_is_made_anew(plugins: Path) -> None:
    """While there is none, or not the thing itself, nothing is kept; then it is made there too."""
    shelter = Shelter(plugins, new_instance())
    (plugins / "a.sock").touch()
    assert shelter.keep(plugins / "a.sock") is not None
    plugins.rename("moved")
    shelter.remove_dead()
    assert shelter.keep(plugins / "a.sock") is None
    plugins.mkdir()
    (plugins / "a.sock").touch()
    assert shelter.keep(plugins / "a.sock") is not None
    shelter.close()
    assert [path.name for path in plugins.iterdir()] == ["a.sock"]


async def test_all_who_wait_for_a_flag_go_on() -> None:
    """One that has been given up meanwhile harms nobody; who comes later waits for the next."""
    flag = Flag()
    given_up, *waiting = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    given_up.cancel()
    flag.set()
    await asyncio.gather(*waiting)
    await flag.wait()
    flag.clear()
    late = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    assert not late.done()
    flag.set()
    await late
