"""Live reload: what an edit of the file changes, and what it leaves alone."""

import asyncio
from pathlib import Path

import pytest

from devhost.kubelet import servicer
from devhost.model.config import Resource
from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError
from tests.host.reloading import A, B, C, reloading, tokens
from tests.support.hosting import Kubelet, contract


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ends of ListAndWatch calls, by resource."""
    ended: list[str] = []
    listen = servicer.Servicer.ListAndWatch

    async def noting(self: servicer.Servicer, request: object, context: object) -> None:
        try:
            await listen(self, request, context)  # type: ignore[arg-type]
        finally:
            ended.append(self._answers.name)

    monkeypatch.setattr(servicer.Servicer, "ListAndWatch", noting)
    return ended


@contract
async def test_reload_keeps_sockets_and_streams_of_what_is_unchanged(
    started: Kubelet, directory: Path, streams: list[str], may_leave: asyncio.Event
) -> None:
    """One is added, one removed, one changed: of the others no stream ends, no socket changes."""
    async with reloading(directory, tokens(a=1, b=2, c=3)) as running:
        for name, count in ((A, 1), (B, 2), (C, 3)):
            await started.wait(name, count, count)
        before = running.sockets()
        running.config.write_text(tokens(a=1, b=5, d=4))
        await started.wait(B, 5, 5)
        await started.wait("example.com/d", 4, 4)
        await started.wait(C, 3, 0)
        may_leave.set()
        await started.wait(C, 0, 0)
        await running.ended(C)
        assert streams == [C]
        after = running.sockets()
        assert len(before.items() & after.items()) == 2
        assert len(after) == 3
        assert (await started.capacity())[A] == (1, 1)


@contract
async def test_reload_that_adds_a_draining_resource_keeps_its_stream(
    started: Kubelet, directory: Path, streams: list[str], may_leave: asyncio.Event
) -> None:
    """It goes on with the same stream, and its devices are healthy again."""
    async with reloading(directory, tokens(a=2)) as running:
        running.config.write_text(tokens(a=2, b=2))
        await started.wait(B, 2, 2)
        running.config.write_text(tokens(a=2))
        await started.wait(B, 2, 0)
        assert running.runner(B).status.state is State.DRAINING
        running.config.write_text(tokens(a=2, b=2))
        await started.wait(B, 2, 2)
        assert running.runner(B).status.state is State.REGISTERED
        assert streams == []


@contract
async def test_reload_that_changes_ids_waits_until_the_old_ones_left(
    started: Kubelet, directory: Path, streams: list[str], may_leave: asyncio.Event
) -> None:
    """A device that is shared from now on is not handed out under both IDs."""
    (directory / "colas" / "x").touch()
    text = f"""
version: v1
resources: [{{name: {A}, sources: [directory: {directory}/colas], replicas: 1}}]
"""
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        running.config.write_text(text.replace("replicas: 1", "replicas: 3"))
        await started.wait(A, 4, 0)
        with pytest.raises(AdmissionError):
            await started.admit("pod", {"app": {A: 1}})
        may_leave.set()
        await started.wait(A, 3, 3)
        may_leave.clear()
        running.config.write_text(text)
        await started.wait(A, 4, 0)
        may_leave.set()
        await started.wait(A, 1, 1)
        assert streams == []


@contract
async def test_reload_that_renames_a_resource_waits_until_the_old_one_left(
    started: Kubelet, directory: Path, may_leave: asyncio.Event
) -> None:
    """Its devices stay unhealthy until they have left the other resource's list."""
    (directory / "colas" / "x").touch()
    text = f"version: v1\nresources: [{{name: {A}, sources: [directory: {directory}/colas]}}]\n"
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        running.config.write_text(text.replace(A, B))
        await started.wait(B, 1, 0)
        await started.wait(A, 1, 0)
        may_leave.set()
        await started.wait(B, 1, 1)
        await started.wait(A, 0, 0)


async def test_a_state_directory_that_cannot_be_written_heals(
    started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, nothing else suffers, and it heals by itself."""
    monkeypatch.setattr("devhost.host.config_source.RETRY_MAX_S", 0.05)
    (directory / "state").write_text("a file where the directory should be")
    async with reloading(directory, tokens(a=1)) as running:
        await started.wait(A, 1, 1)
        while running.source.unsaved is None:
            await asyncio.sleep(0.005)
        (directory / "state").unlink()
        while running.source.unsaved is not None:
            await asyncio.sleep(0.005)
        assert running.last_good.read() == running.config.read_bytes()


@contract
async def test_reload_that_adds_prestart_registers_again(
    started: Kubelet, directory: Path, streams: list[str]
) -> None:
    """The kubelet asks for the options once a registration."""
    async with reloading(directory, tokens(a=1, b=1)) as running:
        await started.wait(A, 1, 1)
        await started.wait(B, 1, 1)
        config = running.host._config
        assert config is not None
        step = {"waitFor": "/", "every": "start"}
        resources = [
            Resource.model_validate({"name": A, "sources": [{"static": 1}], "preStart": [step]})
            if one.name == A
            else one
            for one in config.resources
        ]
        before = running.runner(A).status.since
        running.host.apply(config.model_copy(update={"resources": tuple(resources)}))
        while (status := running.runner(A).status).since == before or (
            status.state is not State.REGISTERED
        ):
            await asyncio.sleep(0.005)
        await started.wait(A, 1, 1)
        assert streams == [A]
        await admitted_at_last(started, A)


async def admitted_at_last(kubelet: Kubelet, resource: str) -> None:
    """Admit a pod; a kubelet up to 1.36 may end a new connection with the old one, later on."""
    while True:
        await kubelet.wait(resource, 1, 1)
        try:
            await kubelet.admit("pod", {"app": {resource: 1}})
        except AdmissionError as error:
            if "has been stopped" not in str(error):
                raise
        else:
            return
