"""The nodes of a matched device, as matches: what the sources usb, pci and sysfs share."""

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from devhost.allocation.variables import LINK_VARIABLES
from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import (
    NodesReading,
    NodesRoot,
    SubsystemReading,
    SubsystemRoot,
    SysfsTree,
)
from devhost.hostfs.mounts import number_of
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.device import Hardware, Skipped
from devhost.model.hardware import (
    NO_NODE,
    USB_NODE,
    NodeChoice,
)

_NO_FILE: Final = "net"  # its members have a name that containers can use, but no file


def any_matches(globs: Iterable[str], text: str | None) -> bool:
    """Whether one of the globs matches a text as a whole; upper and lower case count."""
    return text is not None and any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def driver_matches(globs: Sequence[str], driver: str | None) -> bool:
    """Whether one of the globs matches a driver; the word ``none`` is for having none."""
    return "none" in globs if driver is None else any_matches(globs, driver)


def numbers_match(pairs: Iterable[str], found: str) -> bool:
    """Whether one of some ``vendor:device`` pairs, in which ``*`` is any, is the one found."""
    return any(fnmatch.fnmatchcase(found, pair) for pair in pairs)


@immutable
class KernelNode:
    """A device of the kernel that a container can be given.

    Attributes:
        name: The kernel's name.
        subsystem: Its subsystem.
        syspath: Its directory in sysfs.
        file: Its path below /dev; ``None`` where it has none.
        number: Its major and minor, as the kernel says.
    """

    name: str
    subsystem: str
    syspath: str
    file: str | None
    number: tuple[int, int] | None

    @classmethod
    def of(cls, subsystem: str, syspath: str, sysfs: SysfsTree) -> "KernelNode | None":
        """Return what a directory in sysfs is; ``None`` where it is no node. Blocks."""
        name = posixpath.basename(syspath)
        number = sysfs.text(f"{syspath}/dev")
        if number is None:  # whatever its uevent says: a device chooses some of that
            return cls(name, subsystem, syspath, None, None) if subsystem == _NO_FILE else None
        file = sysfs.uevent(syspath).get("DEVNAME")
        if file is None or not {"", ".", ".."}.isdisjoint(file.split("/")):
            return None
        try:
            found = number_of(number)
        except ValueError:
            return None
        return cls(name, subsystem, syspath, file, found)


@immutable
class Unit:
    """A matched device, before its nodes are known.

    Attributes:
        syspath: Its directory in sysfs (of an IOMMU group: the group's).
        label: How messages call it.
        id: Its default ID; ``None`` where nothing says where it is plugged in.
        place: Where it is plugged in.
        variables: What all its nodes give to templates.
        numa: The directory from which its NUMA node is looked for, upwards.
    """

    syspath: str
    label: str
    id: str | None
    place: str | None
    variables: Mapping[str, str]
    numa: str


class MatchedDevice:
    """What is known of a matched device's nodes; a kind of source says more. Methods block."""

    def __init__(self, unit: Unit, sysfs: SysfsTree) -> None:
        self.unit, self.sysfs = unit, sysfs

    def own_node(self, _choice: NodeChoice) -> KernelNode | None:
        """Return its own node, where a choice means that."""
        return None

    def counts(self, _syspath: str) -> bool:
        """Whether a node (its directory in sysfs) is wanted."""
        return True

    @property
    def grows(self) -> bool:
        """Whether its nodes come one after the other, and what has come cannot be told from all."""
        return False

    def why_none(self) -> str | None:
        """Return why it lacks nodes, if that is known."""
        return None

    def drivers(self) -> str | None:
        """Say which drivers it has."""
        return None

    def describe(self, node: KernelNode) -> dict[str, str]:
        """Return a node's variables."""
        return described(node, self.sysfs)

    def claims(self, _node: KernelNode) -> frozenset[str]:
        """Return the nodes (host paths) that may not be offered beside one."""
        return frozenset()


def members(readings: Readings, root: Root) -> SubsystemReading:
    """Return the reading of a root that has the kernel's devices."""
    reading = readings[root]
    assert isinstance(reading, SubsystemReading), "of that root"  # noqa: S101
    return reading


def nodes_root(mentioned: frozenset[str]) -> NodesRoot:
    """Return what has to be read below /dev, by the variables that templates mention."""
    return NodesRoot(links=any(name.rpartition(".")[2] in LINK_VARIABLES for name in mentioned))


def roots_of(choices: Sequence[NodeChoice], mentioned: frozenset[str]) -> tuple[Root, ...]:
    """Return what has to be read for nodes."""
    subsystems = (one.subsystem for one in choices)
    some = (SubsystemRoot(one) for one in subsystems if one not in (USB_NODE, NO_NODE))
    return (*dict.fromkeys(some), nodes_root(mentioned))


class Nodes:
    """Finds the nodes of matched devices, for one source."""

    def __init__(
        self,
        choices: Sequence[NodeChoice],
        mentioned: frozenset[str],
        readings: Readings,
        *,
        split: bool = False,
    ) -> None:
        self._choices, self._readings, self._split = choices, readings, split
        self._links = {name.rpartition(".")[2] for name in mentioned} & LINK_VARIABLES.keys()
        nodes = readings[nodes_root(mentioned)]
        assert isinstance(nodes, NodesReading), "of that root"  # noqa: S101
        self._files = nodes

    def of(self, owner: MatchedDevice) -> Iterator[Match | Skipped]:
        """Yield the nodes of a matched device, or why it is not offered."""
        unit = owner.unit
        if self._choices[0].subsystem == NO_NODE:
            yield self._without_file(owner)
            return
        found: list[KernelNode] = []
        absent: list[NodeChoice] = []
        for choice in self._choices:
            some = list(self._chosen(choice, owner))
            found += [one for one in some if one not in found]
            if not some and not choice.optional:
                absent.append(choice)
        incomplete = None
        if absent:
            why = owner.why_none()
            if not found:
                why = why or self._others(absent[0], owner) or owner.drivers()
                because = f": {why}" if why else ""
                yield Skipped(unit.label, f"no {absent[0].subsystem} node{because}")
                return
            lacks = " and no ".join(one.subsystem for one in absent)
            because = f": {why}" if why else ""
            incomplete = f"incomplete: no {lacks} node{because}"
        ids = self._ids(unit, found)
        for node in found:
            yield self.match(owner, node, ids[node], incomplete)

    def _chosen(self, choice: NodeChoice, owner: MatchedDevice) -> Iterable[KernelNode]:
        if choice.subsystem == USB_NODE:
            node = owner.own_node(choice)
            return () if node is None else (node,)
        return (one for one in self._members(choice, owner.unit) if owner.counts(one.syspath))

    def _others(self, choice: NodeChoice, owner: MatchedDevice) -> str | None:
        """Name the nodes that are there but not chosen."""
        if choice.subsystem == USB_NODE or (choice.name is None and not choice.attr):
            return None
        plain = NodeChoice(subsystem=choice.subsystem)
        some = ", ".join(one.name for one in self._chosen(plain, owner))
        wanted = f"is named {' or '.join(choice.name)}" if choice.name else "has that attr"
        return f"none {wanted} (there is {some})" if some else None

    def _members(self, choice: NodeChoice, unit: Unit) -> Iterator[KernelNode]:
        reading = members(self._readings, SubsystemRoot(choice.subsystem))
        for name, syspath in reading.below(unit.syspath):
            if choice.name is not None and not any_matches(choice.name, name):
                continue
            attributes = choice.attr.items()
            if all(
                any_matches((glob,), reading.sysfs.attribute(syspath, a)) for a, glob in attributes
            ):
                node = KernelNode.of(choice.subsystem, syspath, reading.sysfs)
                if node is not None:
                    yield node

    def _ids(self, unit: Unit, found: Sequence[KernelNode]) -> Mapping[KernelNode, str | None]:
        if not self._split or unit.id is None:
            return dict.fromkeys(found, unit.id)
        places: dict[str, list[KernelNode]] = {}
        for node in found:
            place = self._sysfs(node).place(node.syspath)
            at = unit.id if place is None or place == unit.place else place
            places.setdefault(at, []).append(node)
        ids: dict[KernelNode, str] = {}
        for at, some in places.items():
            ordered = sorted(some, key=lambda node: names.natural_key(node.name))
            alone = len(some) == 1 and at != unit.id
            ids |= {one: at if alone else f"{at}-{count}" for count, one in enumerate(ordered)}
        return ids

    def _sysfs(self, node: KernelNode) -> SysfsTree:
        return members(self._readings, SubsystemRoot(node.subsystem)).sysfs

    def match(
        self,
        owner: MatchedDevice,
        node: KernelNode,
        device_id: str | None = None,
        incomplete: str | None = None,
    ) -> Match:
        """Return a node of a device as a match."""
        unit = owner.unit
        path = f"/dev/{node.file}" if node.file else ""
        links = {
            name: self._files.by[kind].get(path) for name, kind in LINK_VARIABLES.items() if path
        }
        by = {name: link for name, link in links.items() if link is not None}
        variables = {
            **unit.variables,
            "name": node.name,
            "subsystem": node.subsystem,
            "syspath": node.syspath,
            **({"place": unit.place} if unit.place else {}),
            **by,
            **owner.describe(node),
        }
        drivers = owner.grows and not self._split and node.subsystem != USB_NODE
        return Match(
            path,
            device_id or unit.id or "",
            variables,
            at=(self._files, node.file) if node.file else None,
            hardware=Hardware(
                unit=node.syspath if self._split else unit.syspath,
                label=unit.label,
                syspath=node.syspath,
                number=node.number,
                role=node.subsystem,
                numa=unit.numa,
                claims=owner.claims(node),
                incomplete=incomplete,
                grows=drivers or bool(path and self._links - by.keys()),
            ),
        )

    def _without_file(self, owner: MatchedDevice) -> Match:
        unit = owner.unit
        subsystem = owner.sysfs.linked(f"{unit.numa}/subsystem") or ""
        device = KernelNode(posixpath.basename(unit.numa), subsystem, unit.numa, None, None)
        match = self.match(owner, device)
        assert match.hardware is not None, "of sysfs"  # noqa: S101
        return replace(match, hardware=replace(match.hardware, role=None, claims=frozenset()))


def described(node: KernelNode, sysfs: SysfsTree) -> dict[str, str]:
    """Return the variables that every node found in sysfs has, where they have a value. Blocks."""
    found = {
        "place": sysfs.place(node.syspath),
        "parent": _parent(node.syspath, sysfs),
        "driver": nearest_driver(node.syspath, sysfs),
    }
    return {name: value for name, value in found.items() if value is not None}


def nearest_driver(syspath: str, sysfs: SysfsTree) -> str | None:
    """Return the driver of a device, or of the nearest one above it that has one. Blocks."""
    driver = None
    while driver is None and syspath.startswith("/sys/devices/"):
        driver, syspath = sysfs.linked(f"{syspath}/driver"), posixpath.dirname(syspath)
    return driver


def _parent(syspath: str, sysfs: SysfsTree) -> str | None:
    """Return the name of the nearest device above one."""
    path = posixpath.dirname(syspath)
    while path.startswith("/sys/devices/"):
        if sysfs.link(f"{path}/subsystem") is not None:
            return posixpath.basename(path)
        path = posixpath.dirname(path)
    return None
