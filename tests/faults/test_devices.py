"""Many devices, and many changes of them."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories, numbers, until
from tests.support.hosting import Kubelet

STORM, CALM, BIG = "example.com/storm", "example.com/calm", "example.com/big"
SHORT = {"kubelet.device_list.LEAVE_AFTER_S": 0.3, "host.scanning.RESCAN_S": 1.0}
# A scan of very many devices takes long on a busy machine.
PATIENT = {"host.inventory.ANSWER_S": 300.0}


def storm(place: Path, rounds: int) -> None:
    """Create, remove and rename thousands of files; a few of them stay."""
    for number in range(rounds):
        names = [f"f{random.randrange(500)}" for _ in range(3)]
        (place / names[0]).touch()
        (place / names[1]).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (place / names[0]).rename(place / names[2])
        if number % 100 == 0:
            (place / "directory").mkdir()
            (place / "directory").rename(place / "other")
            (place / "other").rmdir()


async def test_a_storm(started: Kubelet, daemon: Daemon, directory: Path) -> None:
    """While thousands of files come and go another resource is served; then all is as it is."""
    daemon.constants, daemon.flags = SHORT, ["--assume-free"]  # renamed files have another ID
    for name in ("storm", "calm"):
        (directory / name).mkdir()
    await daemon.start(directories(directory, "storm", "calm"))
    storming = asyncio.create_task(asyncio.to_thread(storm, directory / "storm", 6000))
    for number in range(5):
        (directory / "calm" / str(number)).touch()
        await started.wait(CALM, number + 1, number + 1)
        await started.admit(f"pod-{number}", {"app": {CALM: 1}})
    await storming
    present = {path.name for path in (directory / "storm").iterdir()}
    assert 0 < len(present) < 500
    await at_rest(started, daemon, {STORM: present, CALM: numbers(5)})
    assert daemon.found("", level="error") == []


@pytest.mark.timeout(600)
async def test_a_list_that_is_too_long(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    """The list is cut to what the kubelet takes, which is said once; others go on meanwhile."""
    daemon.constants = SHORT | PATIENT
    (directory / "calm").mkdir()
    config = directories(directory, "calm")
    big = f"  - {{name: {BIG}, sources: [static: 19000], id: '{'😀' * 55}-${{name}}'}}\n"
    await daemon.start(config + big)
    for number in range(5):
        (directory / "calm" / str(number)).touch()
        await standin.wait(CALM, number + 1, number + 1)
        await standin.admit(f"pod-{number}", {"app": {CALM: 1}})
    await until(lambda: BIG in standin.registrations, "the many are registered")
    line = await daemon.logged("list truncated", resource=BIG)
    left = 19_000 - line["left_out"]
    assert 10_000 < left < 19_000
    await standin.wait(BIG, left, left)
    daemon.write(config + big.replace("}\n", ", allocate: {env: {X: new}}}\n"))  # another scan
    envs: dict[str, str] = {}
    while envs != {"X": "new"}:
        await standin.wait(BIG, left, left)  # a refusal alone never yields to the loop
        with contextlib.suppress(AdmissionError):  # a busy machine may lose the stream once
            envs = (await standin.admit("pod", {"app": {BIG: 2}}))["app"]["envs"]
            await standin.free("pod")
    (directory / "calm" / "5").touch()
    await standin.wait(CALM, 6, 6)
    await standin.restart()
    await standin.wait(BIG, left, left)
    await standin.wait(CALM, 6, 6)
    assert len(daemon.found("list truncated")) == 1
    assert await daemon.stop() == 0
