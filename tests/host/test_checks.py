"""Health checks: from what a check finds to what the kubelet offers and a pod's status says."""

import asyncio
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.mounts import hung
from tests.support.root import needs_root

DISK, OTHER = "example.com/disk", "example.com/other"
WELL, ILL = "Healthy", "Unhealthy"


class Bench:
    """Devices that are files of a directory, and what their checks look at."""

    def __init__(self, directory: Path, hosting: Hosting) -> None:
        self.directory, self.hosting = directory, hosting
        self.states = directory / "states"
        self.states.mkdir()
        self.policy = Policy((f"{directory}/*",), allow_exec=True)

    def plug(self, *names: str) -> None:
        for name in names:
            (self.directory / "colas" / name).touch()

    def unplug(self, name: str) -> None:
        (self.directory / "colas" / name).unlink()

    def say(self, name: str, state: str) -> None:
        """Set what the check of a device reads, whole and not in pieces."""
        fresh = self.directory / "fresh"
        fresh.write_text(state)
        fresh.replace(self.states / name)

    def config(self, health: str | None, more: str = "") -> str:
        of_health = f", health: {health}" if health else ""
        return f"""
version: v1
resources:
  - {{name: {DISK}, sources: [directory: {self.directory}/colas]{of_health}{more}}}
  - {{name: {OTHER}, sources: [static: 1]}}
"""

    def reads(self, wanted: str = "ok", more: str = "") -> str:
        """Return a check of a device's file."""
        path = f'"{self.states}/${{id}}"'
        check = f"{{file: {{path: {path}, matches: {wanted}}}}}"
        return f"{{checks: [{check}], interval: 100ms{more}}}"

    def runs(self, script: str, more: str = "") -> str:
        """Return a check that runs a shell script, with the device's ID as `$1`."""
        file = self.directory / "check.sh"
        file.write_text(script)
        return f'{{checks: [{{exec: [sh, {file}, "${{id}}"]}}], interval: 100ms{more}}}'

    def start(self, health: str | None, policy: Policy | None = None, more: str = "") -> None:
        self.hosting.start(self.config(health, more), policy=policy or self.policy)

    def reason(self, device: str) -> str:
        return self.hosting.reason(DISK, device) or ""


@pytest.fixture
def bench(directory: Path, hosting: Hosting) -> Bench:
    return Bench(directory, hosting)


async def status(kubelet: Kubelet, pod: str, **wanted: str) -> None:
    """Wait until the status of a pod says so of its devices."""
    seen: object = None
    try:
        async with asyncio.timeout(60):
            while (seen := (await kubelet.health(pod))["app"][DISK]) != wanted:
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"the status of {pod} says {seen}, not {wanted}") from None


@contract
async def test_a_check_that_fails_and_recovers_shows_in_the_status_of_the_pod(
    started: Kubelet, bench: Bench
) -> None:
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


async def test_a_command_that_hangs_makes_one_device_unhealthy(
    started: Kubelet, bench: Bench
) -> None:
    hang = bench.directory / "hang"
    bench.plug("a", "b")
    bench.start(bench.runs(f"test $1 != a || test ! -e {hang} || exec sleep 60", ", timeout: 1s"))
    await started.wait(DISK, 2, 2)
    await started.admit("pod", {"app": {DISK: 2}})
    hang.touch()
    await status(started, "pod", a=ILL, b=WELL)
    assert bench.reason("a") == "check failed: exec: sh: did not answer in 1 s"
    bench.plug("c")
    await started.wait(DISK, 3, 2)
    await started.admit("new", {"app": {DISK: 1, OTHER: 1}})
    hang.unlink()
    await status(started, "pod", a=WELL, b=WELL)


@needs_root
async def test_a_filesystem_that_hangs_makes_one_device_unhealthy(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a", "b")
    disks = bench.directory / "disks"
    (disks / "a").mkdir(parents=True)
    (disks / "b").mkdir()
    state = disks / "b" / "state"
    state.write_text("ok")
    check = f'{{file: {{path: "{disks}/${{id}}/state", matches: ok}}}}'
    with hung(disks / "a") as mount:
        bench.start(f"{{checks: [{check}], interval: 100ms, timeout: 1s}}")
        await started.wait(OTHER, 1, 1)
        await started.wait(DISK, 2, 1)
        await started.admit("pod", {"app": {DISK: 1, OTHER: 1}})
        state.write_text("broken")
        await status(started, "pod", b=ILL)
        state.write_text("ok")
        await status(started, "pod", b=WELL)
        await until(lambda: "did not answer in 1 s" in bench.reason("a"), "a hung check fails")
        mount.abort()
    (disks / "a" / "state").write_text("ok")
    await started.wait(DISK, 2, 2)


async def test_a_check_without_permission_leaves_the_device_healthy_and_names_the_flag(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a", "b")
    bench.states.chmod(0o700)
    bench.say("a", "broken")
    bench.start(bench.reads(), Policy())

    def unknown() -> str:
        device = bench.hosting.device(DISK, "a")
        return (device and device.checked and device.checked.unknown) or ""

    await started.wait(DISK, 2, 2)
    await until(unknown, "a round")
    assert f"--allow-path '{bench.states}/a' would allow it" in unknown()
    bench.hosting.reload(bench.config(bench.runs("exit 1")))
    await until(lambda: "needs --allow-exec" in unknown(), "a round of the other check")
    await started.wait(DISK, 2, 2)
    await started.admit("pod", {"app": {DISK: 2}})


async def test_a_device_plugged_in_again_is_healthy_after_its_check(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a")
    bench.say("a", "ok")
    bench.start(bench.reads())
    await started.wait(DISK, 1, 1)
    await started.admit("pod", {"app": {DISK: 1}})
    bench.unplug("a")
    await status(started, "pod", a=ILL)
    bench.say("a", "broken")
    bench.plug("a")
    await until(lambda: "does not match" in bench.reason("a"), "its check fails")
    await status(started, "pod", a=ILL)
    bench.say("a", "ok")
    await status(started, "pod", a=WELL)


async def test_a_reload_changes_the_checks(started: Kubelet, bench: Bench) -> None:
    bench.plug("a", "b")
    bench.say("a", "ok")
    bench.say("b", "fine")
    bench.start(None)
    await started.wait(DISK, 2, 2)
    await started.admit("pod", {"app": {DISK: 2}})
    bench.hosting.reload(bench.config(bench.reads()))
    await status(started, "pod", a=WELL, b=ILL)
    bench.hosting.reload(bench.config(bench.reads("fine")))
    await status(started, "pod", a=ILL, b=WELL)
    bench.hosting.reload(bench.config(None))
    await status(started, "pod", a=WELL, b=WELL)


async def test_checks_that_a_reload_adds_blame_nobody_before_their_first_round(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a")
    bench.start(None)
    await started.wait(DISK, 1, 1)
    (served, _) = bench.hosting.hosts[-1].resources
    before = served.snapshot
    bench.hosting.reload(bench.config(bench.runs("sleep 600", ", timeout: 30s")))
    await until(lambda: served.health is not None and served.snapshot is not before)
    assert bench.reason("a") == ""


@contract
async def test_health_is_the_same_after_restarts_of_kubelet_and_devhost(
    started: Kubelet, bench: Bench
) -> None:
    """Of the kubelet, and of devhost: its first list has the health already."""
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
