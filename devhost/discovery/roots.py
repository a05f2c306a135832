"""Where a resource's sources look, and whether events from there tell all that may change."""

import os
from collections.abc import Iterable, Iterator

from devhost.discovery.match import Finder
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import DANGLING, IN_USE, Survey, finder
from devhost.immutable import immutable
from devhost.model.device import FileKind, Node, Snapshot


@immutable
class Root:
    """A watched directory of a source: where it is seen and how its paths begin."""

    shown: str
    path: str
    real: str
    index: int
    finder: Finder


def roots_of(scanner: Scanner) -> Iterator[Root]:
    """Yield the roots of all sources, as they are now. Blocks."""
    files = scanner.files
    for index, source in enumerate(scanner.resource.sources):
        found = finder(source.kind)
        for root in found.watch_roots():
            real = files.resolve(root.path)
            shown = files.to_local(real).rstrip("/")
            yield Root(shown, root.path.rstrip("/"), real.rstrip("/"), index, found)


def is_silent(path: str) -> bool:
    """Whether there are no events at a path: the kernel makes up what is there."""
    return f"{path}/".startswith(("/sys/", "/proc/"))


def entangled(roots: Iterable[Root], node: Node) -> bool:
    """Whether a node is not all its own: what happens to another path may change it."""
    state = node.state
    if state is None or state.kind is FileKind.DIRECTORY:
        return True
    return not any(  # it is, or it is behind, a link
        root.index == node.source
        and node.path.startswith(root.path + "/")
        and state.realpath == root.real + node.path[len(root.path) :]
        for root in roots
    )


def told_by_events(scanner: Scanner, found: Survey, snapshot: Snapshot) -> bool:
    """Whether the events of the watched directories tell all that may change a snapshot. Blocks.

    They tell nothing of where links lead, of what uses a block device, of what else containers
    are given, of whether a CDI spec can be written, and of why a device is not fit to be given.
    """
    if found.failed:  # where the roots lead may not be answered either
        return False
    roots, files = list(roots_of(scanner)), scanner.files
    return (
        scanner.by_path
        and scanner.resource.inject != "cdi"
        and snapshot.error is None
        and not any(one.reason and one.missing_since is None for one in snapshot.devices.values())
        and scanner.self_contained
        and not any(root.real != root.path or is_silent(root.path) for root in roots)
        and all(root.finder.by_path for root in roots)  # else links may be on the way
        and not any(
            one.reason == DANGLING
            or one.reason.startswith(IN_USE)
            or os.path.islink(files.to_local(one.candidate))
            for one in found.skipped
        )
        and not any(
            node.state and (node.state.kind is FileKind.BLOCK or entangled(roots, node))
            for node in found.nodes
        )
    )
