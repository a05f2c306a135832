"""Reads the host for one resource alone, and scans it one time after another."""

from collections.abc import Callable
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.context import OwnerOf, Owners, ScanContext
from devhost.devices.identify import identify
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.sources.selection import Selection, list_all
from tests.support.devices import leaving, reasons


def selected(scanner: Scanner) -> Selection:
    """Return what a resource's sources find now."""
    return scanner.select(list_all(scanner.locations, scanner.files))


def survey(resource: Resource, files: HostFiles) -> Selection:
    """Return the same for a resource that is not compiled."""
    return selected(Scanner(resource, files, Policy(), "", settle_s=0.0))


def look(root: Path, *sources: str) -> Selection:
    """Return what a resource with these sources (in YAML's flow style) finds below a root."""
    text = f"version: v1\nresources:\n- name: e.com/a\n  sources: [{', '.join(sources)}]\n"
    (resource,) = loads(text).require().resources
    return survey(resource, HostFiles(str(root)))


def nobody(_key: str) -> str | None:
    return None


def snapshot_of(
    scanner: Scanner,
    selection: Selection,
    previous: Snapshot,
    owner_of: OwnerOf,
    now: float,
    *,
    full: bool = True,
) -> Snapshot:
    """Return the next snapshot of a resource alone."""
    constants, settle_s = scanner.constants, scanner.settle_s
    owners = Owners(owner_of)
    context = ScanContext(scanner.resource, previous, owners, now, settle_s, constants)
    return scanner.verify(identify(selection, context), full=full)


class Scans:
    """A host's root, and the scans of one resource, of which a text has the options."""

    def __init__(self, root: Path, text: str) -> None:
        self.root, self.settle_s, self.policy = root, 0.0, Policy()
        self.now, self.last = 0.0, Snapshot()
        self.configure(text)

    def configure(self, text: str) -> None:
        body = "".join(f"  {line}\n" for line in text.strip().splitlines())
        (resource,) = loads(f"version: v1\nresources:\n- name: e.com/a\n{body}").require().resources
        files = HostFiles(str(self.root))
        self.scanner = Scanner(resource, files, self.policy, "node", settle_s=self.settle_s)

    def make(self, *names: str) -> None:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).touch()

    def remove(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink()

    def scan(
        self,
        after: float = 0.0,
        claimed: Callable[[str], str | None] = nobody,
        selection: Selection | None = None,
    ) -> Snapshot:
        """Scan once more, so many seconds after the last time."""
        self.now += after
        selection = selection or selected(self.scanner)
        self.last = snapshot_of(self.scanner, selection, self.last, claimed, self.now)
        return self.last

    def states(self, after: float = 0.0) -> dict[str, str | None]:
        """Scan; return each device with why it is unhealthy."""
        return reasons(self.scan(after))

    @property
    def replaced(self) -> set[str]:
        return leaving(self.last)
