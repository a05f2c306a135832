"""The metrics of this process, by the names that all programs have for them."""

import functools
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.observe.exposition import Family, MetricKind, single

_PROCESS: Final = Path("/proc/self")


def process_families() -> Iterator[Family]:
    """Yield what the kernel says of this process; nothing where it does not say it."""
    try:
        # proc(5): the fields after the name, of which utime is the 14th of all.
        stat = (_PROCESS / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(_PROCESS / "fd"))  # noqa: PTH208 (only how many)
    except OSError:
        return
    ticks = os.sysconf("SC_CLK_TCK")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    values = {
        "virtual_memory_bytes": ("Virtual memory size in bytes.", int(stat[20])),
        "resident_memory_bytes": (
            "Resident memory size in bytes.",
            int(stat[21]) * os.sysconf("SC_PAGESIZE"),
        ),
        "start_time_seconds": (
            "Start time of the process since unix epoch in seconds.",
            _booted() + int(stat[19]) / ticks,
        ),
        "cpu_seconds_total": (
            "Total user and system CPU time spent in seconds.",
            (int(stat[11]) + int(stat[12])) / ticks,
        ),
        "open_fds": ("Number of open file descriptors.", descriptors),
        "max_fds": ("Maximum number of open file descriptors.", limit),
    }
    for name, (about, value) in values.items():
        kind: MetricKind = "counter" if name.endswith("_total") else "gauge"
        yield single(kind, f"process_{name}", about, value)


@functools.cache  # or it would change with each correction of the clock, like after a restart
def _booted() -> float:
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 2)
