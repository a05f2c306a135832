"""The nodes that the sources of a resource find, and what is not offered and why."""

import errno
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from devhost.hostfs.files import HostFiles, describe_read_error
from devhost.model import names
from devhost.model.device import Cause, Skipped, Verdict, no_explanation
from devhost.model.device_node import FileKind, FileState, Hardware, Node
from devhost.model.hardware_sources import Pci, Sysfs, Usb
from devhost.model.sources import Cdi, Dev, Directory, Glob, Static
from devhost.model.sources import Source as SourceSpec
from devhost.sources import explain
from devhost.sources.base import Candidate, Listings, Location, NodeSource, list_location
from devhost.sources.cdi_specs import CdiSource
from devhost.sources.file_sources import FileListing, FileSource
from devhost.sources.kernel import KernelSource
from devhost.sources.static import StaticSource

_DANGLING: Final = Verdict(Cause.DANGLING, "dangling link")
_DIRECTORY: Final = Verdict(Cause.WRONG_TYPE, "a directory: name it in `types` to offer it")
_TOO_LONG: Final = Verdict(Cause.UNREADABLE, "its path is too long for the kernel")


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
            `no_explanation`.
    """

    nodes: tuple[Node, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed_sources: Mapping[int, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explain_empty: Callable[[], tuple[str, ...]] = field(default=no_explanation, compare=False)


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
    merged = Selection(
        tuple(node for selection in selections for node in selection.nodes),
        tuple(skip for selection in selections for skip in selection.skipped),
        {index: why for selection in selections for index, why in selection.failed_sources.items()},
        {path: why for selection in selections for path, why in selection.unreadable.items()},
        tuple(note for selection in selections for note in selection.notes),
    )
    empty = [selection.explain_empty for selection in selections]
    explains_itself = not grouped and bool(merged.nodes or merged.skipped)
    if explains_itself or all(explain is no_explanation for explain in empty):
        return merged
    return replace(
        merged, explain_empty=lambda: tuple(text for explain in empty for text in explain())
    )


class CompiledSource:
    """A source, and what the resource says of its nodes. Its methods block."""

    def __init__(self, index: int, spec: SourceSpec, source: NodeSource) -> None:
        kind = spec.kind
        self.spec, self.source, self._index = spec, source, index
        self._types = kind.types if isinstance(kind, Directory | Glob | Dev) else None
        self._in_use = isinstance(kind, Static | Cdi) or kind.in_use
        self._previous: Mapping[str, Node] = {}  # the nodes that were found last, by path

    @classmethod
    def of(
        cls, index: int, spec: SourceSpec, mentioned: frozenset[str], cdi_dirs: tuple[str, ...]
    ) -> "CompiledSource":
        """Compile a source of the file; templates have `mentioned` variables."""
        source: NodeSource
        match spec.kind:
            case Directory() | Glob() | Dev() as options:
                source = FileSource(options)
            case Static() as options:
                source = StaticSource(options)
            case Usb() | Pci() | Sysfs() as options:
                source = KernelSource(options, mentioned)
            case Cdi() as options:
                source = CdiSource(options, cdi_dirs)
        return cls(index, spec, source)

    def select(self, listings: Listings) -> Selection:
        """Return what the source finds."""
        of_source = [listings[location] for location in self.source.locations]
        if reason := next((listing.failure for listing in of_source if listing.failure), None):
            return Selection(failed_sources={self._index: reason})
        unreadable = {path: why for part in of_source for path, why in part.unreadable.items()}
        skipped = [_unreadable(path, why) for path, why in unreadable.items()]
        nodes, refused_units = list[Node](), set[str]()
        for candidate in self.source.find(listings, self._previous):
            judged: Node | Skipped | None
            if isinstance(candidate, Candidate):
                judged = self._judge(candidate, unreadable)
                if candidate.hardware is not None and not isinstance(judged, Node):
                    refused_units.add(candidate.hardware.unit)
            else:
                judged = candidate
            if isinstance(judged, Node):
                nodes.append(judged)
            elif judged is not None:
                skipped.append(judged)
        if refused_units:  # another node of a disk, such as its controller's, is the disk
            nodes = [n for n in nodes if n.hardware is None or n.hardware.unit not in refused_units]
        self._previous = {node.path: node for node in nodes}
        failure = self.source.failure(listings)
        failed = {self._index: failure} if failure else {}
        selection = Selection(tuple(nodes), tuple(skipped), failed, unreadable)
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
        text = self.source.empty_text
        return text or explain.explain_empty(self.spec.kind, self.source.unmatched(listings))

    def _judge(self, candidate: Candidate, unreadable: dict[str, str]) -> Node | Skipped | None:
        """Return the node of a candidate, or why it is not offered.

        ``None``: what is `unreadable` has said why.
        """
        path, hardware, state, wrong_node = candidate.path, candidate.hardware, None, None
        problem = _name_problem(f"{path}{candidate.name}")
        if problem is None and candidate.exclusion is not None:
            problem = Verdict(Cause.EXCLUDED, candidate.exclusion)
        if problem is None and candidate.listing is not None:
            try:
                state = candidate.listing.state(path)
                wrong_node = _node_problem(path, state, hardware) if hardware else None
                if wrong_node is None:
                    problem = self._problem(candidate.listing, path, state, hardware)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    unreadable[path] = describe_read_error(error)
                    return _unreadable(path, unreadable[path])
                problem = _TOO_LONG
        if problem is not None:
            label = names.printable(path or candidate.name)
            return None if path in unreadable else Skipped(label, problem)
        role = self.spec.role or (hardware.role if hardware else None)
        name, variables = candidate.name, candidate.variables
        return Node(path, state, self._index, name, variables, role, hardware, wrong_node)

    def _problem(
        self, listing: FileListing, path: str, state: FileState | None, hardware: Hardware | None
    ) -> Verdict | None:
        """Return why a candidate cannot be offered, by what is at its path."""
        if state is None:
            return _DANGLING
        kind, types = state.kind, self._types
        if hardware is None and types is None and kind is FileKind.DIRECTORY:
            return _DIRECTORY
        if hardware is None and types is not None:
            has_type = kind.value in types or ("symlink" in types and path in listing.links)
            if not has_type:
                return Verdict(Cause.WRONG_TYPE, f"a {kind.value}, not {' or '.join(types)}")
        if kind is FileKind.BLOCK and state.number is not None and not self._in_use:
            use = listing.host_use.problem("block", state.number)
            if use is not None:
                return Verdict(Cause.IN_USE, f"in use: {use}")
        return _name_problem(state.realpath)


def _unreadable(path: str, reason: str) -> Skipped:
    text = f"cannot be read: {reason}"
    return Skipped.because(Cause.UNREADABLE, names.printable(path), text)


def _node_problem(path: str, state: FileState | None, hardware: Hardware) -> str | None:
    """Return what is there instead of the node that the kernel has."""
    if state is None:
        return f"{path} is not there, but the kernel has it"
    if state.number != hardware.number:
        return f"{path} is {_number(state.number)}, the kernel's is {_number(hardware.number)}"
    return None


def _number(number: tuple[int, int] | None) -> str:
    return "no device node" if number is None else "{}:{}".format(*number)


def _name_problem(text: str) -> Verdict | None:
    """Return why a name cannot be handed out, whatever has it."""
    if text.isprintable() or not ({"\n", "\t"} & set(text) or names.text_problem(text)):
        return None
    return Verdict(Cause.BAD_NAME, "unusable name: it is not UTF-8, or has control characters")
