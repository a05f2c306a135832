"""Commands end with devhost."""

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from devhost.hostfs import command
from tests.support.command import alive
from tests.support.daemon import Daemon, until

DISK = "example.com/disk"
CONFIG = """
version: v1
resources:
  - name: example.com/disk
    sources: [static: 1]
    preStart: [{{run: [sh, -c, 'sleep 1000 & echo $$$$ $$! > {pids}.new; mv {pids}.new {pids}; wait']}}]
"""


async def test_step_ends_with_devhost_at_sigterm(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    # As on a busy machine: the thread that waits for the command has no time before the end.
    daemon.constants = daemon.constants | {"hostfs.command._STEP_S": 2.0}
    daemon.flags.append("--allow-exec")
    file = directory / "pids"
    await daemon.start(CONFIG.format(pids=file))
    await standin.wait(DISK, 1, 1)
    start = asyncio.create_task(standin.admit("pod", {"app": {DISK: 1}}))
    await until(file.exists, "the step has begun")
    pids = [int(pid) for pid in file.read_text().split()]
    try:
        assert [alive(pid) for pid in pids] == [True, True]
        assert await daemon.stop() == 0
        with pytest.raises(AdmissionError):
            await start
        await until(lambda: not any(map(alive, pids)), "the end of the step")
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_command_that_cannot_be_followed_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command does not go on without anybody who waits for it."""
    monkeypatch.setattr(command, "_KILL_S", 60.0)
    started: list[int] = []

    def follow(child: int, *_: object) -> bool:
        started.append(child)
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(command, "_follow", follow)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        command.run([sys.executable, "-c", "import time; time.sleep(60)"], {}, 60)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
