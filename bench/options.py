"""What to measure, how often and how long."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.build import ROOT
from bench.scene import Shape

PARTS: Final = {
    "floor": "what the machine needs for an event and for a byte there and back",
    "start": "from exec to all registered and listed",
    "sizes": "memory, threads, descriptors, inotify instances",
    "rest": "CPU, wake-ups and messages while nothing happens",
    "events": "a device comes, a device goes",
    "burst": "many devices at once",
    "allocate": "Allocate, alone and from 16 callers",
    "preferred": "GetPreferredAllocation, the same",
    "restart": "kubelet restarts",
    "reload": "a configuration that changes one resource",
    "backoff": "many restarts of kubelet with one resource",
    "lengths": "events with one resource and the --lengths of its list",
    "shared": "start and sizes where all resources watch one directory; one device each",
    "scan": "CPU of looking and rendering alone",
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
        description="Measure devhost beside a bare Go plugin and the machine's floor.",
        epilog="parts:\n" + "\n".join(f"  {name:10} {what}" for name, what in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="which parts (default: all)")
    add(
        "--resources",
        type=_numbers,
        default=(1, 10, 100, 1000),
        metavar="N,…",
        help="how many resources, in turn (default: 1,10,100,1000)",
    )
    add("--devices", type=int, default=10, metavar="M", help="of each resource (default: 10)")
    add(
        "--lengths",
        type=_numbers,
        default=(10, 100, 1000, 10000),
        metavar="M,…",
        help="of the one list in the parts lengths and scan (default: 10,100,1000,10000)",
    )
    add(
        "--shared",
        action="store_true",
        help="all resources watch the same directory, by different patterns",
    )
    add("--runs", type=int, default=5, help="of everything, in turn (default: 5)")
    add("--json", type=Path, metavar="FILE", help="write all values too")
    add(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where to work (default: below the usual "
        "directory for temporary files). Keep it short: sockets are made in it",
    )
    add(
        "--tree",
        dest="trees",
        type=_directory,
        action="append",
        metavar="DIR",
        help="devhost's checkout; several are measured beside each other (default: this one)",
    )
    add("--bare", action="store_true", help="beside the least that a plugin on grpc.aio takes")
    add("--no-reference", dest="reference", action="store_false", help="without the Go plugin")
    add(
        "--rest",
        dest="rest_s",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="to watch at rest (default: 30, in which each resource looks again once)",
    )
    add(
        "--events",
        type=int,
        default=50,
        metavar="COUNT",
        help="devices that come and go in a run (default: 50)",
    )
    add(
        "--pause",
        dest="pause_ms",
        type=int,
        default=20,
        metavar="MS",
        help="before each, so that it finds a process at rest (default: 20)",
    )
    add(
        "--calls",
        type=int,
        default=1000,
        metavar="COUNT",
        help="alone; four times as many from 16 callers (default: 1000)",
    )
    add("--burst", type=int, default=100, metavar="COUNT", help="(default: 100)")
    add(
        "--restarts",
        type=int,
        default=3,
        metavar="COUNT",
        help="of kubelet in a run, of which the median is taken (default: 3)",
    )
    add(
        "--many-restarts",
        type=int,
        default=100,
        metavar="COUNT",
        help="of kubelet in the part backoff (default: 100)",
    )
    add(
        "--down",
        dest="down_ms",
        type=int,
        default=100,
        metavar="MS",
        help="that kubelet is away (default: 100)",
    )
    parser.set_defaults(settle_ms=300, scans=3, floor=200, floor_pause_ms=2)
    found = vars(parser.parse_args(arguments))
    unknown = [part for part in found["parts"] if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    found["parts"] = tuple(found["parts"] or PARTS)
    found["trees"] = tuple(found["trees"] or (ROOT,))
    return Options(**found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _directory(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "devhost").is_dir():
        raise argparse.ArgumentTypeError(f"{text} has no folder devhost")
    return path
