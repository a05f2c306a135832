"""Signals at any moment of a `devhost run`: it exits with 0, and says nothing wrong."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, tokens, until
from tests.support.root import needs_root

ROUNDS = 12
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Before its own code begins Python's actions are in force.
BEGIN = """
from devhost.daemon.signals import exit_on_signals
exit_on_signals()
open({!r}, "w").close()
"""
IN_AN_IMPORT = """
import functools, os, signal
original = functools.cached_property.__set_name__
def set_name(self, owner, name):
    functools.cached_property.__set_name__ = original
    os.kill(os.getpid(), signal.SIGTERM)
    original(self, owner, name)
functools.cached_property.__set_name__ = set_name
"""
NEVER_IMPORTED = """
import sys, time
class Finder:
    def find_spec(name, *_):
        if name in ("typing", "logging", "asyncio", "click"):
            time.sleep(3600)
sys.meta_path.insert(0, Finder)
"""


def send(daemon: Daemon, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended; `Popen` would take its exit status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon.pid, number)


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_in_the_middle_of_an_import_ends_the_process_quietly(
    daemon: Daemon, number: signal.Signals
) -> None:
    """Python makes a RuntimeError of what is raised there; nothing has begun, nothing is said."""
    daemon.constants = {}
    daemon.code = IN_AN_IMPORT.replace("SIGTERM", number.name)
    await daemon.start(tokens(a=1))
    assert await daemon.ended() == 0
    assert [line for line in daemon.lines if line["level"] != "info"] == []


async def test_signals_at_any_moment_of_a_start_end_the_process_quietly(
    daemon: Daemon, standin: SimulatedKubelet, directory: Path
) -> None:
    """However many, and at any moment from the first on."""
    seed = random.randrange(1 << 32)
    instants = random.Random(seed)
    for _ in range(ROUNDS):
        begun = directory / "begun"
        daemon.constants, daemon.code = {}, BEGIN.format(str(begun))
        daemon.flags = ["--listen", "127.0.0.1:0"]
        since = len(daemon.lines)
        await daemon.start(tokens(a=1, b=2))
        await until(begun.exists, "its code begins")
        begun.unlink()
        await asyncio.sleep(instants.uniform(0.0, 1.0))
        for _ in range(instants.randrange(1, 4)):
            if daemon.running:
                send(daemon, instants.choice(SIGNALS))
                await asyncio.sleep(instants.uniform(0.0, 0.05))
        assert await daemon.ended() == 0, (seed, daemon.lines[since:])
        bad = [line for line in daemon.lines[since:] if line["level"] not in ("info", "debug")]
        assert bad == [], seed
        assert daemon.sockets() == set()


@needs_root
async def test_signal_ends_process_1_from_its_first_own_instant_on(daemon: Daemon) -> None:
    """The kernel drops what process 1 has no handler for: that has to be there before all imports."""
    daemon.wrapper = ["unshare", "--pid", "--fork", "--kill-child"]
    daemon.constants, daemon.code = {}, NEVER_IMPORTED
    await daemon.start(tokens(a=1))
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    await until(children.read_text, "process 1")
    first = int(children.read_text())  # noqa: ASYNC240 (quick)

    def handled() -> bool:
        status = Path(f"/proc/{first}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    await until(handled, "a handler")
    os.kill(first, signal.SIGTERM)
    assert await daemon.ended() == 0


async def test_signals_while_the_process_ends_change_nothing(
    daemon: Daemon, standin: SimulatedKubelet
) -> None:
    """From the first signal to the last instant of the process: exit 0 and no word of them."""
    count = 30
    for number in SIGNALS:
        await daemon.start(tokens(**{f"r{index}": 1 for index in range(count)}))
        for index in range(count):
            await standin.wait(f"example.com/r{index}", 1, 1)
        while daemon.running:
            send(daemon, number)
            await asyncio.sleep(0.001)
        assert await daemon.ended() == 0, daemon.lines[-5:]
        assert [line for line in daemon.lines if line["level"] not in ("info", "debug")] == []
        assert daemon.sockets() == set()
