"""The nodes of selected devices, as matches: what the sources usb, pci and sysfs share."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.allocation.variables import LINK_VARIABLES
from devhost.discovery.hardware import (
    NOT_AUTHORIZED,
    Interface,
    KernelNode,
    SysfsDevice,
    any_matches,
    described,
    device_above,
    members,
)
from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import NodesReading, NodesRoot, NumbersRoot, SubsystemRoot
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.device import Hardware, Skipped
from devhost.model.hardware import NO_NODE, USB_NODE, NodeChoice

NUMBERS = NumbersRoot()


@immutable
class Selected:
    """A device that a source selects.

    Attributes:
        device: The device.
        interfaces: Those of a USB device whose nodes count; ``None`` for all nodes.
    """

    device: SysfsDevice
    interfaces: tuple[Interface, ...] | None = None

    def counts(self, syspath: str) -> bool:
        """Whether a node (its directory in sysfs) is wanted. Blocks."""
        if self.interfaces is None:
            return True
        return self.device.sysfs.interface(syspath) in [one.syspath for one in self.interfaces]

    @property
    def parts(self) -> Sequence[Interface]:
        """The interfaces that count."""
        return self.device.interfaces() if self.interfaces is None else self.interfaces

    def why_none(self) -> str | None:
        """Say why it lacks nodes, if that is known. Blocks."""
        if self.device.is_unauthorized:
            return NOT_AUTHORIZED
        idle = next((one for one in self.parts if not one.facts["driver"]), None)
        if idle is not None:
            return f"no driver is bound to {idle.name} ({idle.facts['class']})"
        return None if self.device.facts.get("driver", "-") else "no driver is bound to it"

    def drivers(self) -> str | None:
        """Say which drivers it has."""
        facts = [self.device.facts, *(one.facts for one in self.parts)]
        drivers = dict.fromkeys(one["driver"] for one in facts if one.get("driver"))
        verb = "its driver is" if len(drivers) == 1 else "its drivers are"
        return f"{verb} {', '.join(drivers)}" if drivers else None


def nodes_root(mentioned: frozenset[str]) -> NodesRoot:
    """Return what has to be read below /dev, by the variables that templates mention."""
    return NodesRoot(links=any(name.rpartition(".")[2] in LINK_VARIABLES for name in mentioned))


def roots_of(choices: Sequence[NodeChoice], mentioned: frozenset[str]) -> tuple[Root, ...]:
    """Return what has to be read for nodes."""
    subsystems = [one.subsystem for one in choices]
    some = (SubsystemRoot(one) for one in subsystems if one not in (USB_NODE, NO_NODE))
    own = (NUMBERS,) if USB_NODE in subsystems else ()
    return (*dict.fromkeys(some), nodes_root(mentioned), *own)


class Nodes:
    """Finds the nodes of selected devices, for one source. All methods block."""

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

    def of(self, one: Selected) -> Iterator[Match | Skipped]:
        """Yield the nodes of a device, or why it is not offered."""
        if self._choices[0].subsystem == NO_NODE:
            yield self._without_file(one)
            return
        found: list[KernelNode] = []
        absent: list[NodeChoice] = []
        for choice in self._choices:
            some = list(self._chosen(choice, one))
            found += [node for node in some if node not in found]
            if not some and not choice.optional:
                absent.append(choice)
        incomplete = None
        if absent:
            why = one.why_none()
            if not found:
                why = why or self._others(absent[0], one) or one.drivers()
                because = f": {why}" if why else ""
                yield Skipped(one.device.name, f"no {absent[0].subsystem} node{because}")
                return
            lacks = " and no ".join(choice.subsystem for choice in absent)
            because = f": {why}" if why else ""
            incomplete = f"incomplete: no {lacks} node{because}"
        ids = self._ids(one.device, found)
        for node in found:
            yield self.match(one, node, ids[node], incomplete)

    def _chosen(self, choice: NodeChoice, one: Selected) -> Iterable[KernelNode]:
        if choice.subsystem == USB_NODE:
            node = KernelNode.of(USB_NODE, one.device.syspath, one.device.sysfs)
            return () if node is None else (node,)
        return (node for node in self._members(choice, one) if one.counts(node.syspath))

    def _others(self, choice: NodeChoice, one: Selected) -> str | None:
        """Name the nodes that are there but not chosen."""
        if choice.subsystem == USB_NODE or (choice.name is None and not choice.attr):
            return None
        plain = NodeChoice(subsystem=choice.subsystem)
        some = ", ".join(node.name for node in self._chosen(plain, one))
        wanted = f"is named {' or '.join(choice.name)}" if choice.name else "has that attr"
        return f"none {wanted} (there is {some})" if some else None

    def _members(self, choice: NodeChoice, one: Selected) -> Iterator[KernelNode]:
        reading = members(self._readings, SubsystemRoot(choice.subsystem))
        for name, syspath in reading.below(one.device.syspath):
            if choice.name is not None and not any_matches(choice.name, name):
                continue
            attributes = choice.attr.items()
            if all(
                any_matches((glob,), reading.sysfs.attribute(syspath, a)) for a, glob in attributes
            ):
                node = KernelNode.of(choice.subsystem, syspath, reading.sysfs)
                if node is not None:
                    yield node

    def _ids(self, device: SysfsDevice, found: Sequence[KernelNode]) -> Mapping[KernelNode, str]:
        if not self._split or not device.id:
            return dict.fromkeys(found, device.id)
        places: dict[str, list[KernelNode]] = {}
        for node in found:
            sysfs = members(self._readings, SubsystemRoot(node.subsystem)).sysfs
            place = sysfs.place(node.syspath)
            at = device.id if place is None or place == device.place else place
            places.setdefault(at, []).append(node)
        ids: dict[KernelNode, str] = {}
        for at, some in places.items():
            ordered = sorted(some, key=lambda node: names.natural_key(node.name))
            alone = len(some) == 1 and at != device.id
            ids |= {one: at if alone else f"{at}-{count}" for count, one in enumerate(ordered)}
        return ids

    def match(
        self,
        one: Selected,
        node: KernelNode,
        device_id: str = "",
        incomplete: str | None = None,
    ) -> Match:
        """Return a node of a device as a match."""
        device = one.device
        path = f"/dev/{node.file}" if node.file else ""
        links = {
            name: self._files.by[kind].get(path) for name, kind in LINK_VARIABLES.items() if path
        }
        by = {name: link for name, link in links.items() if link is not None}
        above = None if device.prefix else device_above(node.syspath, one.device.sysfs)
        variables = {
            **(above.variables() if above is not None else {}),
            **device.variables(),
            "name": node.name,
            "subsystem": node.subsystem,
            "syspath": node.syspath,
            **({"place": device.place} if device.place else {}),
            **by,
            **described(node, one.device.sysfs),
        }
        # Several interfaces get their nodes one after the other.
        grows = len(one.parts) > 1 and not self._split and node.subsystem != USB_NODE
        return Match(
            path,
            device_id or device.id,
            variables,
            at=(self._files, node.file) if node.file else None,
            hardware=Hardware(
                unit=node.syspath if self._split else device.unit,
                label=device.name,
                syspath=node.syspath,
                number=node.number,
                role=node.subsystem,
                numa=device.syspath,
                claims=self._claims(device, node),
                incomplete=incomplete,
                grows=grows or bool(path and self._links - by.keys()),
            ),
        )

    def _claims(self, device: SysfsDevice, node: KernelNode) -> frozenset[str]:
        """Libusb detaches drivers: who has the device's own node has all of its nodes."""
        if node.subsystem != USB_NODE or NUMBERS not in self._readings:
            return frozenset()
        numbers = members(self._readings, NUMBERS)
        below = (path for _, path in numbers.below(device.syspath) if path != device.syspath)
        files = (numbers.sysfs.uevent(path).get("DEVNAME") for path in below)
        return frozenset(f"/dev/{file}" for file in files if file)

    def _without_file(self, one: Selected) -> Match:
        syspath = one.device.syspath
        subsystem = one.device.sysfs.linked(f"{syspath}/subsystem") or ""
        node = KernelNode(posixpath.basename(syspath), subsystem, syspath, None, None)
        match = self.match(one, node)
        assert match.hardware is not None, "of sysfs"  # noqa: S101
        return replace(match, hardware=replace(match.hardware, role=None, claims=frozenset()))
