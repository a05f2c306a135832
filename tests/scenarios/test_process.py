"""The real process against a kubelet: killed and started again, and stopped."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.hosting import Kubelet, on_one_kubelet

COUNT = 100


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Process]:
    """Run devhost; it has ended afterwards, also where the test failed."""
    resources = "".join(
        f"  - {{name: example.com/r{index}, sources: [static: 3]}}\n" for index in range(COUNT)
    )
    config = directory / "config.yaml"
    config.write_text(f"version: v1\nresources:\n{resources}")
    plugins = str(directory / "plugins")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "devhost", "run", str(config), "--plugin-dir", plugins),
        stderr=DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def all_registered(kubelet: Kubelet) -> None:
    for index in range(COUNT):
        await kubelet.wait(f"example.com/r{index}", 3, 3)


async def test_killed_and_started_again(started: Kubelet, directory: Path) -> None:
    """After SIGKILL a new process removes the dead sockets and every resource is back."""
    async with running(directory) as first:
        await all_registered(started)
        first.kill()
        await first.wait()
    await started.wait("example.com/r0", 3, 0)
    dead = set((directory / "plugins").glob("devhost-*.sock"))
    assert len(dead) == COUNT
    async with running(directory) as second:
        await all_registered(started)
        assert dead.isdisjoint((directory / "plugins").glob("devhost-*.sock"))
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    assert not list((directory / "plugins").glob("devhost-*.sock"))


@on_one_kubelet
async def test_the_kubelet_restarts_under_a_hundred_resources(
    started: Kubelet, directory: Path
) -> None:
    """All resources of a process are back after a kubelet restart, and an Allocate works."""
    async with running(directory) as process:
        await all_registered(started)
        await started.restart()
        await all_registered(started)
        answer = await started.admit("pod", {"app": {"example.com/r7": 3}})
        assert answer["app"]["deviceIds"] == {"example.com/r7": ["0", "1", "2"]}
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
