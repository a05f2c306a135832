"""The CPU time of scans alone, in a process of its own: ``scan.py CONFIG ALLOWED TIMES``.

Prints JSON: milliseconds to look at the host, to make the first snapshot of it, and to make
one more of the same; the least of some times, each the sum over all resources.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import load
from devhost.model.device import Snapshot

Result = TypeVar("Result")


def main() -> None:
    config, allowed, times = sys.argv[1:]
    policy, files = Policy((allowed,), enforced=True), HostFiles()
    loaded = load(config, policy).require()
    scanners = [Scanner.of(one, files, policy, "node", hold_s=0.0) for one in loaded.resources]
    rounds = [_round(scanners) for _ in range(int(times))]
    print(json.dumps({what: min(one[what] for one in rounds) for what in rounds[0]}))


def _round(scanners: list[Scanner]) -> dict[str, float]:
    selections, selection_ms = _timed(
        lambda: [one.select(read_all(one.roots, one.files)) for one in scanners]
    )
    pairs = list(zip(scanners, selections, strict=True))
    first, first_ms = _timed(
        lambda: [one.snapshot(found, Snapshot(), _unclaimed, 1.0) for one, found in pairs]
    )
    assert all(device.healthy for one in first for device in one.devices.values())
    _, again_ms = _timed(
        lambda: [
            one.snapshot(found, before, _unclaimed, 2.0)
            for (one, found), before in zip(pairs, first, strict=True)
        ]
    )
    return {"survey": selection_ms, "first snapshot": first_ms, "next snapshot": again_ms}


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.process_time_ns()
    result = work()
    return result, (time.process_time_ns() - began) / 1e6


def _unclaimed(_: str) -> str | None:
    return None


if __name__ == "__main__":
    main()
