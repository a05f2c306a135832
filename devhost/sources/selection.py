"""The nodes that the sources of a resource find, and what is not offered and why."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from devhost.hostfs.files import HostFiles
from devhost.model.device import Node, Skipped
from devhost.model.hardware_sources import Pci, Sysfs, Usb
from devhost.model.sources import Dev, Directory, Glob, Static
from devhost.model.sources import Source as SourceSpec
from devhost.sources import explain
from devhost.sources.base import Listings, Location, NodeSource, Unmatched, list_location
from devhost.sources.file_sources import FileSource
from devhost.sources.filter import CandidateFilter
from devhost.sources.kernel import KernelSource
from devhost.sources.static import StaticSource


@dataclass(frozen=True, slots=True)
class Selection:
    """The nodes that sources find.

    Attributes:
        nodes: In the order of the sources, then in natural order of their names.
        failed_sources: By source, why it could not be read.
        unreadable: By path, why it or what is below it could not be read.
        notes: What is not there yet.
        explain_empty: Returns why nothing is found, where nothing is missing and no source finds
            anything; of a group, which needs a node of each, why a source finds nothing. Else
            `tuple`.
    """

    nodes: tuple[Node, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed_sources: Mapping[int, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explain_empty: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)


def list_all(locations: Iterable[Location], files: HostFiles) -> Listings:
    """List locations, one after the other. Blocks."""
    return {location: list_location(location, files) for location in locations}


def select(sources: Iterable["CompiledSource"], listings: Listings, *, grouped: bool) -> Selection:
    """Return what a resource's sources find.

    Blocks: it reads what is at the names. Never raises for what the host does.
    """
    selections = [source.select(listings) for source in sources]
    if len(selections) == 1:
        return selections[0]
    nodes = tuple(node for selection in selections for node in selection.nodes)
    skipped = tuple(skip for selection in selections for skip in selection.skipped)
    failed_sources, unreadable = dict[int, str](), dict[str, str]()
    for selection in selections:
        failed_sources |= selection.failed_sources
        unreadable |= selection.unreadable
    notes = tuple(note for selection in selections for note in selection.notes)
    empty = [selection.explain_empty for selection in selections]
    if ((nodes or skipped) and not grouped) or all(explain is tuple for explain in empty):
        return Selection(nodes, skipped, failed_sources, unreadable, notes)

    def explain_empty() -> tuple[str, ...]:
        return tuple(text for explain in empty for text in explain())

    return Selection(nodes, skipped, failed_sources, unreadable, notes, explain_empty)


class CompiledSource:
    """A source, and what the resource says of its nodes."""

    def __init__(self, index: int, spec: SourceSpec, source: NodeSource) -> None:
        self.spec, self._index, self._source = spec, index, source
        self.locations = source.locations
        self._previous: Mapping[str, Node] = {}  # the nodes that were found last, by path

    @classmethod
    def of(cls, index: int, spec: SourceSpec, mentioned: frozenset[str]) -> "CompiledSource":
        """Compile a source of the file; templates have `mentioned` variables."""
        source: NodeSource
        match spec.kind:
            case Directory() | Glob() | Dev() as options:
                source = FileSource(options)
            case Static() as options:
                source = StaticSource(options)
            case Usb() | Pci() | Sysfs() as options:
                source = KernelSource(options, mentioned)
        return cls(index, spec, source)

    def unmatched(self, listings: Listings) -> Iterable[Unmatched]:
        """Return what the source has not matched. Blocks."""
        return self._source.unmatched(listings)

    def select(self, listings: Listings) -> Selection:
        """Return what the source finds. Blocks."""
        of_source = [listings[location] for location in self.locations]
        if reason := next((listing.failure for listing in of_source if listing.failure), None):
            return Selection(failed_sources={self._index: reason})
        judge = CandidateFilter(self._index, self.spec)
        for listing in of_source:
            judge.add_unreadable(listing.unreadable)
        judge.add(self._source.find(listings, self._previous))
        nodes, skipped = tuple(judge.nodes), tuple(judge.skipped)
        self._previous = {node.path: node for node in nodes}
        selection = Selection(nodes, skipped, unreadable=judge.unreadable)
        if nodes or skipped:
            return selection
        # Only a bus can be missing: classes come with the first device of them.
        needed = of_source[:1] if isinstance(self.spec.kind, Usb | Pci | Sysfs) else of_source
        notes = tuple(listing.missing for listing in needed if listing.missing)[:1]
        if notes or self.spec.optional:
            return replace(selection, notes=notes)
        explain_empty = functools.cache(lambda: (self._explain_empty(listings),))
        return replace(selection, explain_empty=explain_empty)

    def _explain_empty(self, listings: Listings) -> str:
        text = self._source.empty_text
        return text or explain.explain_empty(self.spec.kind, self.unmatched(listings))
