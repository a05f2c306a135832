"""After any number of changes the process holds what it held before.

A run of a few cycles belongs to every test run: a resource, a server or a task that is left behind
shows among the objects, the descriptors or the threads. ``DEVHOST_FAULT_CYCLES=200`` also sees memory
that grows slowly.
"""

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import PATIENCE, Daemon, Figures, at_rest, directories, until

pytestmark = pytest.mark.slow

CYCLES = int(os.environ.get("DEVHOST_FAULT_CYCLES", "16"))
WARM_UP = 8
SHORT = {
    "backends.deviceplugin.device_list.LEAVE_AFTER_S": 0.02,
    "backends.deviceplugin.registration._LEAVE_POLL_S": 0.02,
    "custody.holders.POLL_S": 3600.0,  # a connection for each list is none that is left
}
# Python's objects by type, in a file, at a signal.
COUNT = """
import collections, gc, json, os, signal
def count(*_):
    gc.collect()
    types = collections.Counter(
        f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects()
    )
    with open("PATH.new", "w") as file:
        json.dump(types, file)
    os.rename("PATH.new", "PATH")
signal.signal(signal.SIGUSR1, count)
"""
A, B = "example.com/a", "example.com/b"
KIB, MIB = 1 << 10, 1 << 20


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
    gc.collect()  # a closed channel of the stand-in is connected until it is freed
    seen: list[Figures] = []

    def calm() -> bool:
        seen.append(daemon.figures())
        return (
            len(seen) > 30
            and len({(figure.descriptors, figure.threads) for figure in seen[-30:]}) == 1
        )

    await until(calm, "calm")
    return seen[-1]


def taken(file: Path) -> Counter[str]:
    """Read a count, and make room for the next."""
    text = file.read_text()
    file.unlink()
    return Counter(json.loads(text))


async def objects(daemon: Daemon, file: Path) -> Counter[str]:
    """Return how many objects of each type the process holds."""
    daemon.signal(signal.SIGUSR1)
    await until(file.exists, "counted")
    return taken(file)


def leak(name: str) -> int:
    """Return from how many more objects of a type something leaks.

    What is devhost's is left behind at each of the kubelet's restarts or not at all. Of the others a
    connection has some dozens, and one that ends late is none that is left.
    """
    return CYCLES // 4 if name.startswith("devhost.") else 2 * CYCLES


async def grown(daemon: Daemon, file: Path, before: Counter[str]) -> dict[str, int]:
    """Return of what there are more than before, also when calls that are under way have ended."""
    clock = asyncio.get_running_loop().time
    end = clock() + PATIENCE
    while True:
        after = await objects(daemon, file) - before
        leaks = {name: count for name, count in after.items() if count >= leak(name)}
        if not leaks or clock() > end:
            return leaks
        await asyncio.sleep(0.1)


@pytest.mark.timeout(300 + 10 * CYCLES)
async def test_process_after_many_changes_holds_what_it_held_before(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    """Objects, descriptors, threads, watches and sockets are the same after all; memory nearly."""
    daemon.constants = SHORT
    daemon.code = COUNT.replace("PATH", str(directory / "objects"))
    for name in ("a", "b"):
        (directory / name).mkdir()
        (directory / name / "0").touch()
    await daemon.start(directories(directory, "a"))
    for number in range(WARM_UP):
        await cycle(standin, daemon, directory, number)
    before, counted = await figures(daemon), await objects(daemon, directory / "objects")
    for number in range(CYCLES):
        await cycle(standin, daemon, directory, number)
    after = await figures(daemon)
    leaks = await grown(daemon, directory / "objects", counted)
    print(f"\nbefore {before}\nafter  {after}\nmore   {leaks}")  # noqa: T201 (shown by -s)
    assert not leaks
    assert after.sockets == before.sockets == 1
    assert after.watches == before.watches
    assert abs(after.descriptors - before.descriptors) <= 1
    assert abs(after.threads - before.threads) <= 1
    assert after.rss < before.rss + 2 * MIB + CYCLES * 64 * KIB
    assert daemon.found("", level="error") == []
    assert await daemon.stop() == 0
