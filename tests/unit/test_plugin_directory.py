"""What a thousand resources share at the plugin directory."""

import asyncio
import time
from pathlib import Path

import pytest

from devhost.kubelet import instances
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.instances import Instances

T, U = "example.com/t", "example.com/u"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What each reading of the directory saw."""
    seen: list[set[str]] = []
    names = Instances._names

    def noting(self: Instances) -> list[str]:
        found = names(self)
        seen.append(set(found))
        return found

    monkeypatch.setattr(Instances, "_names", noting)
    return seen


async def test_a_reading_serves_all_who_asked_before_it_began(
    tmp_path: Path, reads: list[set[str]]
) -> None:
    """And nobody who asks later: each has made its socket before it asks."""
    directory = PluginDirectory(tmp_path)

    async def ask(number: int) -> bool:
        (tmp_path / str(number)).touch()
        before = len(reads)
        await directory.read()
        return any(str(number) in seen for seen in reads[before:])

    asked = []
    for number in range(30):
        asked.append(asyncio.create_task(ask(number)))
        if number % 10 == 9:
            await asyncio.sleep(0)
    assert all(await asyncio.gather(*asked))
    assert len(reads) <= 4
    await directory.close()


async def test_a_reading_that_takes_long_holds_up_the_next_one_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registrations wait for that."""
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr(Instances, "read_directory", lambda _: time.sleep(0.2))
    directory = PluginDirectory(tmp_path)
    await directory.read()
    assert directory._next_read <= clock() + 1.0
    await directory.close()


def test_an_unchanged_directory_is_not_read_again(
    tmp_path: Path, reads: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time tells, unless that is so young that another change may have the same."""
    own = Instances(tmp_path)
    monkeypatch.setattr(instances, "_SAME_TIME_NS", 1 << 62)
    own.check_all()
    own.check_all()
    assert len(reads) == 2
    monkeypatch.setattr(instances, "_SAME_TIME_NS", 0)
    own.check_all()
    own.check_all()
    assert len(reads) == 3
    (tmp_path / "new").touch()
    own.check_all()
    assert len(reads) == 4


async def test_only_those_are_told_whose_resource_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of kubelet.sock is everybody's, another instance's socket one resource's."""
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    directory = PluginDirectory(Path())
    told: list[str] = []
    directory.subscribe(T, lambda: told.append(T))
    directory.subscribe(U, lambda: told.append(U))
    server = await asyncio.start_unix_server(lambda *_: None, Instances(Path()).fresh_name(T))
    directory._check_instances()
    assert told == [T]
    told.clear()
    (tmp_path / "kubelet.sock").touch()
    directory.on_change("/somewhere/kubelet_internal_checkpoint")
    assert told == []
    directory.on_change("/somewhere/kubelet.sock")
    assert sorted(told) == [T, U]
    server.close()
    await server.wait_closed()
