"""Registration, lists, reloads and Allocate: what must happen between devhost and a kubelet."""

import asyncio
from pathlib import Path

import pytest

from devhost.backends.deviceplugin.servicer import Servicer
from devhost.fake_kubelet.kubelet import AdmissionError
from devhost.model.resource_state import State
from tests.support.daemon import tokens, until
from tests.support.hosting import Hosting, Kubelet, contract

A, B, C = "example.com/a", "example.com/b", "example.com/c"
COLA = "myway5.com/cola"


def cola(directory: Path, extra: str = "") -> str:
    return f"""
version: v1
resources:
  - name: {COLA}
    sources: [directory: {directory}/colas]
    allocate:
      env: {{COLA_DEVICES: "${{id}}"}}
{extra}
"""


@contract
async def test_list_follows_hotplug(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    hosting.start(cola(directory))
    await started.wait(COLA, 0, 0)
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    await started.wait(COLA, 2, 2)
    (directory / "colas" / "a").unlink()
    await started.wait(COLA, 2, 1)
    (directory / "colas" / "a").touch()
    await started.wait(COLA, 2, 2)


@contract
async def test_allocate_natural_order(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    for name in ("a", "b", "c10", "c9"):
        (directory / "colas" / name).touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 4, 4)
    answer = (await started.admit("one", {"app": {COLA: 1}}))["app"]
    three = (await started.admit("three", {"app": {COLA: 3}}))["app"]
    assert answer["envs"] == {"COLA_DEVICES": answer["deviceIds"][COLA][0]}
    ids = answer["deviceIds"][COLA] + three["deviceIds"][COLA]
    assert sorted(ids) == ["a", "b", "c10", "c9"]
    natural = sorted(three["deviceIds"][COLA], key=["a", "b", "c9", "c10"].index)
    assert three["envs"] == {"COLA_DEVICES": ",".join(natural)}
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await started.admit("more", {"app": {COLA: 1}})
    await started.free("three")
    all_again = (await started.admit("again", {"app": {COLA: 3}}))["app"]
    assert all_again["envs"] == three["envs"]


@contract
async def test_restart_on_fresh_socket(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """devhost registers the devices that came while kubelet was away and its socket dead."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)
    before = set(hosting.plugins.glob("devhost-*.sock"))
    await started.restart()
    await started.wait(COLA, 1, 1)
    await started.kill()
    assert (hosting.plugins / "kubelet.sock").is_socket()
    (directory / "colas" / "b").touch()
    await started.start()
    await started.wait(COLA, 2, 2)
    assert before.isdisjoint(hosting.plugins.glob("devhost-*.sock")), "a socket name came again"
    await started.admit("pod", {"app": {COLA: 1}})


@contract
async def test_restart_keeps_devices(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """A stopped host leaves no socket and no allocatable; a new one takes over, pods keep theirs."""
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 2, 2)
    held = (await started.admit("pod", {"app": {COLA: 1}}))["app"]
    await hosting.stop()
    assert not list(hosting.plugins.glob("devhost-*.sock"))
    await started.wait(COLA, 2, 0)
    hosting.start(cola(directory))
    await started.wait(COLA, 2, 2)
    second = (await started.admit("pod-2", {"app": {COLA: 1}}))["app"]
    assert held["deviceIds"] != second["deviceIds"]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ended: list[str] = []
    listen = Servicer.ListAndWatch

    async def noting(self: Servicer, request: object, context: object) -> None:
        try:
            await listen(self, request, context)  # type: ignore[arg-type]
        finally:
            ended.append(self._handler.name)

    monkeypatch.setattr(Servicer, "ListAndWatch", noting)
    return ended


@contract
async def test_reload_keeps_sockets_and_streams_of_what_is_unchanged(
    started: Kubelet, hosting: Hosting, streams: list[str], may_leave: asyncio.Event
) -> None:
    """One is added, one removed, one changed: of the others no stream ends, no socket changes."""
    hosting.start(tokens(a=1, b=2, c=3))
    for name, count in ((A, 1), (B, 2), (C, 3)):
        await started.wait(name, count, count)
    before = inodes(hosting)
    hosting.reload(tokens(a=1, b=5, d=4))
    await started.wait(B, 5, 5)
    await started.wait("example.com/d", 4, 4)
    await started.wait(C, 3, 0)
    may_leave.set()
    await started.wait(C, 0, 0)
    await until(lambda: hosting.served(C) is None, "its end")
    assert streams == [C]
    assert len(before.items() & inodes(hosting).items()) == 2
    assert len(inodes(hosting)) == 3
    assert (await started.capacity())[A] == (1, 1)


def inodes(hosting: Hosting) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in hosting.plugins.glob("devhost-*.sock")}


@contract
async def test_reload_that_adds_a_draining_resource_keeps_its_stream(
    started: Kubelet, hosting: Hosting, streams: list[str], may_leave: asyncio.Event
) -> None:
    """The same stream goes on, and its devices are healthy again."""
    hosting.start(tokens(a=2, b=2))
    await started.wait(B, 2, 2)
    hosting.reload(tokens(a=2))
    await started.wait(B, 2, 0)
    assert hosting.status(B).state is State.DRAINING
    hosting.reload(tokens(a=2, b=2))
    await started.wait(B, 2, 2)
    assert hosting.status(B).state is State.REGISTERED
    assert streams == []
