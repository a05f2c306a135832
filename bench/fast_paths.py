"""What each fast path saves against its plain equivalent: ``python -m bench.fast_paths``.

Both run alternately in one process; a line has the least CPU time of each, and their ratio.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.discovery.baseline import baseline, fingerprint
from devhost.discovery.incremental import Incremental
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.loading.loader import loads
from devhost.model.device import Snapshot

SIZES = (10, 1000)
TIMES = 15

Work = Callable[[int], object]


def main() -> None:
    """Print a table."""
    print(f"{'fast path':<22}{'N':>6}{'plain':>12}{'fast':>12}{'ratio':>8}")
    for name, prepare in PATHS.items():
        for size in SIZES:
            with tempfile.TemporaryDirectory() as directory:
                plain, fast = prepare(Path(directory), size)
                costs = [(_cpu(plain, turn), _cpu(fast, turn)) for turn in range(TIMES)]
            slow, quick = (min(times) for times in zip(*costs, strict=True))
            print(f"{name:<22}{size:>6}{slow:>9.3f} ms{quick:>9.3f} ms{slow / quick:>8.1f}")


def _cpu(work: Work, turn: int) -> float:
    began = _cpu_s()
    work(turn)
    return (_cpu_s() - began) * 1000


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _scanners(text: str) -> list[Scanner]:
    config = loads(f"version: v1\nresources:\n{text}", "bench.yaml").require()
    files, policy = HostFiles(), Policy(enforced=False)
    return [Scanner.of(one, files, policy, "node", hold_s=0.0) for one in config.resources]


def _scan(scanner: Scanner, previous: Snapshot, now: float) -> Snapshot:
    found = scanner.select(read_all(scanner.roots, scanner.files))
    return scanner.snapshot(found, previous, lambda _: None, now)


def incremental(directory: Path, size: int) -> tuple[Work, Work]:
    """A new entry in a directory of N devices."""
    for number in range(size):
        (directory / f"d{number}").touch()
    (scanner,) = _scanners(f"- {{name: a.b/c, sources: [directory: {directory}]}}\n")
    snapshot = _scan(scanner, Snapshot(), 0.0)
    names = Incremental(scanner, snapshot)
    (root,) = scanner.roots

    def fast(turn: int) -> None:
        (directory / f"new{turn}").touch()
        assert names.scan({root: {f"new{turn}"}}, 1.0) is not None

    def plain(turn: int) -> None:
        (directory / f"other{turn}").touch()
        _scan(scanner, snapshot, 1.0)

    fast(-1)  # the first one makes an index
    return plain, fast


def encoding(_: Path, size: int) -> tuple[Work, Work]:
    """The message of a list of N devices of which one has changed."""
    entries = {f"device-{number}": AdvertisedDevice(healthy=True) for number in range(size)}
    devices = DeviceList()
    devices.update(entries)
    stream = devices.open_stream()

    def fast(turn: int) -> None:
        devices.change({"device-0": AdvertisedDevice(healthy=bool(turn % 2))}, ())
        devices.begin_send(stream)

    def plain(turn: int) -> None:
        entries["device-0"] = AdvertisedDevice(healthy=bool(turn % 2))
        pb.ListAndWatchResponse(
            devices=[
                pb.Device(ID=key, health="Healthy" if one.healthy else "Unhealthy")
                for key, one in entries.items()
            ]
        ).SerializeToString()

    return plain, fast


def rescan(directory: Path, size: int) -> tuple[Work, Work]:
    """Find out that nothing has changed in N directories, each of one resource and device."""
    paths = [directory / f"d{number}" for number in range(size)]
    for path in paths:
        path.mkdir()
        (path / "device").touch()
    scanners = _scanners(
        "".join(
            f"- {{name: a.b/r{n}, sources: [directory: {path}]}}\n" for n, path in enumerate(paths)
        )
    )
    known = [(one, _scan(one, Snapshot(), 0.0)) for one in scanners]
    before = baseline(map(str, paths))

    def fast(_: int) -> None:
        for path in before:
            fingerprint(path)

    def plain(_: int) -> None:
        for scanner, snapshot in known:
            _scan(scanner, snapshot, 1.0)

    return plain, fast


def valid(directory: Path, size: int) -> tuple[Work, Work]:
    """Load a file of N resources, in a process of its own."""
    file = directory / "config.yaml"
    lines = [f"- {{name: a.b/r{number}, sources: [static: 1]}}\n" for number in range(size)]
    file.write_text("version: v1\nresources:\n" + "".join(lines))

    def load(before: str) -> None:
        program = f"from devhost.loading import loader, shapes\n{before}\n"
        program += f"loader.load({str(file)!r}).require()"
        subprocess.run([sys.executable, "-c", program], check=True)

    return lambda _: load("shapes.valid = lambda *_: int('')"), lambda _: load("")


PATHS = {
    "valid file": valid,
    "incremental scan": incremental,
    "encoded list": encoding,
    "rescan": rescan,
}

if __name__ == "__main__":
    main()
