"""One resource's trouble is its own, and what many do leaves room for kubelet's calls."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from devhost.backends.backend import ResourceHandler
from devhost.backends.deviceplugin.device_list import DeviceList
from devhost.backends.deviceplugin.registration import DevicePluginBackend, run_server
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.device import Snapshot
from devhost.model.resource_state import State
from devhost.node.resource import ServedResource
from devhost.watch.threads import ABANDONED_MAX
from tests.support.daemon import tokens
from tests.support.hosting import Hosting


async def test_resource_that_crashes_is_started_again(
    hosting: Hosting,
    standin: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reason is logged, the resource backs off and comes back; other streams do not notice."""
    monkeypatch.setattr("devhost.node.tasks.CRASH_PAUSE_S", 0.2)
    crashes = 2
    publish = ServedResource._publish

    def crashing(self: ServedResource, scanner: Scanner, snapshot: Snapshot) -> None:
        nonlocal crashes
        if self.name.endswith("bad") and crashes:
            crashes -= 1
            raise ZeroDivisionError("oops")
        publish(self, scanner, snapshot)

    monkeypatch.setattr(ServedResource, "_publish", crashing)
    hosting.start(tokens(bad=1, good=2))
    await standin.wait("example.com/good", 2, 2)
    await standin.wait("example.com/bad", 1, 1)
    lines = [getattr(record, "fields", {}) for record in caplog.records]
    reasons = [line["reason"] for line in lines if line.get("state") == State.BACKING_OFF]
    assert reasons
    assert all("ZeroDivisionError" in reason for reason in reasons)
    assert all(line["resource"] == "example.com/bad" for line in lines if "reason" in line)
    assert caplog.text.count("Traceback") >= 2
    assert crashes == 0


async def test_answers_that_hang_are_not_counted_after_an_edit(
    hosting: Hosting, standin: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit may have taken out the path that hangs."""
    go = threading.Event()
    hosting.start(tokens(a=1))
    await standin.wait("example.com/a", 1, 1)
    served = hosting.served("example.com/a")
    assert served is not None
    with monkeypatch.context() as hanging:
        hanging.setattr("devhost.node.answers._LOOK_UP_S", 0.1)
        hanging.setattr(Scanner, "allocate", lambda *_: go.wait())
        for _ in range(ABANDONED_MAX):
            with pytest.raises(AllocationError, match="does not answer"):
                await served.answers.render([], watching=True)
    try:
        hosting.reload(tokens(a=2))
        await standin.wait("example.com/a", 2, 2)
        await standin.admit("pod", {"app": {"example.com/a": 1}})
    finally:
        go.set()


async def test_socket_that_cannot_be_bound_fails_for_one_reason(tmp_path: Path) -> None:
    """Every new reason is a warning; one that repeats is logged a few times."""
    answers = cast("ResourceHandler", SimpleNamespace(pre_start_required=False))
    directory, reasons = DevicePluginBackend(tmp_path / "none", tmp_path / "pr.sock"), set()
    for endpoint in ("a.sock", "b.sock"):
        with pytest.raises(OSError, match="cannot listen in") as caught:
            async with run_server(answers, DeviceList(), directory, endpoint):
                pass
        reasons.add(str(caught.value))
    assert len(reasons) == 1
