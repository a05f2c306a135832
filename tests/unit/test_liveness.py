"""Whether other instances answer, and what follows for who serves a resource."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.kubelet import instances, liveness
from devhost.kubelet.instances import (
    Instances,
    is_standby,
    mark_registered,
    mark_standby,
    resource_hash,
)
from devhost.kubelet.liveness import Liveness
from tests.support.overlap import options_server

T = "example.com/t"


class Scene:
    """An instance that may answer, on several sockets, and one that wants to know."""

    def __init__(self) -> None:
        self.own, self.other = Instances(Path()), Instances(Path())
        self.asked = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.names: list[str] = []
        self.changes = 0
        self.liveness = Liveness(self.own.sockets_of, self._changed)
        self.own.answers = self.liveness.answers

    def _changed(self) -> None:
        self.changes += 1

    async def answer(self) -> None:
        """Be asked, and answer when it is time."""
        self.asked += 1
        await self.go_on.wait()

    def remove(self, names: list[str]) -> None:
        """Unlink sockets."""
        for name in names:
            Path(name).unlink()

    async def probed(self) -> bool | None:
        """Probe once; return whether the other one answers."""
        self.own.check_all()
        self.liveness.probe(self.own.listed())
        for probe in tuple(self.liveness._probes.values()):
            await probe
        self.own.check_all()
        return self.liveness.answers(self.other.own)


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """A newer instance with sockets for twenty resources."""
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    monkeypatch.setattr(liveness, "_INTERVAL_S", 0.0)
    scene = Scene()
    server = options_server(scene.answer)
    for number in range(20):
        scene.names.append(scene.other.fresh_name(f"example.com/{number}" if number else T))
        server.add_insecure_port(f"unix:{scene.names[-1]}")
    await server.start()
    yield scene
    scene.go_on.set()
    await scene.liveness.close()
    await server.stop(None)


async def test_an_instance_is_asked_once_for_all_its_resources(scene: Scene) -> None:
    """A thousand resources are one call."""
    assert await scene.probed() is True
    assert scene.asked == 1
    assert scene.changes == 1
    assert await scene.probed() is True
    assert scene.asked == 2
    assert scene.changes == 1, "nothing is new"


async def test_one_that_does_not_answer_is_asked_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it never has: the first time this process itself may have been stopped meanwhile."""
    monkeypatch.setattr(liveness, "ANSWER_TIMEOUT_S", 1.0)
    scene.go_on.clear()
    assert await scene.probed() is False
    assert scene.asked == 1
    assert not scene.own.newer(T)
    scene.go_on.set()
    assert await scene.probed() is True
    assert scene.own.newer(T)
    scene.go_on.clear()
    assert await scene.probed() is False
    assert scene.asked == 4
    assert not scene.own.newer(T)


async def test_one_that_never_accepts_does_not_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel completes a connect without it."""
    monkeypatch.setattr(liveness, "ANSWER_TIMEOUT_S", 1.0)
    third = Instances(Path())
    with socket.socket(socket.AF_UNIX) as sick:
        sick.bind(third.fresh_name(T))
        sick.listen(100)
        await scene.probed()
        assert scene.liveness.answers(third.own) is False
        assert scene.liveness.answers(scene.other.own) is True


async def test_one_that_has_gone_is_forgotten(scene: Scene) -> None:
    """It is neither sick nor well."""
    assert await scene.probed() is True
    scene.remove(scene.names)
    assert await scene.probed() is None


async def test_a_socket_that_is_replaced_meanwhile_says_nothing(scene: Scene) -> None:
    """Each registration has a fresh one; the probe goes on with another."""
    scene.own.read_directory()
    scene.remove(scene.names[:-1])
    probing = asyncio.create_task(scene.liveness.until_known({scene.other.own}))
    await asyncio.sleep(0)
    scene.own.read_directory()
    await probing
    assert scene.liveness.answers(scene.other.own) is True


async def test_a_newer_one_has_to_register_in_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is given way to no more, until it has."""
    await scene.probed()
    assert scene.own.newer(T)
    monkeypatch.setattr(instances, "REGISTER_WITHIN_S", 0.0)
    assert scene.own.check_all()[0], "it has changed"
    assert not scene.own.newer(T)
    mark_registered(Path(scene.names[0]))
    scene.own.check_all()
    assert scene.own.newer(T)
    assert not scene.own.newer("example.com/1")


async def test_one_that_was_silenced_has_to_come_again(scene: Scene) -> None:
    """Its socket is marked, for itself and for others to see; a fresh one counts."""
    await scene.probed()
    scene.own.supersede(T)
    scene.own.check_all()
    assert is_standby(Path(scene.names[0]))
    assert not scene.own.newer(T)
    assert scene.own.newer("example.com/1"), "each resource on its own"
    fresh = scene.other.fresh_name(T)
    os.link(scene.names[1], fresh)
    scene.own.check_all()
    assert scene.own.newer(T)


async def test_one_that_is_silenced_finds_it_at_its_next_look(scene: Scene) -> None:
    """Once, and also when the one that did it has gone."""
    alone = "example.com/alone"
    name = scene.own.fresh_name(alone)
    os.link(scene.names[1], name)
    scene.own.check_all()
    mark_standby(Path(name))
    scene.remove(scene.names)
    assert resource_hash(alone) in scene.own.check_all()[0]
    assert scene.own.check_all()[0] == set()


async def test_who_is_not_known_yet_is_not_silenced(scene: Scene) -> None:
    """It has not registered, and will wait for this one."""
    scene.own.check_all()
    assert scene.liveness.answers(scene.other.own) is None
    assert not scene.own.newer(T)
    scene.own.supersede(T)
    assert not is_standby(Path(scene.names[0]))


async def test_who_cannot_be_asked_does_not_fail_to_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no descriptor left for a probe, what was known stays."""
    monkeypatch.setattr(liveness, "ANSWER_TIMEOUT_S", 1.0)
    assert await scene.probed() is True
    scene.go_on.clear()
    with monkeypatch.context() as without:
        without.setattr(liveness, "connect_error", lambda _: errno.EMFILE)
        assert await scene.probed() is True
    assert await scene.probed() is False
