"""Entries of a configuration for devices of a host, as `devices -o yaml` and `init` write them.

An entry has the options that tell its device from the others of the host, also after a replug and
when the kernel counts in another order. All functions block.
"""

import copy
import glob
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from devhost.drafts import selectors
from devhost.drafts.draft import DraftEntry, unused_name
from devhost.drafts.kinds import DeviceKind, KindRow, full_name
from devhost.drafts.machine import DescribedNode, Machine, class_name, file_node, title
from devhost.drafts.rights import needed_rights
from devhost.drafts.selectors import SourceOptions
from devhost.hostfs.kernel_devices import KernelNode, SysfsDevice
from devhost.hostfs.sysfs import ancestor_devices
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.device_node import FileKind
from devhost.model.pattern import matches_any

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
# What an entry keeps of the options of its kind.
_KEPT: Final = {
    "usb": ("class", "interface", "driver", "node", "split"),
    "pci": ("driver", "node", "split"),
}
_UNSTABLE: Final = (
    "only a name that the kernel counts tells it from others, and after a reboot another device "
    "may have that name"
)
_CARRIES_NETWORK: Final = (
    "its network interface is up or has virtual functions, so it may carry the node's own network"
)

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
        match self.kind.resource["sources"]:
            case [{"usb": {"split": True}} | {"pci": {"split": True}}]:
                return True
        return False


# ── which devices ──


def devices_of_kind(
    machine: Machine, kind: DeviceKind, device: HostDevice
) -> Iterator[DraftDevice]:
    """Yield a device of a kind: of a serial adapter each port, and what else opens it."""
    nodes = list[KernelNode]()
    for node in device.nodes:
        if node.hardware is not None:
            nodes += filter(None, [machine.node(node.hardware.syspath)])
        elif node.state is not None:
            nodes.append(file_node(node.key, node.state.number))
    matched = next((node.hardware.numa for node in device.nodes if node.hardware), "")
    owner = machine.bus_device(matched)
    sources = tuple(dict.fromkeys(node.source for node in device.nodes))
    whole = DraftDevice(kind, owner, tuple(nodes), title(owner, nodes), sources)
    match kind.resource["sources"]:
        case [{"usb": {"node": "tty"} as usb}] if not kind.name and owner is not None:
            if _are_ports(machine, owner, nodes):
                split = {**kind.resource, "sources": [{"usb": {**usb, "split": True}}]}
                ports = DeviceKind(split, kind.row)
                for port in nodes:
                    yield DraftDevice(ports, owner, (port,), title(owner, [port]))
            else:
                yield whole
            yield from _raw_interface(machine, owner)
        case _:
            yield whole


def _are_ports(machine: Machine, owner: SysfsDevice, nodes: Sequence[KernelNode]) -> bool:
    """Whether nodes are the ports of a serial adapter, each in a place of its own."""
    sysfs, siblings = machine.sysfs, machine.nodes(owner.syspath)
    if any(node.subsystem in ("usbmisc", "wwan") for node in siblings):
        return False  # a modem
    above = (next(ancestor_devices(node.syspath, sysfs), "") for node in nodes)
    kinds = {sysfs.link_name(f"{path}/subsystem") for path in above}
    places = {sysfs.place(node.syspath) for node in nodes}
    return len(nodes) > 1 and kinds == {"usb-serial"} and len(places) == len(nodes)


def _raw_interface(machine: Machine, owner: SysfsDevice) -> Iterator[DraftDevice]:
    """Yield the USB node of a serial device that has an interface without a driver, too."""
    node, facts = machine.node(owner.syspath), [part.facts for part in owner.interfaces]
    if node and any(fact["class"][:2] == "ff" and not fact["driver"] for fact in facts):
        name = f"{_slug(owner.facts['product'] or owner.facts['device'])}-usb"
        kind = DeviceKind({"name": name, "sources": [{"usb": {}}], "overlap": "allow"}, _RAW)
        yield DraftDevice(kind, owner, (node,), title(owner, [node]))


def device_of_node(machine: Machine, device: DescribedNode) -> DraftDevice:
    """Return a device with a kind of its own, which offers exactly this node, or all nodes."""
    owner, node, is_stable = device.owner, device.node, True
    nodes: tuple[KernelNode, ...] = (node,) if node is not None else ()
    link = device.variables.get("byId")
    resource: SourceOptions = {}
    if node is not None and node.subsystem == "block" and link is not None:
        resource = {"name": _slug(posixpath.basename(link)), "sources": [glob.escape(link)]}
    elif owner is not None:
        options, chosen, lasts = selectors.bus_nodes(machine, device)
        if owner.prefix == "usb." or lasts:
            bus, nodes, is_stable = owner.prefix.removesuffix("."), chosen, lasts
            resource = {"sources": [{bus: {"device": "*:*", **options}}]}
    if not resource and node is not None and node.subsystem:
        resource = {"sources": [{"sysfs": node.subsystem}]}
    elif not resource:  # sysfs does not know it
        path = str(node.path) if node is not None else ""
        resource = {"name": _slug(posixpath.basename(path)), "sources": [path]}
        is_stable = not selectors.is_counted(path)
    kind = DeviceKind(resource, _OF_NODE)
    name = f"{node.subsystem} {node.name}".strip() if node is not None else ""
    text = title(owner, nodes if owner is None else device.nodes, name)
    return DraftDevice(kind, owner, nodes, text, is_stable=is_stable)


# ── entries ──


def write_entries(
    machine: Machine, devices: Iterable[DraftDevice], domain: str, *, named: bool
) -> list[DraftEntry]:
    """Return resources that offer exactly these devices; ``named``: as a person named them.

    What only a name that the kernel counts would select is commented out.
    """
    alike: dict[tuple[str, str, str], list[DraftDevice]] = {}
    for device in devices:
        name = device.kind.name or _product(device)
        reason = "" if named else device.kind.row.reason
        if not named and _carries_network(machine, device):
            reason = _CARRIES_NETWORK
        if not device.is_stable:
            reason = _UNSTABLE
        likeness = repr((id(device.kind.row), _likeness(device)))
        alike.setdefault((name, reason, likeness), []).append(device)
    used = set(_OWN_NODES)
    return [
        _entry(machine, devices, unused_name(name, used), domain, reason)
        for (name, reason, _), devices in alike.items()
    ]


def _likeness(device: DraftDevice) -> object:
    """Return what devices of one resource have in common."""
    if device.kind.row.whole:
        return device.kind.name
    if device.owner is not None:
        product = device.owner.facts.get("product")
        return device.sources, device.number, product, device.kind.resource
    return device.nodes[0].syspath or device.nodes[0].file


def _product(device: DraftDevice) -> str:
    """Return a name for a resource of a kind without one."""
    owner, node = device.owner, device.nodes[0] if device.nodes else None
    if owner is None:
        name = node.name if node is not None else ""
        if node is not None and selectors.is_counted(name):
            name = _NAMES.get(node.subsystem, node.subsystem)
    elif owner.prefix == "usb.":
        name = owner.facts["product"] or owner.facts["device"]
    else:
        code = owner.facts["class"]
        name = class_name(code) if class_name(code) != code else owner.facts["driver"]
    return _slug(name)


def _entry(
    machine: Machine, devices: Sequence[DraftDevice], name: str, domain: str, reason: str
) -> DraftEntry:
    """Return the resource of devices that differ in serial number or place alone."""
    first, row = devices[0], devices[0].kind.row
    nodes = [node for device in devices for node in device.nodes]
    resource: SourceOptions = copy.deepcopy({**first.kind.resource})
    allocate = resource.setdefault("allocate", {})
    drivers = {machine.sysfs.driver(node.syspath) or "" for node in nodes}
    used = sorted({index for device in devices for index in device.sources})
    sources = [_with_drivers(resource["sources"][index], drivers) for index in used]
    is_of_usb = any("usb" in source for source in sources if isinstance(source, dict))
    if len(sources) == 1 and (is_of_usb or not row.whole):
        source, identity, is_stable = _narrow(machine, sources[0], devices, name)
        sources, resource = [source], identity | resource
        reason = reason or ("" if is_stable else _UNSTABLE)
        resource |= _add_container_path(machine, devices, name, allocate)
    resource["sources"] = sources
    _add_libraries(machine, row.libraries, allocate)
    places = [machine.sysfs.place(n.syspath) for n in nodes if n.subsystem in _PLACED]
    if all(places) and len({*places}) == len(places):
        _add_places(sources, name, allocate)
    if not allocate:
        del resource["allocate"]
    ordered = dict.fromkeys(("name", "sources", "id", *resource))
    resource["name"] = full_name(name, domain)
    resource = {key: resource[key] for key in ordered if key in resource}
    notes = filter(None, (row.note, f"Not offered: {reason}." if reason else ""))
    titles = [device.title for device in devices]
    files = [  # a dry run would leave out a disk that is in use
        (node.path, FileKind.BLOCK if node.subsystem == "block" else FileKind.CHAR, node.number)
        for node in nodes
        if node.path is not None and node.number is not None
    ]
    rights = needed_rights(Resource.model_validate(resource), files, machine.files)
    return DraftEntry(resource, (*titles, *notes), not reason, rights)


def _narrow(
    machine: Machine, source: Any, devices: Sequence[DraftDevice], name: str
) -> tuple[Any, SourceOptions, bool]:
    """Return the source of these devices alone, what makes their IDs, and whether it lasts."""
    first = devices[0]
    match source:
        case {"usb": options} | {"pci": options}:
            bus = "usb" if "usb" in source else "pci"
            owners = {device.owner.name: device.owner for device in devices if device.owner}
            numbers = options["device"] if first.kind.row.whole else first.number
            selected = selectors.bus_options(machine, [*owners.values()], numbers)
            is_named = "serial" in selected and not first.is_part  # a part's ID is its place
            selected |= {key: options[key] for key in _KEPT[bus] if key in options}
            return {bus: selected}, {"id": "${usb.serial}"} if is_named else {}, True
        case {"sysfs": _}:
            node = first.nodes[0]
            options, is_stable = selectors.sysfs_options(machine, node)
            identity = {"group": name} if selectors.is_counted(node.name) else {}
            if machine.sysfs.place(node.syspath) is not None:
                identity = {"id": "${place}"}
            return {"sysfs": options}, identity, is_stable
    return source, {}, True


def _add_libraries(machine: Machine, libraries: Sequence[str], allocate: SourceOptions) -> None:
    """Mount a driver's libraries from where the host has them."""
    for directory in LIBRARIES:
        names = [name for name in libraries if machine.files.stat(f"{directory}/{name}")]
        if names:
            target = allocate.get("env", {}).get("LD_LIBRARY_PATH", directory)
            mounts = [(f"{directory}/{name}", f"{target}/{name}") for name in names]
            if not directory.startswith("/usr/lib"):
                mounts = [(posixpath.dirname(directory), posixpath.dirname(target))]
            allocate["mounts"] = [
                {"hostPath": path, "containerPath": inside, "readOnly": True}
                for path, inside in mounts
            ]
            return


def _add_container_path(
    machine: Machine, devices: Sequence[DraftDevice], name: str, allocate: SourceOptions
) -> SourceOptions:
    """Set a path in the container that stays, where programs have it in a setting.

    Returns the limit of one device, where the path has no number.
    """
    rules = allocate.get("devices")
    if rules is not None and not (len(rules) == 1 and "containerPath" in rules[0]):
        return {}
    allocate.pop("devices", None)
    nodes = [[node for node in device.nodes if node.path] for device in devices]
    path = f"/dev/{name}" + ("${index}" if len(nodes) > 1 else "")
    if max(map(len, nodes)) > 1:
        path += "-${usb.interface}"
    for group in nodes:
        interfaces = {machine.sysfs.interface(node.syspath) for node in group}
        is_named = {node.subsystem for node in group} <= {*_OPENED_BY_PATH}
        if not is_named or len(interfaces) < max(len(group), 1):
            return {}
    allocate["devices"] = [{"hostPath": "${path}", "containerPath": path}]
    return {"maxDevices": 1} if len(nodes) == 1 else {}


def _carries_network(machine: Machine, device: DraftDevice) -> bool:
    """Whether the host's own network may be on a function of which a container gets nodes."""
    owner = device.owner
    if owner is None or owner.prefix != "pci." or owner.facts["pf"]:
        return False
    sysfs, nodes = machine.sysfs, machine.nodes(owner.syspath)
    interfaces = [node.syspath for node in nodes if node.subsystem == "net"]
    return bool(interfaces) and (
        sysfs.link(f"{owner.syspath}/virtfn0") is not None
        or any(sysfs.text(f"{path}/operstate") == "up" for path in interfaces)
    )


def _with_drivers(source: Any, drivers: Iterable[str]) -> Any:
    """Return a source with the drivers of this host instead of all that a kind knows."""
    match source:
        case {"sysfs": {"driver": [*globs]} as options}:
            here = [glob.escape(name) for name in sorted(drivers) if matches_any(name, globs)]
            return source | {"sysfs": {**options, "driver": selectors.few(here)}}
    return source


def _add_places(sources: Sequence[Any], name: str, allocate: SourceOptions) -> None:
    """Give a container nodes under their places, too, and a variable with the path."""
    devices = allocate.get("devices", ["${path}"])
    places, env = list[SourceOptions](), dict(allocate.get("env", {}))
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
        allocate |= {"devices": [devices[0], *places, *devices[1:]], "env": env}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"
