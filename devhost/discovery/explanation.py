"""Why a source finds what it finds: what was looked at, taken and left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from devhost.discovery import wording
from devhost.discovery.match import Readings
from devhost.discovery.selection import finder, select
from devhost.hostfs.file_owners import FileOwners
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import Node, Snapshot

_SHOWN_MAX: Final = 100  # of what a source does not select


@immutable
class ExplainedCandidate:
    """What a source has looked at.

    Attributes:
        candidate: Its name.
        taken: Whether it is offered.
        reasons: Why it is not, or what is to be known of it.
        paths: Its nodes.
    """

    candidate: str
    taken: bool
    reasons: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@immutable
class Explanation:
    """What a source of a resource has looked at.

    Attributes:
        source: Which source of the resource, counted from 0.
        summary: The source in words, and why it could not be read.
        candidates: Taken ones, then by how much they match.
        other: How many others there are.
    """

    source: int
    summary: str
    candidates: tuple[ExplainedCandidate, ...]
    other: int = 0


def explain(
    resource: Resource,
    readings: Readings,
    snapshot: Snapshot,
    owners: FileOwners,
) -> Iterator[Explanation]:
    """Say of each source what it has looked at. Blocks.

    Args:
        resource: The declaration.
        readings: Of all roots of the resource.
        snapshot: What came of it: which devices there are, and what is skipped.
        owners: Tells who owns a node.
    """
    offered = {
        node.key: device.reason for device in snapshot.devices.values() for node in device.nodes
    }
    skipped = {one.candidate: one.reason for one in snapshot.skipped}
    for index, source in enumerate(resource.sources):
        selection = select(resource.model_copy(update={"sources": (source,)}), readings)
        taken: dict[str, list[Node]] = {}
        for node in selection.nodes:
            label = node.hardware.label if node.hardware else node.path or node.name
            taken.setdefault(label, []).append(node)
        cdi = resource.inject != "cdi"
        found = [
            _judged(label, nodes, offered, skipped, _groups(nodes, owners, cdi=cdi))
            for label, nodes in taken.items()
        ]
        found.sort(key=lambda one: not one.taken)
        found += [
            ExplainedCandidate(one.candidate, taken=False, reasons=(one.reason,))
            for one in selection.skipped
        ]
        failures = (*selection.failed.values(), *selection.notes)
        left = () if failures else finder(source.kind, resource).missed(readings)
        missed = [
            ExplainedCandidate(one.name, taken=False, reasons=wording.reasons(one))
            for one in wording.in_order(left)
        ]
        summary = "; ".join((wording.summary(source.kind), *failures))
        shown, other = missed[:_SHOWN_MAX], max(len(missed) - _SHOWN_MAX, 0)
        yield Explanation(index, summary, (*found, *shown), other)


def mistakes(resource: Resource, snapshot: Snapshot) -> Iterator[str]:
    """Say what is found that is surely not meant."""
    unnamed = {
        index
        for index, source in enumerate(resource.sources)
        if source.usb is not None and source.usb.node is None
    }
    nodes = [node for device in snapshot.devices.values() for node in device.nodes]
    for node in nodes:
        if node.source not in unnamed or node.hardware is None:
            continue
        ports = names.natural(one for one in node.hardware.claims if one.startswith("/dev/tty"))
        if ports:
            yield (
                f"usb {node.variables['usb.device']} has tty nodes, but the USB node is handed "
                f"out: node: tty gives {', '.join(ports)}"
            )


def _judged(
    label: str,
    nodes: Sequence[Node],
    offered: Mapping[str, str | None],
    skipped: Mapping[str, str],
    groups: str | None,
) -> ExplainedCandidate:
    paths = tuple(node.shown for node in nodes if node.shown)
    reason = next((skipped[name] for name in (label, *paths) if name in skipped), None)
    lacks = nodes[0].hardware.incomplete if nodes[0].hardware else None
    unhealthy = next((offered[node.key] for node in nodes if offered.get(node.key)), None)
    taken = any(node.key in offered for node in nodes) and reason is None
    problems = (
        reason,
        lacks,
        *(node.problem for node in nodes),
        unhealthy,
        groups if taken else None,
    )
    return ExplainedCandidate(label, taken, tuple(dict.fromkeys(filter(None, problems))), paths)


def _groups(nodes: Sequence[Node], owners: FileOwners, *, cdi: bool) -> str | None:
    """Say which groups a container needs that is not root."""
    numbers = [node.state.realpath for node in nodes if node.state and node.state.number]
    access = filter(None, map(owners.of, numbers))
    listed = ", ".join(dict.fromkeys(str(one.gid) for one in access if one.only_by_group))
    needs = f"a container that is not root needs supplementalGroups: [{listed}]"
    return f"{needs}{', or inject: cdi' if cdi else ''}" if listed else None
