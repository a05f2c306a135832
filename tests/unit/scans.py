"""A host that is scanned again and again while its hardware changes."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.hardware import HostTree

FTDI: Final = (Path(__file__).parent / "trees/ftdi.tree").read_text()
SERIAL: Final = "usb: {device: 0403:6001, node: tty}"


class Scans:
    """Scans a host again and again, each time as another tree."""

    def __init__(self, directory: Path, source: str, more: str = "", hold_s: float = 0.0) -> None:
        text = f"version: v1\nresources: [{{name: example.com/a, sources: [{{{source}}}]{more}}}]"
        (self._resource,) = loads(text).require().resources
        self._directory, self._count = directory, itertools.count()
        self.snapshot = Snapshot()
        self.now, self._hold_s = 0.0, hold_s

    def tree(self, text: str) -> HostTree:
        """Return a host with this hardware."""
        tree = HostTree(self._directory / f"host{next(self._count)}")
        tree.hardware(text)
        return tree

    def scan(
        self, text: str, after: float = 60.0, owner_of: Callable[[str], str | None] = lambda _: None
    ) -> dict[str, str | None]:
        """Return the devices then, and why those are unhealthy that are."""
        return self.scan_tree(self.tree(text), after, owner_of)

    def scan_tree(
        self,
        tree: HostTree,
        after: float = 60.0,
        owner_of: Callable[[str], str | None] = lambda _: None,
    ) -> dict[str, str | None]:
        """Do so for a host that is there."""
        self.now += after
        files = HostFiles(str(tree.root))
        scanner = Scanner.of(self._resource, files, Policy(), "node", hold_s=self._hold_s)
        found = scanner.select(read_all(scanner.roots, files))
        self.snapshot = scanner.snapshot(found, self.snapshot, owner_of, self.now)
        return {one.id: one.reason for one in self.snapshot.devices.values()}

    def paths(self, device_id: str) -> tuple[str, ...]:
        """Return the host paths of a device."""
        return self.snapshot.devices[device_id].paths

    def skipped(self) -> dict[str, str]:
        """Return what is not offered, and why."""
        return {one.candidate: one.reason for one in self.snapshot.skipped}


def without(text: str, *names: str) -> str:
    """Return hardware without devices and what is below them."""
    kept, depth = [], None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent > depth:
            continue
        depth = None
        if line.split()[1:2] and line.split()[1] in names:
            depth = indent
            continue
        kept.append(line)
    return "\n".join(kept)
