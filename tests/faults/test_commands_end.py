"""Commands end with devhost."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from devhost.hostfs import command
from tests.support.command import alive
from tests.support.daemon import Daemon, until

DISK = "example.com/disk"
# Says if another run is still alive, and what its processes are; then it works until it may end.
STEP = """
for pid in $(cat {place}/pids); do
  case "$(cat /proc/$pid/stat 2>/dev/null)" in ""|*") Z "*) ;; *) echo twice >> {place}/log;; esac
done
rm -f {place}/begun
sh -c ': > {place}/begun; exec sleep 1000' >/dev/null 2>&1 &
until test -e {place}/begun; do sleep 0.05; done
echo $$ $! > {place}/new
mv {place}/new {place}/pids
until test -e {place}/end; do sleep 0.05; done
"""


class Work:
    """A resource with one device, a step that takes long, and what is known of its runs."""

    def __init__(self, directory: Path, daemon: Daemon, kubelet: SimulatedKubelet) -> None:
        self.place, self.daemon, self.kubelet = directory / "work", daemon, kubelet
        (self.place / "disks").mkdir(parents=True)
        (self.place / "disks" / "a").touch()
        (self.place / "pids").touch()
        self.pods = 0
        daemon.flags.append("--allow-exec")

    def config(self) -> str:
        script = self.place / "step.sh"
        script.write_text(STEP.format(place=self.place))
        return f"""
version: v1
resources:
  - name: {DISK}
    sources: [directory: {self.place}/disks]
    preStart: [{{run: [sh, {script}], every: start, timeout: 20s}}]
"""

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.place / "pids").read_text().split()]

    @property
    def left(self) -> list[int]:
        """Return what still lives of the run that began last."""
        return [pid for pid in self.pids() if alive(pid)]

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Run the step for a container's start, which fails."""
        before = self.pids()
        await self.kubelet.wait(DISK, 1, 1)
        self.pods += 1
        start = asyncio.create_task(self.kubelet.admit(f"pod-{self.pods}", {"app": {DISK: 1}}))
        await until(lambda: start.done() or self.pids() != before, "the step has begun")
        yield
        with pytest.raises(AdmissionError):
            await start

    async def succeeds(self) -> None:
        """See that a container starts after a step that ran alone."""
        (self.place / "end").touch()
        await self.kubelet.wait(DISK, 1, 1)
        await self.kubelet.admit("last", {"app": {DISK: 1}})
        assert not (self.place / "log").exists()


@pytest.fixture
def work(directory: Path, daemon: Daemon, standin: SimulatedKubelet) -> Iterator[Work]:
    work = Work(directory, daemon, standin)
    yield work
    for pid in work.left:
        os.kill(pid, signal.SIGKILL)


async def test_step_ends_with_devhost_at_sigterm(daemon: Daemon, work: Work) -> None:
    # As on a busy machine: the thread that waits for the command has no time before the end.
    daemon.constants = daemon.constants | {"hostfs.command._STEP_S": 2.0}
    await daemon.start(work.config())
    async with work.starting():
        assert len(work.left) == 2
        assert await daemon.stop() == 0
    await until(lambda: not work.left, "the end of the step")
    await daemon.start()
    await work.succeeds()


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
