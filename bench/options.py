"""What to measure, how often and how long."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.build import ROOT
from bench.scene import Shape

PARTS: Final = {
    "floor": "the machine's own times for an event and for a byte there and back",
    "start": "from exec until everything is registered and listed",
    "sizes": "memory, threads, descriptors, inotify instances",
    "rest": "CPU, wake-ups and messages while idle",
    "events": "a device appears, a device vanishes",
    "burst": "many devices at the same time",
    "allocate": "Allocate, from one and from 16 callers",
    "preferred": "GetPreferredAllocation, likewise",
    "restart": "restart of kubelet",
    "reload": "a configuration that changes one resource",
    "backoff": "many restarts of kubelet with one resource",
    "lengths": "events with one resource and a list of --lengths devices",
    "shared": "start and sizes if all resources watch one directory, with one device each",
    "scan": "CPU of scanning and rendering only",
    "validate": "devhost validate",
}
# Those that need no other shape than that of --resources and --devices.
STAGED: Final = (
    "start", "sizes", "rest", "events", "burst", "allocate", "preferred", "restart", "reload"
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """As on the command line, which describes them."""

    parts: tuple[str, ...]
    resources: tuple[int, ...]
    devices: int
    lengths: tuple[int, ...]
    shared: bool
    runs: int
    json: Path | None
    scratch: Path | None
    trees: tuple[Path, ...]
    bare: bool
    reference: bool
    rest_s: float
    events: int
    pause_ms: int
    calls: int
    burst: int
    restarts: int
    many_restarts: int
    down_ms: int
    settle_ms: int
    scans: int
    floor: int
    floor_pause_ms: int

    @property
    def shapes(self) -> list[Shape]:
        return [Shape(count, self.devices, self.shared) for count in self.resources]

    @property
    def long_shapes(self) -> list[Shape]:
        return [Shape(1, length) for length in self.lengths]


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure devhost, a bare Go plugin, and the machine's own times.",
        epilog="parts:\n" + "\n".join(f"  {name:10} {what}" for name, what in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    add(
        "--resources",
        type=_numbers,
        default=(1, 10, 100, 1000),
        metavar="N,…",
        help="numbers of resources (default: 1,10,100,1000)",
    )
    add(
        "--devices",
        type=int,
        default=10,
        metavar="M",
        help="devices of each resource (default: 10)",
    )
    add(
        "--lengths",
        type=_numbers,
        default=(10, 100, 1000, 10000),
        metavar="M,…",
        help="devices of the list in the parts lengths and scan (default: 10,100,1000,10000)",
    )
    add(
        "--shared",
        action="store_true",
        help="all resources watch the same directory, with different patterns",
    )
    add("--runs", type=int, default=5, help="number of runs (default: 5)")
    add("--json", type=Path, metavar="FILE", help="also write all values as JSON")
    add(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="working directory, with a short path for sockets "
        "(default: in that for temporary files)",
    )
    add(
        "--tree",
        dest="trees",
        type=_directory,
        action="append",
        metavar="DIR",
        help="checkout of devhost; repeat it to compare several (default: this one)",
    )
    add("--bare", action="store_true", help="also measure a minimal plugin on grpc.aio")
    add("--no-reference", dest="reference", action="store_false", help="without the Go plugin")
    add(
        "--rest",
        dest="rest_s",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="seconds to measure while idle (default: 30, with one rescan)",
    )
    add(
        "--events",
        type=int,
        default=50,
        metavar="COUNT",
        help="events in a run (default: 50)",
    )
    add(
        "--pause",
        dest="pause_ms",
        type=int,
        default=20,
        metavar="MS",
        help="milliseconds before each event, so that the process is idle (default: 20)",
    )
    add(
        "--calls",
        type=int,
        default=1000,
        metavar="COUNT",
        help="calls from one caller; four times as many from 16 callers (default: 1000)",
    )
    add(
        "--burst",
        type=int,
        default=100,
        metavar="COUNT",
        help="devices of the burst (default: 100)",
    )
    add(
        "--restarts",
        type=int,
        default=3,
        metavar="COUNT",
        help="restarts of kubelet in a run, with the median as result (default: 3)",
    )
    add(
        "--many-restarts",
        type=int,
        default=100,
        metavar="COUNT",
        help="restarts of kubelet in the part backoff (default: 100)",
    )
    add(
        "--down",
        dest="down_ms",
        type=int,
        default=100,
        metavar="MS",
        help="milliseconds without kubelet (default: 100)",
    )
    parser.set_defaults(settle_ms=300, scans=3, floor=200, floor_pause_ms=2)
    found = vars(parser.parse_args(arguments))
    unknown = [part for part in found["parts"] if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    found["parts"] = tuple(found["parts"] or PARTS)
    found["trees"] = tuple(found["trees"] or (ROOT,))
    return Options(**found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _directory(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "devhost").is_dir():
        raise argparse.ArgumentTypeError(f"{text} has no directory devhost")
    return path
