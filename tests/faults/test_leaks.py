"""After any number of changes the process holds what it held before."""

import os
from pathlib import Path

import pytest

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, Figures, at_rest, directories, until

CYCLES = int(os.environ.get("DEVHOST_FAULT_CYCLES", "100"))
WARM_UP = 16
SHORT = """
import devhost.kubelet.device_list, devhost.host.resource.runner
devhost.kubelet.device_list.LEAVE_AFTER_S = 0.02
devhost.host.resource.runner._STEP_S = 0.02
"""
A, B = "example.com/a", "example.com/b"
MIB = 1 << 20


async def cycle(kubelet: SimulatedKubelet, daemon: Daemon, place: Path, number: int) -> None:
    """Plug and unplug, add and remove a resource; now and then restart the kubelet."""
    config = directories(place, "a")
    (place / "a" / "1").touch()
    await kubelet.wait(A, 2, 2)
    daemon.write(directories(place, "a", "b") + f"# {number}\n")
    await kubelet.wait(B, 1, 1)
    (place / "a" / "1").unlink()
    if number % 8 == 0:
        await kubelet.restart()
        daemon.write(config)
    elif number % 8 == 4:
        daemon.write(config)
        await kubelet.wait(B, 0, 0)
        await kubelet.restart()
    else:
        daemon.write(config)
    await at_rest(kubelet, daemon, {A: {"0"}})


async def figures(daemon: Daemon) -> Figures:
    """Return what the process holds when nothing goes on: threads of work end by themselves."""
    seen: list[Figures] = []

    def calm() -> bool:
        seen.append(daemon.figures())
        return len(seen) > 30 and len({(one.descriptors, one.threads) for one in seen[-30:]}) == 1

    await until(calm, "calm")
    return seen[-1]


@pytest.mark.timeout(300 + 10 * CYCLES)
async def test_leaks(standin: SimulatedKubelet, daemon: Daemon, directory: Path) -> None:
    """Descriptors, threads, watches and sockets are the same after 100 cycles; memory nearly."""
    daemon.prelude = SHORT
    for name in ("a", "b"):
        (directory / name).mkdir()
        (directory / name / "0").touch()
    await daemon.start(directories(directory, "a"))
    for number in range(WARM_UP):
        await cycle(standin, daemon, directory, number)
    before = await figures(daemon)
    for number in range(CYCLES):
        await cycle(standin, daemon, directory, number)
    after = await figures(daemon)
    print(f"\nbefore {before}\nafter  {after}")  # noqa: T201 (shown by -s)
    assert after.sockets == before.sockets == 1
    assert after.watches == before.watches
    assert abs(after.descriptors - before.descriptors) <= 1
    assert abs(after.threads - before.threads) <= 1
    assert after.rss < before.rss + 8 * MIB
    assert daemon.found("", level="error") == []
    assert await daemon.stop() == 0
