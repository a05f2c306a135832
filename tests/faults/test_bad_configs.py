"""The configuration file turns into something that is none."""

import os
import shutil
from pathlib import Path

import pytest

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, numbers, tokens

A, B = "example.com/a", "example.com/b"


def spoil(path: Path, how: str) -> None:
    match how:
        case "garbage":
            path.write_bytes(os.urandom(4096))
        case "empty":
            path.write_bytes(b"")
        case "huge":
            path.write_bytes(tokens(a=1).encode() + b"#" * (2 << 20))
        case "gone":
            path.unlink()
        case "directory":
            path.unlink()
            path.mkdir()
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "loop":
            path.unlink()
            path.symlink_to(path.name)
        case "unreadable":
            path.unlink()
            path.symlink_to("/proc/self/mem")


INVALID = ["garbage", "empty", "huge"]
UNREADABLE = ["gone", "directory", "fifo", "loop", "unreadable"]


@pytest.mark.parametrize("ways", [INVALID, UNREADABLE], ids=["invalid", "unreadable"])
async def test_a_file_that_is_no_configuration(
    standin: SimulatedKubelet, daemon: Daemon, ways: list[str]
) -> None:
    """What is served stays, the log says why, a new start takes the last good, a good one heals."""
    await daemon.start(tokens(a=1, b=1))
    for count, how in enumerate(ways, 1):
        await at_rest(standin, daemon, {A: numbers(1), B: numbers(count)})
        sockets, lines = daemon.sockets(), len(daemon.lines)
        spoil(daemon.config, how)
        problem = "invalid" if how in INVALID else "cannot be read"
        await daemon.logged(f"configuration file {problem}; still serving", lines)
        assert daemon.sockets() == sockets
        assert await daemon.stop() == 0
        await daemon.start()
        await at_rest(standin, daemon, {A: numbers(1), B: numbers(count)})
        if daemon.config.is_dir():
            shutil.rmtree(daemon.config)
        daemon.config.unlink(missing_ok=True)
        daemon.config.write_text(tokens(a=1, b=count + 1))
    await at_rest(standin, daemon, {A: numbers(1), B: numbers(len(ways) + 1)})
    assert len(standin.registrations) == 2 * (len(ways) + 1)
    assert await daemon.stop() == 0
