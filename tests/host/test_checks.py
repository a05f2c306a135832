"""Health checks: from what a check finds to what the kubelet offers and a pod's status says."""

from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract, pod_status

DISK = "example.com/disk"
WELL, ILL = "Healthy", "Unhealthy"


class Bench:
    """Devices that are files of a directory, and what their checks look at."""

    def __init__(self, directory: Path, hosting: Hosting) -> None:
        self.directory, self.hosting = directory, hosting
        self.states = directory / "states"
        self.states.mkdir()

    def plug(self, *names: str) -> None:
        for name in names:
            (self.directory / "colas" / name).touch()

    def say(self, name: str, state: str) -> None:
        """Set what the check of a device reads, whole and not in pieces."""
        fresh = self.directory / "fresh"
        fresh.write_text(state)
        fresh.replace(self.states / name)

    def config(self, health: str | None) -> str:
        of_health = f", health: {health}" if health else ""
        return f"""
version: v1
resources:
  - {{name: {DISK}, sources: [directory: {self.directory}/colas]{of_health}}}
"""

    def reads(self, wanted: str = "ok") -> str:
        path = f'"{self.states}/${{id}}"'
        check = f"{{file: {{path: {path}, matches: {wanted}}}}}"
        return f"{{checks: [{check}], interval: 100ms}}"

    def start(self, health: str | None) -> None:
        policy = Policy((f"{self.directory}/*",), allow_exec=True)
        self.hosting.start(self.config(health), policy=policy)

    def reason(self, device: str) -> str:
        return self.hosting.reason(DISK, device) or ""


@pytest.fixture
def bench(directory: Path, hosting: Hosting) -> Bench:
    return Bench(directory, hosting)


async def status(kubelet: Kubelet, pod: str, **wanted: str) -> None:
    await pod_status(kubelet, pod, DISK, wanted)


@contract
async def test_health_shows_in_the_status_of_the_pod(started: Kubelet, bench: Bench) -> None:
    bench.plug("a", "b")
    bench.say("a", "ok")
    bench.say("b", "ok")
    bench.start(bench.reads())
    await started.wait(DISK, 2, 2)
    await started.admit("pod", {"app": {DISK: 2}})
    await status(started, "pod", a=WELL, b=WELL)
    bench.say("a", "broken")
    await status(started, "pod", a=ILL, b=WELL)
    await started.wait(DISK, 2, 1)
    assert "states/a: its content does not match 'ok'" in bench.reason("a")
    bench.say("a", "ok\n")
    await status(started, "pod", a=WELL, b=WELL)
    await started.wait(DISK, 2, 2)


async def test_health_checks_added_blame_no_device_at_first(started: Kubelet, bench: Bench) -> None:
    bench.plug("a")
    bench.start(None)
    await started.wait(DISK, 1, 1)
    (served,) = bench.hosting.hosts[-1].resources
    before = served.devices.offered
    hangs = '{checks: [{exec: [sleep, "600"]}], interval: 100ms, timeout: 30s}'
    bench.hosting.reload(bench.config(hangs))
    await until(lambda: served.devices.health is not None and served.devices.offered is not before)
    assert bench.reason("a") == ""


@contract
async def test_health_after_restarts_is_the_same(started: Kubelet, bench: Bench) -> None:
    """The first list of devhost has the health already."""
    bench.plug("a", "b")
    bench.say("a", "ok")
    bench.say("b", "broken")
    bench.start(bench.reads())
    await started.wait(DISK, 2, 1)
    await started.admit("pod", {"app": {DISK: 1}})
    await started.restart()
    await started.wait(DISK, 2, 1)
    await bench.hosting.stop()
    await started.wait(DISK, 2, 0)
    bench.start(bench.reads())
    await started.wait(DISK, 2, 1)
    await status(started, "pod", a=WELL)
