"""One resource's trouble is its own; what is not allowed is not handed out."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.roots import Readings
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.host.host import Host, Settings
from devhost.host.resource import ServedResource
from devhost.hostfs.files import HostFiles
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.registration import PluginServer
from devhost.kubelet.servicer import Answering
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from devhost.model.state import State
from devhost.standin.kubelet import SimulatedKubelet
from devhost.watch.watcher import Inotify


@contextlib.asynccontextmanager
async def hosted(directory: Path, config: str) -> AsyncIterator[Host]:
    settings = Settings(
        directory / "plugins",
        "node",
        HostFiles(str(directory / "host")),
        Policy(),
        0.3,
        0.0,
    )
    host = Host(loads(config).require(), settings)
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_source_that_raises_harms_its_resource_alone_and_heals(
    directory: Path, standin: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours in a look leaves what was known, unhealthy, and heals by itself."""
    broken = threading.Event()

    select = Scanner.select

    def breaking(self: Scanner, readings: Readings) -> Selection:
        if broken.is_set() and self.resource.name.endswith("bad"):
            raise ZeroDivisionError("oops")
        return select(self, readings)

    monkeypatch.setattr(Scanner, "select", breaking)
    config = """
version: v1
resources:
  - {name: example.com/bad, sources: [static: 1]}
  - {name: example.com/good, sources: [static: 2]}
"""
    async with hosted(directory, config) as host:
        await standin.wait("example.com/bad", 1, 1)
        await standin.wait("example.com/good", 2, 2)
        broken.set()
        host.resources[0].trigger_scan()
        await standin.wait("example.com/bad", 1, 0)
        assert "ZeroDivisionError" in str(host.resources[0].snapshot.error)
        assert (await standin.capacity())["example.com/good"] == (2, 2)
        broken.clear()
        host.resources[0].trigger_scan()
        await standin.wait("example.com/bad", 1, 1)


async def test_resource_that_crashes_is_started_again(
    directory: Path,
    standin: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says so, backs off, and comes back; another resource's stream does not notice."""
    monkeypatch.setattr("devhost.host.scanning.CRASH_PAUSE_S", 0.2)
    crashes = 2
    publish = ServedResource._publish

    def crashing(self: ServedResource, scanner: Scanner, found: Snapshot) -> None:
        nonlocal crashes
        if self.name.endswith("bad") and crashes:
            crashes -= 1
            raise ZeroDivisionError("oops")
        publish(self, scanner, found)

    monkeypatch.setattr(ServedResource, "_publish", crashing)
    config = """
version: v1
resources:
  - {name: example.com/bad, sources: [static: 1]}
  - {name: example.com/good, sources: [static: 2]}
"""
    async with hosted(directory, config):
        await standin.wait("example.com/good", 2, 2)
        await standin.wait("example.com/bad", 1, 1)
    told = [getattr(one, "fields", {}) for one in caplog.records]
    reasons = [one["reason"] for one in told if one.get("state") == State.BACKING_OFF]
    assert reasons
    assert all("ZeroDivisionError" in reason for reason in reasons)
    assert all(one["resource"] == "example.com/bad" for one in told if "reason" in one)
    assert caplog.text.count("Traceback") >= 2
    assert crashes == 0


async def test_socket_that_cannot_be_bound_fails_for_the_same_reason_each_time(
    tmp_path: Path,
) -> None:
    """Or every one would be a warning: a reason that repeats is said a few times."""
    answers = cast("Answering", SimpleNamespace(pre_start_required=False))
    reasons = set()
    for endpoint in ("a.sock", "b.sock"):
        with pytest.raises(OSError, match="cannot listen in") as caught:
            await PluginServer(answers, DeviceList(), tmp_path / "none", endpoint).start()
        reasons.add(str(caught.value))
    assert len(reasons) == 1


async def test_plugin_directory_that_cannot_be_watched_is_watched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devhost.kubelet.directory._POLL_S", 0.01)
    (tmp_path / "plugins").mkdir()

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def degraded(host: Host) -> bool:
        return any(one.degraded for one in host._watcher.subscriptions)

    with monkeypatch.context() as short:
        short.setattr(Inotify, "add", fail)
        async with asyncio.timeout(60), hosted(tmp_path, "version: v1\nresources: []\n") as host:
            while not degraded(host):
                await asyncio.sleep(0.005)
            short.undo()
            while degraded(host):
                await asyncio.sleep(0.005)
