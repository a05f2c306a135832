"""What a process has cost so far, and what it holds: from outside, without its help."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1024.0  # in the kibibytes of /proc


@dataclass(frozen=True)
class Sizes:
    """What a process holds at a moment."""

    rss_mib: float
    uss_mib: float
    threads: int
    descriptors: int
    inotify_instances: int


class Process:
    """A running process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._directory = Path(f"/proc/{pid}")

    def cpu_ms(self) -> float:
        """Return the CPU time of all its threads, those that have ended too.

        From its own clock, to the nanosecond: /proc/PID/stat counts hundredths of a second.
        """
        clock = ((~self.pid) << 3) | 2  # CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3)
        return time.clock_gettime_ns(clock) / 1e6

    def wake_ups(self) -> int:
        """Return how often its threads have gone to sleep; each waits to be woken."""
        total = 0
        for status in self._directory.glob("task/*/status"):
            try:
                total += _number(r"voluntary_ctxt_switches:\s+(\d+)", status.read_text())
            except FileNotFoundError:
                continue  # a thread that has ended
        return total

    def sizes(self) -> Sizes:
        status = (self._directory / "status").read_text()
        rollup = (self._directory / "smaps_rollup").read_text()
        private = re.findall(r"^Private_\w+:\s+(\d+)", rollup, re.MULTILINE)
        links = [_link(entry) for entry in os.scandir(self._directory / "fd")]
        return Sizes(
            rss_mib=_number(r"VmRSS:\s+(\d+)", status) / MIB,
            uss_mib=sum(map(int, private)) / MIB,
            threads=_number(r"Threads:\s+(\d+)", status),
            descriptors=len(links),
            inotify_instances=links.count("anon_inode:inotify"),
        )


def _link(entry: "os.DirEntry[str]") -> str:
    try:
        return os.readlink(entry.path)
    except FileNotFoundError:
        return ""


def _number(pattern: str, text: str) -> int:
    found = re.search(rf"^{pattern}", text, re.MULTILINE)
    assert found is not None, pattern
    return int(found[1])
