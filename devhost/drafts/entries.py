"""Entries of a configuration for devices of a host, as `devices -o yaml` and `init` write them.

An entry has the options that tell its device from the others of the host, also after a replug and
when the kernel counts in another order.
"""

import glob
import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from devhost.drafts.draft import DraftEntry, unused_name
from devhost.drafts.kinds import DeviceKind, KindRow, full_name
from devhost.drafts.machine import DescribedNode, Machine, class_name, file_node, title
from devhost.drafts.rights import needed_rights
from devhost.hostfs.files import HostFiles
from devhost.hostfs.kernel_devices import KernelNode, SysfsDevice
from devhost.hostfs.sysfs import PLACES, ancestor_devices
from devhost.model.config import Resource
from devhost.model.device import FileKind, HostDevice
from devhost.model.hardware_sources import USB_NODE
from devhost.model.pattern import matches_any
from devhost.sources.matcher import Matcher

DOMAIN: Final = "example.com"
_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("(?<!^v)(?<!^i)[0-9]+")  # but the 4 and the 2 of v4l and i2c
# Names in which only the first number is counted: the second is of a part of the device.
_PARTS: Final = re.compile(r"(?:(?:pcm|hw|midi)C|nvme|ng|mmcblk)[0-9].*|spi[0-9]+\.[0-9]+")
_LETTERED: Final = re.compile("(?:sd|hd|vd|xvd)[a-z]+[0-9]*")
_OPENED_BY_PATH: Final = ("tty", "video4linux", "hidraw", "usbmisc")  # which a setting names
_NAMES: Final = {"tty": "serial", "video4linux": "video"}
_PLACED: Final = ("drm", "gpio", "i2c-dev")  # which programs also look for by the kernel's name
# What a container has below /dev of its own: a device may give itself such a name.
_OWN_NODES: Final = (
    *("console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm"),
    *("stderr", "stdin", "stdout", "tty", "urandom", "zero"),
)
# Where a driver's libraries are: in a directory of their own, or beside all others.
LIBRARIES: Final = (
    *("/usr/local/nvidia/lib64", "/home/kubernetes/bin/nvidia/lib64"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
)
_OF_KIND: Final = ("class", "interface", "driver", "node", "split")  # what an entry keeps of it
_UNSTABLE: Final = (
    "only a name that the kernel counts tells it from others, and after a reboot another device "
    "may have that name"
)
_CARRIES_NETWORK: Final = (
    "its network interface is up or has virtual functions, so it may carry the node's own network"
)

_Options = dict[str, Any]
_OF_NODE: Final = KindRow(resources=())
_RAW: Final = KindRow(
    resources=(),
    note="For programs that open its interface without a driver, with libusb. Who has it has the "
    "serial port, too.",
)


@dataclass(frozen=True, slots=True)
class DraftDevice:
    """A device for an entry.

    Attributes:
        owner: The USB device or PCI function that it is, or is below.
        nodes: What a container gets.
        sources: Which sources of its kind found a node.
        is_stable: Whether its kind selects it by nothing that the kernel counts.
    """

    kind: DeviceKind
    owner: SysfsDevice | None
    nodes: tuple[KernelNode, ...]
    title: str
    sources: tuple[int, ...] = (0,)
    is_stable: bool = True

    @property
    def number(self) -> str:
        """The vendor and product of what it is, or is below; empty for a device of a board."""
        return self.owner.facts["device"] if self.owner is not None else ""

    @property
    def is_part(self) -> bool:
        """Whether it is one of several that are split from a device."""
        return "split" in str(self.kind.resource["sources"])


class EntryWriter:
    """Writes entries for devices of a host. All methods block."""

    def __init__(self, machine: Machine, files: HostFiles) -> None:
        self._machine, self._files = machine, files

    # ── which devices ──

    def of_kind(self, kind: DeviceKind, device: HostDevice) -> Iterator[DraftDevice]:
        """Yield a device of a kind: of a serial adapter each port, and what else opens it."""
        nodes = list[KernelNode]()
        for node in device.nodes:
            if node.hardware is not None:
                kernel_node = self._machine.node(node.hardware.syspath)
                nodes += [kernel_node] if kernel_node is not None else []
            elif node.state is not None:
                nodes.append(file_node(node.key, node.state.number))
        matched = next((node.hardware.numa for node in device.nodes if node.hardware), "")
        owner = self._machine.bus_device(matched)
        sources = tuple(dict.fromkeys(node.source for node in device.nodes))
        draft = DraftDevice(kind, owner, tuple(nodes), title(owner, nodes), sources)
        match kind.resource["sources"]:
            case [{"usb": {"node": "tty"} as usb}] if not kind.name and owner is not None:
                if self._are_ports(owner, nodes):
                    ports = {**kind.resource, "sources": [{"usb": {**usb, "split": True}}]}
                    kind = DeviceKind(ports, kind.row)
                    for port in nodes:
                        yield DraftDevice(kind, owner, (port,), title(owner, [port]))
                else:
                    yield draft
                yield from self._raw_interface(owner)
            case _:
                yield draft

    def _are_ports(self, owner: SysfsDevice, nodes: Sequence[KernelNode]) -> bool:
        """Whether nodes are the ports of a serial adapter, each in a place of its own."""
        sysfs, siblings = self._machine.sysfs, self._machine.nodes(owner.syspath)
        if any(node.subsystem in ("usbmisc", "wwan") for node in siblings):
            return False  # a modem
        above = (next(ancestor_devices(node.syspath, sysfs), "") for node in nodes)
        kinds = {sysfs.link_name(f"{path}/subsystem") for path in above}
        places = {sysfs.place(node.syspath) for node in nodes}
        return len(nodes) > 1 and kinds == {"usb-serial"} and len(places) == len(nodes)

    def _raw_interface(self, owner: SysfsDevice) -> Iterator[DraftDevice]:
        """Yield the USB node of a serial device that has an interface without a driver, too."""
        node, facts = self._machine.node(owner.syspath), [part.facts for part in owner.interfaces]
        if node and any(fact["class"][:2] == "ff" and not fact["driver"] for fact in facts):
            name = f"{_slug(owner.facts['product'] or owner.facts['device'])}-usb"
            kind = DeviceKind({"name": name, "sources": [{"usb": {}}], "overlap": "allow"}, _RAW)
            yield DraftDevice(kind, owner, (node,), title(owner, [node]))

    def of_node(self, device: DescribedNode) -> DraftDevice:
        """Return a device with a kind of its own, which offers exactly this node, or all nodes."""
        owner, node, is_stable = device.owner, device.node, True
        resource: _Options
        nodes: tuple[KernelNode, ...] = (node,) if node is not None else ()
        link = device.variables.get("byId")
        if node is not None and node.subsystem == "block" and link is not None:
            resource = {"name": _slug(posixpath.basename(link)), "sources": [glob.escape(link)]}
        elif owner is not None and owner.prefix == "usb.":
            options, nodes, is_stable = self._usb_node(device)
            resource = {"sources": [{"usb": {"device": "*:*", **options}}]}
        elif owner is not None and (choice := _pci_node(device)) is not None:
            nodes = nodes or device.nodes
            resource = {"sources": [{"pci": {"device": "*:*", "node": choice}}]}
        elif node is not None and node.subsystem:
            resource = {"sources": [{"sysfs": node.subsystem}]}
        else:  # sysfs does not know it
            path = str(node.path) if node is not None else ""
            resource = {"name": _slug(posixpath.basename(path)), "sources": [path]}
            is_stable = not _is_counted(path)
        kind = DeviceKind(resource, _OF_NODE)
        name = f"{node.subsystem} {node.name}".strip() if node is not None else ""
        text = title(owner, nodes if owner is None else device.nodes, name)
        return DraftDevice(kind, owner, nodes, text, is_stable=is_stable)

    # ── entries ──

    def entries(
        self, devices: Iterable[DraftDevice], domain: str, *, named: bool
    ) -> list[DraftEntry]:
        """Return resources that offer exactly these devices; ``named``: as a person named them.

        What only a name that the kernel counts would select is commented out.
        """
        alike: dict[tuple[str, str, str], list[DraftDevice]] = {}
        for device in devices:
            name = device.kind.name or self._product(device)
            reason = "" if named else device.kind.row.reason
            if not named and self._carries_network(device):
                reason = _CARRIES_NETWORK
            if not device.is_stable:
                reason = _UNSTABLE
            likeness = repr((id(device.kind.row), self._likeness(device)))
            alike.setdefault((name, reason, likeness), []).append(device)
        used = set(_OWN_NODES)
        return [
            self._entry(devices, unused_name(name, used), domain, reason)
            for (name, reason, _), devices in alike.items()
        ]

    def _likeness(self, device: DraftDevice) -> object:
        """Return what devices of one resource have in common."""
        if device.kind.row.whole:
            return device.kind.name
        if device.owner is not None:
            product = device.owner.facts.get("product")
            return device.sources, device.number, product, device.kind.resource
        return device.nodes[0].syspath or device.nodes[0].file

    def _product(self, device: DraftDevice) -> str:
        """Return a name for a resource of a kind without one."""
        owner, node = device.owner, device.nodes[0] if device.nodes else None
        if owner is None:
            name = node.name if node is not None else ""
            if node is not None and _is_counted(name):
                name = _NAMES.get(node.subsystem, node.subsystem)
        elif owner.prefix == "usb.":
            name = owner.facts["product"] or owner.facts["device"]
        else:
            code = owner.facts["class"]
            name = class_name(code) if class_name(code) != code else owner.facts["driver"]
        return _slug(name)

    def _entry(
        self, devices: Sequence[DraftDevice], name: str, domain: str, reason: str
    ) -> DraftEntry:
        """Return the resource of devices that differ in serial number or place alone."""
        first = devices[0]
        kind, resource = first.kind, self._with_libraries(first.kind)
        used = sorted({index for device in devices for index in device.sources})
        nodes = [node for device in devices for node in device.nodes]
        drivers = {self._machine.sysfs.driver(node.syspath) or "" for node in nodes}
        resource["sources"] = [_with_drivers(resource["sources"][n], drivers) for n in used]
        is_whole = kind.row.whole or len(used) > 1
        owners = {device.owner.name: device.owner for device in devices if device.owner}
        identity: _Options = {}
        source = resource["sources"][0]
        match source:
            case {"usb": options}:
                numbers = options["device"] if kind.row.whole else first.number
                selected = self._bus_options([*owners.values()], numbers)
                is_named = "serial" in selected and not first.is_part  # a part's ID is its place
                identity = {"id": "${usb.serial}"} if is_named else {}
                source = {"usb": selected | _options_of_kind(options)}
            case {"pci": options}:
                selected = self._bus_options([*owners.values()], first.number)
                source = {"pci": selected | _options_of_kind(options, without="class")}
            case {"sysfs": _} if not is_whole:
                options, is_stable = self._sysfs_options(first.nodes[0])
                identity = self._place(first.nodes[0], name)
                source, reason = {"sysfs": options}, reason or ("" if is_stable else _UNSTABLE)
        if not is_whole or (kind.row.whole and "usb" in source):
            resource = identity | resource | {"sources": [source]}
            self._add_container_path(devices, name, resource)
        places = [self._machine.sysfs.place(n.syspath) for n in nodes if n.subsystem in _PLACED]
        if all(places) and len({*places}) == len(places):
            _add_places(resource, name)
        ordered = ("name", "sources", "id", *resource)
        resource["name"] = full_name(name, domain)
        resource = {key: resource[key] for key in ordered if key in resource}
        notes = filter(None, (kind.row.note, f"Not offered: {reason}." if reason else ""))
        titles = [device.title for device in devices]
        files = [  # a dry run would leave out a disk that is in use
            (node.path, FileKind.BLOCK if node.subsystem == "block" else FileKind.CHAR, node.number)
            for node in nodes
            if node.path is not None and node.number is not None
        ]
        rights = needed_rights(Resource.model_validate(resource), files, self._files)
        return DraftEntry(resource, (*titles, *notes), not reason, rights)

    def _with_libraries(self, kind: DeviceKind) -> _Options:
        """Return a kind's resource, with mounts of the libraries from where the host has them."""
        resource, has = dict(kind.resource), self._files.stat
        for directory in LIBRARIES:
            target = resource.get("allocate", {}).get("env", {}).get("LD_LIBRARY_PATH", directory)
            names = [name for name in kind.row.libraries if has(f"{directory}/{name}")]
            mounts = {f"{directory}/{name}": f"{target}/{name}" for name in names}
            if names and not directory.startswith("/usr/lib"):
                mounts = {posixpath.dirname(directory): posixpath.dirname(target)}
            rules = [
                {"hostPath": path, "containerPath": mounts[path], "readOnly": True}
                for path in mounts
            ]
            if rules:
                return {**resource, "allocate": {**resource.get("allocate", {}), "mounts": rules}}
        return resource

    def _add_container_path(
        self, devices: Sequence[DraftDevice], name: str, resource: _Options
    ) -> None:
        """Set a path in the container that stays, where programs have it in a setting."""
        rules = resource.get("allocate", {}).get("devices")
        if rules is not None and not (len(rules) == 1 and "containerPath" in rules[0]):
            return
        resource["allocate"] = allocate = dict(resource.get("allocate", {}))
        allocate.pop("devices", None)
        nodes = [[node for node in device.nodes if node.path] for device in devices]
        subsystems = {node.subsystem for group in nodes for node in group}
        path = f"/dev/{name}" + ("${index}" if len(nodes) > 1 else "")
        if max(map(len, nodes)) > 1:
            path += "-${usb.interface}"
        interface_of = self._machine.sysfs.interface
        is_clear = all(
            len({interface_of(node.syspath) for node in group}) == len(group) for group in nodes
        )
        if subsystems and subsystems <= set(_OPENED_BY_PATH) and is_clear:
            allocate["devices"] = [{"hostPath": "${path}", "containerPath": path}]
            resource |= {"maxDevices": 1} if len(nodes) == 1 else {}
        if not allocate:
            del resource["allocate"]

    # ── what selects a device ──

    def _bus_options(self, owners: Sequence[SysfsDevice], numbers: str | list[str]) -> _Options:
        """Return what tells devices on a bus from the others of the host with these numbers."""
        options, is_usb = _Options(device=numbers), owners[0].prefix == "usb."
        if owners[0].is_hub_or_bridge:
            options["class"] = "hub" if is_usb else "bridge"
        same_bus = (twin for twin in self._machine.bus_devices if twin.prefix == owners[0].prefix)
        twins = [twin for twin in same_bus if twin.facts["device"] in numbers]
        if not is_usb:
            distinct = {"address": _few([owner.name for owner in owners])}
            return options | (distinct if len(twins) > len(owners) else {})
        places = {owner.syspath for owner in owners}
        rest = [twin for twin in twins if twin.syspath not in places]
        product, serials = owners[0].facts["product"], [owner.facts["serial"] for owner in owners]
        everyones = [twin.facts["serial"] for twin in twins]
        if all(is_good_serial(serial) and everyones.count(serial) == 1 for serial in serials):
            options["serial"] = _few([*map(glob.escape, serials)])
        elif rest and product and product not in {twin.facts["product"] for twin in rest}:
            options["product"] = glob.escape(product)
        elif rest and all(owner.place for owner in owners):
            options["port"] = _few([glob.escape(owner.place) for owner in owners])
        return options

    def _usb_node(self, device: DescribedNode) -> tuple[_Options, tuple[KernelNode, ...], bool]:
        """Return the options that choose nodes of a USB device, these, and whether they last."""
        node, nodes = device.node, device.nodes
        if node is None or node.subsystem == USB_NODE:
            subsystems = _subsystems(nodes)
            if not subsystems:
                return {}, (node,) if node is not None else (), True
            chosen = tuple(node for node in nodes if node.subsystem in subsystems)
            return {"node": _few(subsystems)}, chosen, True
        options: _Options = {}
        sysfs, interface = self._machine.sysfs, self._machine.sysfs.interface(node.syspath)
        alike = [twin for twin in nodes if twin.subsystem == node.subsystem]
        if len(alike) > 1 and "usb.interface" in device.variables:
            options["interface"] = int(device.variables["usb.interface"])
            alike = [twin for twin in alike if sysfs.interface(twin.syspath) == interface]
        if len(alike) == 1:
            return {**options, "node": node.subsystem}, (node,), True
        name = _name_glob(node.name, [twin.name for twin in alike])
        if name is None:
            for file in ("index", "device/port_number"):
                if value := sysfs.attribute(node.syspath, file):
                    options["node"] = {"subsystem": node.subsystem, "attr": {file: value}}
                    return options, (node,), True
        choice = f"{node.subsystem}/{name or glob.escape(node.name)}"
        return {**options, "node": choice}, (node,), name is not None

    def _place(self, node: KernelNode, name: str) -> _Options:
        """Return what makes the ID of a device of a subsystem: no name that the kernel counts."""
        if self._machine.sysfs.place(node.syspath) is not None:
            return {"id": "${place}"}
        return {"group": name} if _is_counted(node.name) else {}

    def _sysfs_options(self, node: KernelNode) -> tuple[Any, bool]:
        """Return the fewest options that match one device of a subsystem, and whether they last.

        The devices above it tell it; its own name, often counted, is the last resort.
        """
        reading = self._machine.subsystem(node.subsystem)
        if len(reading.members) == 1:
            return node.subsystem, True
        members = [SysfsDevice(path, reading.sysfs) for path in reading.members.values()]
        above: list[str] = []  # the names between the device and the nearest one at a place
        candidates: list[list[str]] = []
        for path in ancestor_devices(node.syspath, reading.sysfs):
            name = glob.escape(posixpath.basename(path))
            if reading.sysfs.link_name(f"{path}/subsystem") in PLACES:
                candidates = [[name], *([_COUNTER.sub("*", low, count=1), name] for low in above)]
                break
            above.append(name)
        uncounted = _uncounted(node.name)
        for names, selector in itertools.product(candidates, ({}, {"name": uncounted})):
            parents = tuple(Matcher({"name": (name,)}) for name in names)
            matcher = Matcher({key: (value,) for key, value in selector.items()}, parents=parents)
            matching = [member for member in members if not matcher.mismatches(member)]
            if [member.syspath for member in matching] == [node.syspath]:
                parent = _few([{"name": name} for name in names])
                return {"subsystem": node.subsystem, **selector, "parent": parent}, True
        shorter = _name_glob(node.name, reading.members)
        options = {"subsystem": node.subsystem, "name": shorter or glob.escape(node.name)}
        return options, shorter is not None

    def _carries_network(self, device: DraftDevice) -> bool:
        """Whether the host's own network may be on a function of which a container gets nodes."""
        owner = device.owner
        if owner is None or owner.prefix != "pci." or owner.facts["pf"]:
            return False
        sysfs, nodes = self._machine.sysfs, self._machine.nodes(owner.syspath)
        interfaces = [node.syspath for node in nodes if node.subsystem == "net"]
        return bool(interfaces) and (
            sysfs.link(f"{owner.syspath}/virtfn0") is not None
            or any(sysfs.text(f"{path}/operstate") == "up" for path in interfaces)
        )


def _pci_node(device: DescribedNode) -> Any:
    """Return the `node` of a PCI function; ``None`` where only its place distinguishes it."""
    if (node := device.node) is None:
        return _few(_subsystems(device.nodes)) if device.nodes else "none"
    alike = [twin for twin in device.nodes if twin.subsystem == node.subsystem]
    if len(alike) <= 1:  # none: the head of a disk with several paths is below no function
        return node.subsystem
    name = _name_glob(node.name, [twin.name for twin in alike])
    return f"{node.subsystem}/{name}" if name is not None else None


def _with_drivers(source: Any, drivers: Iterable[str]) -> Any:
    """Return a source with the drivers of this host instead of all that a kind knows."""
    match source:
        case {"sysfs": {"driver": [*globs]} as options}:
            here = [glob.escape(name) for name in sorted(drivers) if matches_any(name, globs)]
            return source | {"sysfs": {**options, "driver": _few(here)}}
    return source


def _add_places(resource: _Options, name: str) -> None:
    """Give a container nodes under their places, too, and a variable with the path."""
    allocate, sources = resource.get("allocate", {}), resource["sources"]
    devices, places = allocate.get("devices", ["${path}"]), list[_Options]()
    env = dict(allocate.get("env", {}))
    for source in sources if devices[:1] == ["${path}"] else ():
        match source:
            case {"pci": {"node": "drm/renderD*"}} | {"sysfs": {"name": "renderD*"}}:
                word, form, role = "RENDER", "/dev/dri/by-path/{}-render", "drm"
            case {"sysfs": "gpio" | {"subsystem": "gpio"}}:
                word, form, role = "GPIO", "/dev/gpio-{}", "gpio"
            case {"sysfs": "i2c-dev" | {"subsystem": "i2c-dev"}}:
                word, form, role = "I2C", "/dev/i2c-{}", "i2c"
            case _:
                continue
        prefix = f"{source.get('as', role)}." if len(sources) > 1 else ""
        path = form.format(f"${{{prefix}place}}")
        places.append({"hostPath": f"${{{prefix}path}}", "containerPath": path})
        env[f"{word}_{re.sub('[^A-Z0-9]', '_', name.upper())}"] = path
    if places:
        nodes = [devices[0], *places, *devices[1:]]
        resource["allocate"] = {**allocate, "devices": nodes, "env": env}


def _options_of_kind(options: object, without: str = "") -> _Options:
    kept = (key for key in _OF_KIND if key != without)
    return (
        {key: options[key] for key in kept if key in options} if isinstance(options, dict) else {}
    )


def _subsystems(nodes: Sequence[KernelNode]) -> list[str]:
    """Return the subsystems of a device's nodes, without those that are a second way to it."""
    present = list(dict.fromkeys(node.subsystem for node in nodes))
    if "vfio" in present:
        return ["vfio"]
    second = ("input", "usbmisc") if "hidraw" in present else ("input",)
    return [subsystem for subsystem in present if subsystem not in second] or present


def is_good_serial(serial: str) -> bool:
    """Whether a serial number is one that somebody has set."""
    is_varied = len(serial) >= _SERIAL_MIN and len(set(serial)) > 1
    return is_varied and not _COUNTED.fullmatch(serial)


def _uncounted(name: str) -> str:
    """Return a glob of a name, without what the kernel counts."""
    return _COUNTER.sub("*", glob.escape(name), count=1 if _PARTS.fullmatch(name) else 0)


def _name_glob(name: str, names: Iterable[str]) -> str | None:
    """Return a glob without what the kernel counts that matches only one of some names."""
    shorter = _uncounted(name)
    is_alone = [rival for rival in names if matches_any(rival, (shorter,))] == [name]
    return shorter if is_alone and not _LETTERED.fullmatch(name) else None


def _is_counted(name: str) -> bool:
    return bool(_COUNTER.search(name) or _LETTERED.fullmatch(name))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"


def _few(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
