"""Why a source finds what it finds: what was looked at, taken and left."""

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from devhost.discovery.match import Finder, Readings, distance
from devhost.discovery.selection import finder, select
from devhost.discovery.usb import UsbFinder
from devhost.hostfs.file_owners import FileOwners
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import Node, Snapshot

_SHOWN_MAX: Final = 100  # of what a source leaves out, before it is shortened for people


@immutable
class ExplainedCandidate:
    """What a source has looked at.

    Attributes:
        candidate: Its name.
        taken: Whether it is offered.
        reasons: Why it is not, or what is to be known of it.
        paths: Its nodes.
        nodes: The same with their numbers and permissions, for people.
    """

    candidate: str
    taken: bool
    reasons: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@immutable
class Explanation:
    """What a source of a resource has looked at.

    Attributes:
        source: Which source of the resource, counted from 0.
        summary: The source in words.
        looked: How many things it has looked at.
        candidates: Those that are worth a line: taken ones, then by how much they match.
        other: How many others there are.
    """

    source: int
    summary: str
    looked: str
    candidates: tuple[ExplainedCandidate, ...]
    other: int = 0


def explain(
    resource: Resource,
    readings: Readings,
    snapshot: Snapshot,
    owners: FileOwners,
) -> list[Explanation]:
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
    found = []
    for index, source in enumerate(resource.sources):
        one = finder(source.kind, resource)
        alone = replace(resource, sources=(source,))
        selection = select(alone, readings)
        taken: dict[str, list[Node]] = {}
        for node in selection.nodes:
            label = node.hardware.label if node.hardware else node.path or node.name
            taken.setdefault(label, []).append(node)
        own = resource.inject != "cdi"
        candidates = [
            _judged(label, nodes, offered, skipped, owners, own=own)
            for label, nodes in taken.items()
        ]
        candidates.sort(key=lambda one: not one.taken)
        candidates += [
            ExplainedCandidate(
                skip.candidate,
                taken=False,
                reasons=tuple(filter(None, (skip.reason, _hint(one, skip.candidate, readings)))),
            )
            for skip in selection.skipped
        ]
        left = sorted(one.left(readings), key=distance)
        candidates += [
            ExplainedCandidate(name, taken=False, reasons=reasons)
            for name, reasons in itertools.islice(left, _SHOWN_MAX)
        ]
        failure = selection.failed.get(0)
        looked = failure or "; ".join(selection.notes) or one.looked(readings)
        other = max(len(left) - _SHOWN_MAX, 0)
        found.append(Explanation(index, one.summary, looked, tuple(candidates), other))
    return found


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
    if not any("usb.serial" in template.names for template in resource.id or ()):
        return
    others = collections.Counter(
        device_id
        for device_id in snapshot.devices
        for one in snapshot.skipped
        if one.reason.startswith(f"its ID {device_id} is that of ")
    )
    for device_id, count in others.items():
        yield (
            f"{count + 1} devices have the ID {device_id}: id: ${{usb.serial}} offers only one of "
            "them; without id each has that of its port"
        )


def _hint(one: Finder, candidate: str, readings: Readings) -> str | None:
    return one.hint(candidate, readings) if isinstance(one, UsbFinder) else None


def _judged(
    label: str,
    nodes: Sequence[Node],
    offered: Mapping[str, str | None],
    skipped: Mapping[str, str],
    owners: FileOwners,
    *,
    own: bool,
) -> ExplainedCandidate:
    paths = tuple(node.shown for node in nodes if node.shown)
    reason = next((skipped[name] for name in (label, *paths) if name in skipped), None)
    lacks = nodes[0].hardware.incomplete if nodes[0].hardware else None
    unhealthy = next((offered[node.key] for node in nodes if offered.get(node.key)), None)
    problems = (reason, lacks, *(node.problem for node in nodes), unhealthy)
    taken = any(node.key in offered for node in nodes) and reason is None
    reasons = list(dict.fromkeys(text for text in problems if text))
    shown: list[str] = []
    groups: dict[int, None] = {}
    for node in nodes:
        permissions = None
        if node.state is not None and node.state.number is not None:
            permissions = owners.of(node.state.realpath)
        if permissions is None or node.state is None or node.state.number is None:
            shown += [node.shown] if node.shown else []
            continue
        major, minor = node.state.number
        shown.append(f"{node.shown} ({major}:{minor}, {permissions})")
        groups |= {permissions.gid: None} if permissions.only_by_group else {}
    if taken and groups:
        listed = ", ".join(map(str, groups))
        cdi = ", or inject: cdi" if own else ""
        reasons.append(f"a container that is not root needs supplementalGroups: [{listed}]{cdi}")
    return ExplainedCandidate(label, taken, tuple(reasons), paths, tuple(shown))
