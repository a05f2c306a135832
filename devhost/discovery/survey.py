"""What a resource's sources find on the host, judged one by one; the reading half of a scan."""

import errno
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from devhost.discovery import block_use
from devhost.discovery.baseline import Baseline
from devhost.discovery.dev import DevFinder
from devhost.discovery.directory import DirectoryFinder
from devhost.discovery.glob import GlobFinder
from devhost.discovery.match import Finder, Match, WatchRoot
from devhost.discovery.static import StaticFinder
from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import Number
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, Node, Skipped
from devhost.model.sources import Dev, Directory, Glob, Kind, Source, Static

DANGLING: Final = "dangling link"
IN_USE: Final = "in use: "
_TOO_LONG: Final = "its path is too long for the kernel"


@immutable
class Survey:
    """What was found.

    Attributes:
        nodes: Candidates in the order of the sources, then in natural order of their names.
        skipped: What is not to be offered.
        failed: By source, why it could not be read.
        notes: What is not there yet.
        unmatched: Why nothing is found, where nothing is missing and no source finds anything.
        keys: Which nodes are found (`Node.key`), without tokens.
        baseline: What the directories were like before; ``None`` where that is not known.
    """

    nodes: tuple[Node, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    baseline: Baseline | None = None


def finder(kind: Kind) -> Finder:
    """Return what finds the devices of a kind of source."""
    match kind:
        case Directory():
            return DirectoryFinder(kind)
        case Glob():
            return GlobFinder(kind)
        case Dev():
            return DevFinder(kind)
        case Static():
            return StaticFinder(kind)


def watch_roots(resource: Resource) -> frozenset[WatchRoot]:
    """Return the host directories whose changes may change what a resource's sources find."""
    return frozenset(
        root for source in resource.sources for root in finder(source.kind).watch_roots()
    )


def survey(resource: Resource, files: HostFiles) -> Survey:
    """Look at the host. Blocks; never raises for what the host does."""
    nodes: list[Node] = []
    skipped: list[Skipped] = []
    failed: dict[int, str] = {}
    notes: list[str] = []
    unmatched: list[str] = []
    for index, source in enumerate(resource.sources):
        found = finder(source.kind)
        try:
            matches = names.in_order(
                found.find(files), lambda match: (names.natural_key(match.name), match.name)
            )
            judged = Judge(index, source, files)
            for match in matches:
                result = judged.judge(match)
                if isinstance(result, Node):
                    nodes.append(result)
                else:
                    skipped.append(result)
            if not matches and (note := found.missing(files)):
                notes.append(note)
            elif not (nodes or skipped):
                unmatched.append(found.unmatched(files))
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            failed[index] = f"{error.strerror or error}{where}"
    if nodes or skipped:
        unmatched = []
    return Survey(tuple(nodes), tuple(skipped), failed, tuple(notes), tuple(unmatched))


class Judge:
    """Decides which matches of a source are candidates.

    Without `uses` it does not find out what uses block devices: all count as in use.
    """

    def __init__(self, index: int, source: Source, files: HostFiles, *, uses: bool = True) -> None:
        kind = source.kind
        self._index, self._source, self._files = index, source, files
        self._looks = files.cached()
        self._types = None if isinstance(kind, Static) else kind.types
        self._in_use = isinstance(kind, Static) or kind.in_use
        self._used: frozenset[Number] | None = None
        self._uses = uses

    def judge(self, match: Match) -> Node | Skipped:
        """Return the candidate, or why it is none."""
        problem, state = _unusable(match.path, match.name) or match.excluded, None
        if problem is None and match.path:
            try:
                state = self._looks.stat(match.path)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                problem = _TOO_LONG
            else:
                problem = DANGLING if state is None else self._unfit(match.path, state)
        if problem is not None:
            return Skipped(names.printable(match.path or match.name), problem)
        role = self._source.role
        return Node(match.path, state, self._index, match.name, match.variables, role)

    def _unfit(self, path: str, state: FileState) -> str | None:
        problem = self._wrong_type(path, state) or self._busy(state)
        return problem or _unusable(state.realpath)

    def _wrong_type(self, path: str, state: FileState) -> str | None:
        if self._types is None:
            directory = state.kind is FileKind.DIRECTORY
            return "a directory: name it in `types` to offer it" if directory else None
        if state.kind.value in self._types:
            return None
        if "symlink" in self._types and self._files.is_link(path):
            return None
        return f"a {state.kind.value}, not {' or '.join(self._types)}"

    def _busy(self, state: FileState) -> str | None:
        if self._in_use or state.kind is not FileKind.BLOCK or state.number is None:
            return None
        if not self._uses:
            return IN_USE
        if self._used is None:
            self._used = block_use.in_use(self._files)
        use = block_use.use_of(state.number, self._used, self._files)
        return f"{IN_USE}{use}" if use else None


def _unusable(*texts: str) -> str | None:
    for text in texts:
        if "\n" in text or "\t" in text or names.text_problem(text):
            return "unusable name: it is not UTF-8, or has control characters"
    return None
