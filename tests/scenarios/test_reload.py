"""Live reload, on the stand-in and on real device managers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.host.config_source import ConfigSource
from devhost.host.host import Host, Settings
from devhost.host.resource import ServedResource
from devhost.host.state_files import LastGood
from devhost.hostfs.files import HostFiles
from devhost.kubelet import servicer
from devhost.model.config import Resource
from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError
from tests.support.hosting import ONE_KUBELET, Kubelet, kubelet_of

A, B, C = "example.com/a", "example.com/b", "example.com/c"


def tokens(**counts: int) -> str:
    """Return a configuration with resources of so many tokens."""
    resources = "".join(
        f'\n  - {{name: "example.com/{name}", sources: [static: {count}]}}'
        for name, count in counts.items()
    )
    return f"version: v1\nresources:{resources or ' []'}\n"


class Reloading:
    """A host in this process that follows a configuration file."""

    def __init__(self, directory: Path, config: Path) -> None:
        self.directory, self.config = directory, config
        self.last_good = LastGood(directory / "state")
        self.source = ConfigSource(str(config), Policy(), self.last_good)
        loaded, copy = self.source.first()
        used = loaded.config or (copy.config if copy else None)
        assert used is not None
        settings = Settings(
            directory / "plugins", "node-1", HostFiles(), Policy(), 0.3, 0.0, assume_free=True
        )
        self.host = Host(used, settings, self.source)

    def runner(self, name: str) -> ServedResource:
        return next(one for one in self.host.resources if one.name == name)

    def sockets(self) -> dict[str, int]:
        found = (self.directory / "plugins").glob("devhost-*.sock")
        return {path.name: path.stat().st_ino for path in found}

    async def until(self, **wanted: int) -> None:
        """Wait until the status counts so many reloads or failures."""
        async with asyncio.timeout(60):
            while any(getattr(self.source.status, key) < n for key, n in wanted.items()):
                await asyncio.sleep(0.005)

    async def ended(self, name: str) -> None:
        """Wait until a drained resource is gone."""
        async with asyncio.timeout(60):
            while any(one.name == name for one in self.host.resources):
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def reloading(
    directory: Path, text: str, config: Path | None = None
) -> AsyncIterator[Reloading]:
    config = config or directory / "etc" / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    if text:
        config.write_text(text)
    running = Reloading(directory, config)
    task = asyncio.create_task(running.host.run())
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(params=[ONE_KUBELET])
def kubelet(request: pytest.FixtureRequest, directory: Path) -> Kubelet:
    """One: what an edit changes in a list is for all kubelets the same."""
    return kubelet_of(request.param, directory)


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


async def test_what_is_unchanged_keeps_its_socket_and_stream(
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


async def test_an_invalid_file_changes_nothing_and_the_next_good_one_heals(
    started: Kubelet, directory: Path, streams: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Errors are logged with their place, counted and shown; a file that is gone is one."""
    async with reloading(directory, tokens(a=1)) as running:
        await started.wait(A, 1, 1)
        running.config.write_text(tokens(a=2) + "unknown: 1\n")
        await running.until(failures=1)
        assert "config.yaml:4:1: error" in caplog.text
        assert running.source.status.problems
        running.config.unlink()
        await running.until(failures=2)
        assert "cannot be read" in str(running.source.status.problems[0])
        assert (await started.capacity())[A] == (1, 1)
        running.config.write_text(tokens(a=3))
        await started.wait(A, 3, 3)
        assert running.source.status.problems == ()
        assert streams == []


async def test_every_way_to_edit_a_file(started: Kubelet, directory: Path) -> None:
    """A ConfigMap's swap, an editor's rename, a plain write, a bent link."""
    mount = directory / "etc"
    mount.mkdir()

    def publish(version: int) -> None:
        """Do as kubelet's AtomicWriter: a new directory, and one rename of ..data."""
        fresh = mount / f"..v{version}"
        fresh.mkdir()
        (fresh / "config.yaml").write_text(tokens(a=version))
        (mount / "..data_tmp").symlink_to(fresh.name)
        (mount / "..data_tmp").rename(mount / "..data")

    publish(1)
    config = mount / "config.yaml"
    config.symlink_to("..data/config.yaml")
    link = directory / "link.yaml"
    link.symlink_to(config)
    async with reloading(directory, "", link):
        await started.wait(A, 1, 1)
        publish(2)
        await started.wait(A, 2, 2)
        publish(3)
        await started.wait(A, 3, 3)
        other = directory / "other.yaml"
        other.write_text(tokens(a=4))
        (directory / "new").symlink_to(other)
        (directory / "new").rename(link)
        await started.wait(A, 4, 4)
        other.write_text(tokens(a=5))
        await started.wait(A, 5, 5)
        (directory / "edited").write_text(tokens(a=6))
        (directory / "edited").rename(other)
        await started.wait(A, 6, 6)
        with other.open("a") as stream:
            stream.write('  - {name: "example.com/b", sources: [static: 1]}\n')
        await started.wait(B, 1, 1)


async def test_a_hundred_edits_end_in_the_last(started: Kubelet, directory: Path) -> None:
    """However fast the edits come, what is in force at the end is what the file says."""
    async with reloading(directory, tokens(a=1)) as running:
        await started.wait(A, 1, 1)
        for number in range(2, 102):
            running.config.write_text(tokens(a=number, b=number))
            await asyncio.sleep(0)
        await started.wait(A, 101, 101)
        await started.wait(B, 101, 101)


async def test_a_resource_comes_back_while_it_drains(
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


async def test_new_templates_hold_for_the_next_allocate(started: Kubelet, directory: Path) -> None:
    """The answer changes; the device, its ID and its stream do not."""
    text = """
version: v1
resources: [{name: example.com/a, sources: [static: 2], allocate: {env: {X: "VALUE"}}}]
"""
    async with reloading(directory, text.replace("VALUE", "old")) as running:
        await started.wait(A, 2, 2)
        one = await started.admit("one", {"app": {A: 1}})
        assert one["app"]["envs"] == {"X": "old"}
        running.config.write_text(text.replace("VALUE", "new"))
        await running.until(reloads=1)
        two = await started.admit("two", {"app": {A: 1}})
        assert two["app"]["envs"] == {"X": "new"}


async def test_a_reload_while_the_kubelet_is_away(started: Kubelet, directory: Path) -> None:
    """What is declared when the kubelet comes back is what it gets."""
    async with reloading(directory, tokens(a=1, b=1)) as running:
        await started.wait(A, 1, 1)
        await started.wait(B, 1, 1)
        await started.kill()
        running.config.write_text(tokens(a=2, c=1))
        await running.until(reloads=1)
        await started.start()
        await started.wait(A, 2, 2)
        await started.wait(C, 1, 1)
        await running.ended(B)
        assert len(running.sockets()) == 2


async def test_new_ids_wait_for_the_old_ones(
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


async def test_a_renamed_resource_waits_for_the_former(
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


async def test_the_next_resource_gets_the_nodes_of_one_that_is_removed(
    started: Kubelet, directory: Path
) -> None:
    both = f"""
version: v1
resources:
  - {{name: {A}, sources: [directory: {directory}/colas]}}
  - {{name: {B}, sources: [directory: {directory}/colas]}}
"""
    (directory / "colas" / "x").touch()
    async with reloading(directory, both) as running:
        await started.wait(A, 1, 1)
        await started.wait(B, 0, 0)
        running.config.write_text("".join(line for line in both.splitlines(True) if A not in line))
        await running.ended(A)
        await started.wait(B, 1, 1)


async def test_the_last_good_configuration_survives(started: Kubelet, directory: Path) -> None:
    """A node that starts with a bad edit starts from what it had before; a good edit heals it."""
    async with reloading(directory, tokens(a=1)):
        await started.wait(A, 1, 1)
    async with reloading(directory, tokens(a=2) + "oops"):
        await started.wait(A, 1, 1)
    async with reloading(directory, "") as running:
        await started.wait(A, 1, 1)
        assert running.source.status.file.endswith("last-good.yaml")
        assert running.source.status.problems
        running.config.write_text(tokens(a=3))
        await started.wait(A, 3, 3)
        assert running.source.status.file == str(running.config)
        while running.last_good.read() != running.config.read_bytes():
            await asyncio.sleep(0.005)


async def test_a_state_directory_that_cannot_be_written(
    started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, nothing else suffers, and it heals by itself."""
    monkeypatch.setattr("devhost.host.config_source.POLL_S", 0.05)
    (directory / "state").write_text("a file where the directory should be")
    async with reloading(directory, tokens(a=1)) as running:
        await started.wait(A, 1, 1)
        while running.source.unsaved is None:
            await asyncio.sleep(0.005)
        (directory / "state").unlink()
        while running.source.unsaved is not None:
            await asyncio.sleep(0.005)
        assert running.last_good.read() == running.config.read_bytes()


async def test_added_preparation_registers_anew(
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
        async with asyncio.timeout(60):
            while (status := running.runner(A).status).since == before or (
                status.state is not State.REGISTERED
            ):
                await asyncio.sleep(0.005)
        await started.wait(A, 1, 1)
        assert streams == [A]
        await admitted_at_last(started, A)


async def admitted_at_last(kubelet: Kubelet, resource: str) -> None:
    """Admit a pod; a kubelet up to 1.36 may end a new connection with the old one, later on."""
    async with asyncio.timeout(60):
        while True:
            await kubelet.wait(resource, 1, 1)
            try:
                await kubelet.admit("pod", {"app": {resource: 1}})
            except AdmissionError as error:
                if "has been stopped" not in str(error):
                    raise
            else:
                return


def test_links_on_the_way_are_watched(tmp_path: Path) -> None:
    """Each directory in which the file, or a link that leads to it, may be exchanged."""
    from devhost.host.config_source import _watch_targets

    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "c.yaml").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "c.yaml").symlink_to("../current/c.yaml")
    (tmp_path / "current").symlink_to("v1")
    found = {one.path for one in _watch_targets(str(tmp_path / "etc" / "c.yaml"))}
    assert found == {str(tmp_path / "etc"), str(tmp_path), str(tmp_path / "v1")}
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert str(tmp_path) in {one.path for one in _watch_targets(str(loop))}


async def test_a_new_id_comes_when_the_old_one_has_left(
    started: Kubelet, directory: Path, may_leave: asyncio.Event
) -> None:
    """It does not wait for the next look at the host, which may be half a minute away."""
    (directory / "colas" / "x").touch()
    text = f"""
version: v1
resources: [{{name: {A}, sources: [directory: {directory}/colas], id: "${{name}}"}}]
"""
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        running.config.write_text(text.replace('"${name}"', '"new-${name}"'))
        await started.wait(A, 2, 0)
        may_leave.set()
        await started.wait(A, 1, 1)


async def test_a_new_id_comes_also_when_something_else_happens(
    started: Kubelet, directory: Path, may_leave: asyncio.Event
) -> None:
    """An event at the moment at which the old ID leaves does not hide that it has left."""
    (directory / "colas" / "x").touch()
    text = f"""
version: v1
resources: [{{name: {A}, sources: [directory: {directory}/colas], id: "${{name}}"}}]
"""
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        running.config.write_text(text.replace('"${name}"', '"new-${name}"'))
        await started.wait(A, 2, 0)
        may_leave.set()
        while running.runner(A).published.device_list.leaving:
            running.runner(A).trigger_scan()
            await asyncio.sleep(0.005)
        await started.wait(A, 1, 1)


async def test_an_id_that_the_kubelet_never_had_is_not_waited_for(
    kubelet: Kubelet, directory: Path
) -> None:
    """A reload before the first registration: there is no list that the old ID has to leave."""
    (directory / "colas" / "x").touch()
    text = f"""
version: v1
resources: [{{name: {A}, sources: [directory: {directory}/colas], id: "${{name}}"}}]
"""
    async with reloading(directory, text) as running:
        async with asyncio.timeout(60):
            while not running.host.resources or not running.runner(A).snapshot.devices:
                await asyncio.sleep(0.005)
        running.config.write_text(text.replace('"${name}"', '"new-${name}"'))
        await running.until(reloads=1)
        await kubelet.start()
        await kubelet.wait(A, 1, 1)
        await kubelet.stop()


@pytest.mark.parametrize("edit", ['id: "new-${name}"', "replicas: 2"])
async def test_new_ids_within_a_limit(
    started: Kubelet, directory: Path, edit: str, may_leave: asyncio.Event
) -> None:
    """Devices under another ID take the seats of the old ones as soon as those are given up."""
    for name in ("x", "y", "z"):
        (directory / "colas" / name).touch()
    text = f"""
version: v1
resources: [{{name: {A}, sources: [directory: {directory}/colas], maxDevices: 2, EDIT}}]
"""
    async with reloading(directory, text.replace("EDIT", "replicas: 1")) as running:
        await started.wait(A, 2, 2)
        running.config.write_text(text.replace("EDIT", edit))
        count = 4 if "replicas" in edit else 2
        await started.wait(A, 2 + count, 0)
        may_leave.set()
        await started.wait(A, count, count)
