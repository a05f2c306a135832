"""The wall clock is set."""

import signal
from pathlib import Path

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories

A = "example.com/a"
# SIGUSR1 sets Python's wall clock a day forward and a day back, in turn, and at last right: gRPC
# makes deadlines with it, and reads them by a clock that cannot be moved from here.
JUMPS = """
import datetime, signal, time
wall, shift, days = time.time, 0, iter([1, -1] * 4 + [0])
def jump(*_):
    global shift
    shift = next(days) * 86400
class Moved(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
time.time = lambda: wall() + shift
time.time_ns = lambda: int(time.time() * 10**9)
datetime.datetime = Moved
signal.signal(signal.SIGUSR1, jump)
"""


async def test_clock_that_jumps_a_day_ends_no_stream_and_keeps_no_device_from_leaving(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    daemon.constants, daemon.code = {"kubelet.device_list.LEAVE_AFTER_S": 0.3}, JUMPS
    (directory / "a").mkdir()
    (directory / "a" / "0").touch()
    await daemon.start(directories(directory, "a"))
    await at_rest(standin, daemon, {A: {"0"}})
    sockets = daemon.sockets()
    days = {daemon.lines[-1]["ts"][:10]}
    for number in range(4):
        daemon.signal(signal.SIGUSR1)
        (directory / "a" / "new").touch()
        await standin.wait(A, 2, 2)
        (directory / "a" / "new").unlink()
        daemon.signal(signal.SIGUSR1)
        await at_rest(standin, daemon, {A: {"0"}})
        await standin.admit(f"pod-{number}", {"app": {A: 1}})
        await standin.free(f"pod-{number}")
        days.add(daemon.lines[-1]["ts"][:10])
    assert len(days) > 1, "the clock has not moved"
    assert daemon.sockets() == sockets
    assert standin.registrations == [A]
    daemon.signal(signal.SIGUSR1)
    await standin.restart()
    await at_rest(standin, daemon, {A: {"0"}})
    assert await daemon.stop() == 0
