"""The configuration file turns into something that is none."""

import os
import shutil
from pathlib import Path

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, numbers, tokens

A, B = "example.com/a", "example.com/b"


def spoil(path: Path, how: str) -> None:
    match how:
        case "garbage":
            path.write_bytes(os.urandom(4096))
        case "directory":
            path.unlink()
            path.mkdir()
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "unreadable":
            path.unlink()
            path.symlink_to("/proc/self/mem")


WAYS = ["garbage", "directory", "fifo", "unreadable"]


async def test_configuration_that_becomes_no_file_of_one_changes_nothing_and_heals(
    standin: SimulatedKubelet, daemon: Daemon
) -> None:
    """What is served stays, the log says why, a new start takes the last good, a good one heals."""
    await daemon.start(tokens(a=1, b=1))
    for count, how in enumerate(WAYS, 1):
        await at_rest(standin, daemon, {A: numbers(1), B: numbers(count)})
        sockets, lines = daemon.sockets(), len(daemon.lines)
        spoil(daemon.config, how)
        problem = "invalid" if how == "garbage" else "cannot be read"
        await daemon.logged(f"configuration file {problem}; still serving", lines)
        assert daemon.sockets() == sockets
        assert await daemon.stop() == 0
        await daemon.start()
        await at_rest(standin, daemon, {A: numbers(1), B: numbers(count)})
        if daemon.config.is_dir():
            shutil.rmtree(daemon.config)
        daemon.config.unlink(missing_ok=True)
        daemon.config.write_text(tokens(a=1, b=count + 1))
    await at_rest(standin, daemon, {A: numbers(1), B: numbers(len(WAYS) + 1)})
    assert len(standin.registrations) == 2 * (len(WAYS) + 1)
    assert await daemon.stop() == 0
