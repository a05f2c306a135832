"""Judges which candidates of a source are nodes of devices."""

import errno
from collections.abc import Iterable, Mapping
from typing import Final

from devhost.hostfs.files import describe_read_error
from devhost.model import names
from devhost.model.device import Cause, FileKind, FileState, Hardware, Node, Skipped, Verdict
from devhost.model.sources import Dev, Directory, Glob, Static
from devhost.model.sources import Source as SourceSpec
from devhost.sources.base import Candidate
from devhost.sources.file_sources import FileListing

_DANGLING: Final = Verdict(Cause.DANGLING, "dangling link")
_DIRECTORY: Final = Verdict(Cause.WRONG_TYPE, "a directory: name it in `types` to offer it")
_TOO_LONG: Final = Verdict(Cause.UNREADABLE, "its path is too long for the kernel")


class CandidateFilter:
    """Judges the candidates of a source, as parts of a `Selection`. Its methods block."""

    def __init__(self, index: int, spec: SourceSpec) -> None:
        kind = spec.kind
        self._index, self._role = index, spec.role
        self._types = kind.types if isinstance(kind, Directory | Glob | Dev) else None
        self._in_use = isinstance(kind, Static) or kind.in_use
        self.nodes: list[Node] = []
        self.skipped: list[Skipped] = []
        self.unreadable: dict[str, str] = {}
        self._skipped_units: set[str] = set()

    def add_unreadable(self, reasons: Mapping[str, str]) -> None:
        """Skip what cannot be read, by path."""
        for path, reason in reasons.items():
            self.unreadable[path] = reason
            text = f"cannot be read: {reason}"
            self.skipped.append(Skipped.because(Cause.UNREADABLE, names.printable(path), text))

    def add(self, candidates: Iterable[Candidate | Node | Skipped]) -> None:
        """Add the nodes of a source; candidates are judged before."""
        for candidate in candidates:
            match candidate:
                case Node():
                    self.nodes.append(candidate)
                case Skipped():
                    self.skipped.append(candidate)
                case Candidate():
                    self._judge(candidate)
        if self._skipped_units:  # another node of a disk, such as its controller's, is the disk
            self.nodes = [
                node
                for node in self.nodes
                if node.hardware is None or node.hardware.unit not in self._skipped_units
            ]

    def _judge(self, candidate: Candidate) -> None:
        path, hardware, state, wrong_node = candidate.path, candidate.hardware, None, None
        problem = _name_problem(f"{path}{candidate.name}")
        if problem is None and candidate.exclusion is not None:
            problem = Verdict(Cause.EXCLUDED, candidate.exclusion)
        if candidate.entry is not None and problem is None:
            listing, name = candidate.entry
            try:
                state = listing.state(name)
                wrong_node = _node_problem(path, state, hardware) if hardware else None
                if wrong_node is None:
                    problem = self._problem(listing, name, state, hardware)
            except OSError as error:
                problem = _TOO_LONG
                if error.errno != errno.ENAMETOOLONG:
                    self.add_unreadable({path: describe_read_error(error)})
        if problem is not None:
            if path not in self.unreadable:
                label = names.printable(path or candidate.name)
                self.skipped.append(Skipped(label, problem))
            if hardware is not None:
                self._skipped_units.add(hardware.unit)
            return
        if state is not None and state.realpath == path:
            path = state.realpath  # one object for both
        role = self._role or (hardware.role if hardware else None)
        name, variables = candidate.name, candidate.variables
        self.nodes.append(
            Node(path, state, self._index, name, variables, role, hardware, wrong_node)
        )

    def _problem(
        self, listing: FileListing, name: str, state: FileState | None, hardware: Hardware | None
    ) -> Verdict | None:
        """Return why a candidate cannot be offered, by what is at its path."""
        if state is None:
            return _DANGLING
        is_link = name in listing.links
        wrong_type = None if hardware else self._type_problem(state, is_link=is_link)
        return wrong_type or self._use_problem(listing, state) or _name_problem(state.realpath)

    def _type_problem(self, state: FileState, *, is_link: bool) -> Verdict | None:
        if self._types is None:
            return _DIRECTORY if state.kind is FileKind.DIRECTORY else None
        if state.kind.value in self._types or ("symlink" in self._types and is_link):
            return None
        text = f"a {state.kind.value}, not {' or '.join(self._types)}"
        return Verdict(Cause.WRONG_TYPE, text)

    def _use_problem(self, listing: FileListing, state: FileState) -> Verdict | None:
        if self._in_use or state.kind is not FileKind.BLOCK or state.number is None:
            return None
        use = listing.block_use.problem(state.number)
        return Verdict(Cause.IN_USE, f"in use: {use}") if use else None


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
