"""The source ``cdi``: the devices that vendors describe in CDI specs.

What a spec says is read as container runtimes do (tags.cncf.io/container-device-interface v1.1.0,
pkg/cdi/cache.go and spec.go), but for fields that only they need. Above the line it is pure.
"""

import contextlib
import errno
import functools
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import yaml

from devhost.errors import describe_os_error
from devhost.hostfs.files import CachedFiles, HostFiles, Tally
from devhost.hostfs.sysfs import (
    KernelNode,
    SysfsTree,
    node_variables,
    owning_device,
    sysfs_by_number,
)
from devhost.model import names
from devhost.model.device import Cause, FileKind, FileState, Hardware, Skipped
from devhost.model.limits import CDI_DEVICES_MAX, CDI_FILE_MAX, CDI_FILES_MAX
from devhost.model.pattern import matches_any
from devhost.model.sources import Cdi
from devhost.sources.base import (
    Candidate,
    Listing,
    Listings,
    Location,
    NodeSource,
    Unmatched,
    WatchedDirectory,
    list_location,
)
from devhost.sources.file_sources import FileListing
from devhost.sources.subsystems import NodesListing, NodesLocation

_DEPTH_MAX: Final = 32
_ALL: Final = "all"
_COUNTED: Final = re.compile("[0-9:]+")  # an index, as of a MIG device: 0:1
# Not what devhost writes, and drivers of DRA for their claims: those are no devices to offer.
_SPEC: Final = re.compile(r"(?!devhost_|.*-claim_).*\.(json|yaml)")

Nodes = frozenset[str]
"""The host paths of the nodes that the entry of a device lists: what all share is nobody's."""


class VendorSpec(NamedTuple):
    """A file: its kind, and the nodes of its devices by name."""

    kind: str
    devices: Mapping[str, Nodes]


@functools.lru_cache(maxsize=16)
def parse_spec(content: bytes) -> VendorSpec:
    """Return what a file holds; a `ValueError` without any of its text says why not."""
    try:
        data = _mapping(_load(content.decode()))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise ValueError(f"line {line}: {getattr(error, 'problem', None) or 'no YAML'}") from None
    kind, entries = f"{data.get('kind')}", _list(data.get("devices"))
    if len(entries) > CDI_DEVICES_MAX:
        raise ValueError(f"more than {CDI_DEVICES_MAX} devices")
    devices: dict[str, Nodes] = {}
    for number, entry in enumerate(map(_mapping, entries)):
        name, edits = f"{entry.get('name')}", _mapping(entry.get("containerEdits"))
        listed = map(_mapping, _list(edits.get("deviceNodes")))
        nodes = frozenset(f"{node.get('hostPath') or node.get('path')}" for node in listed)
        problems = (names.cdi_name_problem(f"{kind}={name}"), *map(names.path_problem, nodes))
        if name in devices or any(problems):
            raise ValueError(f"devices[{number}]: its kind, name or a node is not valid, or twice")
        devices[name] = nodes
    return VendorSpec(kind, devices)


def _load(text: str) -> object:
    """Return a YAML document as mappings, lists and strings: what aliases make of it is bounded."""
    depth = 0
    for event in yaml.parse(text, yaml.CBaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX or isinstance(event, yaml.AliasEvent):
            raise ValueError(f"nested deeper than {_DEPTH_MAX} levels, or it has aliases")
    return yaml.load(text, yaml.CBaseLoader)  # noqa: S506 (it makes nothing but strings)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def merge(
    kind: str, directories: Iterable[Iterable[VendorSpec]]
) -> tuple[dict[str, Nodes], set[str]]:
    """Return the devices of a kind by name, and the names that runtimes do not take.

    A later directory has precedence; a name that is twice in one is usable nowhere.
    """
    devices: dict[str, Nodes] = {}
    twice = set[str]()
    for specs in directories:
        here: dict[str, Nodes] = {}
        for spec in specs:
            if spec.kind == kind:
                twice |= here.keys() & spec.devices.keys()
                here |= spec.devices
        devices |= here
    return {name: nodes for name, nodes in devices.items() if name not in twice}, twice


def merge_all(directories: Sequence[Collection[VendorSpec]]) -> dict[str, dict[str, Nodes]]:
    """Return the devices by name of each kind."""
    kinds = names.natural({spec.kind for specs in directories for spec in specs})
    return {kind: merge(kind, directories)[0] for kind in kinds}


class VendorDevice(NamedTuple):
    """A device of a kind.

    Attributes:
        names: Its names, that of its ID first: of several with the same nodes, one that is no
            number.
        owned: Those of its nodes that no other device has.
    """

    names: tuple[str, ...]
    nodes: Nodes
    owned: Nodes


def distinguish(
    nodes_by_name: Mapping[str, Nodes], in_full: Collection[str] = ()
) -> list[VendorDevice]:
    """Return the devices of a kind without those that stand for others, unless named in full."""
    namesakes: dict[object, list[str]] = {}
    for name, nodes in nodes_by_name.items():
        if name != _ALL:
            namesakes.setdefault(nodes or name, []).append(name)
    sets = {nodes for name, nodes in nodes_by_name.items() if nodes and name != _ALL}
    unions = {nodes for nodes in sets if nodes == Nodes().union(*(s for s in sets if s < nodes))}
    users = Counter(node for nodes in sets - unions for node in nodes)
    devices = [
        VendorDevice((name,), nodes, nodes)
        for name, nodes in nodes_by_name.items()
        if name in in_full and (name == _ALL or nodes in unions)
    ]
    for aliases in namesakes.values():
        nodes = nodes_by_name[aliases[0]]
        owned = Nodes(node for node in nodes if users[node] == 1)
        if nodes not in unions and (owned or not nodes):
            devices.append(VendorDevice(tuple(sorted(aliases, key=_turn)), nodes, owned))
    return sorted(devices, key=lambda device: names.natural_key(device.names[0]))


def _turn(name: str) -> tuple[bool, str]:
    return _COUNTED.fullmatch(name) is not None, names.natural_key(name)


# ── the host's specs ───────────────────────────────────────────────────────────────────


class SpecListing(FileListing):
    """The specs in a directory, by path; what cannot be read is `unreadable`.

    Any host path is a name in it: devices may have their nodes anywhere.
    """

    def __init__(self, files: HostFiles) -> None:
        super().__init__("", files)
        self.specs: dict[str, VendorSpec] = {}
        self.unreadable: dict[str, str] = {}

    def states(self, paths: Iterable[str]) -> dict[str, FileState]:
        """Return what is at host paths, for those that are there. Blocks."""
        states: dict[str, FileState] = {}
        for path in names.natural(paths):
            with contextlib.suppress(OSError):
                state = self.state(path[1:])
                states |= {path: state} if state is not None else {}
        return states

    @functools.cached_property
    def sysfs(self) -> SysfsTree:
        """The kernel's devices by number."""
        return sysfs_by_number(self._files)


@dataclass(frozen=True, slots=True)
class SpecLocation(Location):
    """A directory where container runtimes look for CDI specs."""

    path: str

    @property
    def base(self) -> str:
        """The directory."""
        return self.path

    @property
    def watched(self) -> WatchedDirectory:
        """The directory; specs may be written in place."""
        return WatchedDirectory(self.path, writes=True)

    def list(self, files: HostFiles, tally: Tally) -> SpecListing:
        """Read the specs of others."""
        listing = SpecListing(files)
        entries = CachedFiles(files).entries(self.path, tally=tally) or ()
        listed = [entry.name for entry in entries if _SPEC.fullmatch(entry.name)]
        if len(listed) > CDI_FILES_MAX:
            raise OSError(errno.E2BIG, f"more than {CDI_FILES_MAX} CDI specs", self.path)
        for path in (f"{self.path}/{name}" for name in names.natural(listed)):
            try:
                listing.specs[path] = parse_spec(_read(files, path))
            except ValueError as error:
                listing.unreadable[path] = names.printable(str(error))
            except OSError as error:
                listing.unreadable[path] = describe_os_error(error)
        return listing


def _read(files: HostFiles, path: str) -> bytes:
    """Return the content of a regular file."""
    state = files.stat(path)
    if state is None or state.kind is not FileKind.FILE:
        raise ValueError("no file")
    with open(files.to_local(state.realpath), "rb") as file:  # noqa: PTH123
        content = file.read(CDI_FILE_MAX + 1)
    if len(content) > CDI_FILE_MAX:
        raise ValueError(f"more than {CDI_FILE_MAX >> 20} MiB")
    return content


def list_vendor_devices(files: HostFiles) -> Iterator[tuple[str, VendorDevice]]:
    """Yield each device in the specs of a host with its kind. Blocks."""
    listings = (list_location(SpecLocation(path), files) for path in files.cdi_dirs)
    directories = [part.specs.values() for part in listings if isinstance(part, SpecListing)]
    for kind, devices in merge_all(directories).items():
        for device in distinguish(devices):
            yield kind, device


class CdiSource(NodeSource):
    """Finds the devices of a kind in CDI specs."""

    def __init__(self, options: Cdi, directories: Iterable[str]) -> None:
        self._options = options
        self._directories = tuple(map(SpecLocation, directories))
        self._nodes = NodesLocation(links=True)
        self.locations = (*self._directories, self._nodes)
        self._files = set[str]()  # that have had devices of the kind

    def _listings(self, listings: Listings) -> list[SpecListing]:
        chosen = map(listings.__getitem__, self._directories)
        return [listing for listing in chosen if isinstance(listing, SpecListing)]

    def failure(self, listings: Listings) -> str | None:
        """Return why a spec could not be read that has, or may have, devices of the kind."""
        unreadable: dict[str, str] = {}
        used = set[str]()
        for listing in self._listings(listings):
            unreadable |= listing.unreadable
            specs = listing.specs.items()
            used |= {path for path, spec in specs if spec.kind == self._options.kind}
        self._files = used | (self._files & unreadable.keys())
        broken = (path for path in unreadable if path in self._files or not self._files)
        return next((f"{path}: {unreadable[path]}" for path in broken), None)

    def find(self, listings: Listings, _previous: object) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device that matches, or its name if it has none."""
        specs, kind = self._listings(listings), self._options.kind
        devices, twice = merge(kind, [listing.specs.values() for listing in specs])
        for name in names.natural(twice):
            text = "two specs in one directory have it: container runtimes take neither"
            yield Skipped.because(Cause.CLASH, f"{kind}={name}", text)
        self.empty_text = ""
        if not any(listing.specs for listing in specs):
            directories = " or ".join(location.path for location in self._directories)
            self.empty_text = f"there is no CDI spec of a vendor in {directories}"
        owners: dict[str, str] = {}
        for device in filter(self._matches, distinguish(devices, self._options.name or ())):
            label = f"{kind}={device.names[0]}"
            if any(matches_any(name, self._options.exclude) for name in device.names):
                yield Skipped.because(Cause.EXCLUDED, label, "excluded")
            elif owner := next(filter(None, map(owners.get, device.owned)), None):
                yield Skipped.because(Cause.OWNED, label, f"{owner} has nodes of it")
            else:
                owners |= dict.fromkeys(device.owned, label)
                yield from _candidates(device, kind, specs[0], listings[self._nodes])

    def _matches(self, device: VendorDevice) -> bool:
        globs = self._options.name
        return globs is None or any(matches_any(name, globs) for name in device.names)

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other devices, and the names that stand for several."""
        directories = [listing.specs.values() for listing in self._listings(listings)]
        for kind, devices in merge_all(directories).items():
            of_name = {
                name: device
                for device in distinguish(devices, self._options.name or ())
                for name in device.names
            }
            for name in names.natural(devices):
                if kind != self._options.kind:
                    yield Unmatched(f"{kind}={name}", {"kind": kind})
                elif name not in of_name:
                    text = "it stands for other devices: `name` has to say it in full"
                    yield Unmatched(f"{kind}={name}", {"": text})
                elif not self._matches(of_name[name]):
                    yield Unmatched(f"{kind}={name}", {"name": name})


def _candidates(
    device: VendorDevice, kind: str, specs: SpecListing, nodes: Listing
) -> Iterator[Candidate | Skipped]:
    """Yield the nodes of a device that others do not have, or its name if it has none at all."""
    name = device.names[0]
    label, states = f"{kind}={name}", specs.states(device.nodes)
    variables = {"cdi.kind": kind, "cdi.name": name, "cdi.qualified": label}
    absent = [f"there is no {path}" for path in names.natural(device.nodes - states.keys())]
    if not device.nodes:
        yield Candidate("", name, variables)
    elif device.owned.isdisjoint(states):
        yield Skipped.because(Cause.INCOMPLETE, label, absent[0])
    ordered = sorted(states, key=lambda path: path not in device.owned)
    kernel_nodes = (_kernel_node(states[path], specs.sysfs) for path in ordered)
    kernel_node = next(filter(None, kernel_nodes), KernelNode("", "", ""))
    if syspath := kernel_node.syspath:
        owner = owning_device(syspath, specs.sysfs)
        variables |= owner.variables if owner is not None else {}
        variables |= node_variables(kernel_node, specs.sysfs)
        variables |= {"subsystem": kernel_node.subsystem, "syspath": syspath}
    for path in filter(device.owned.__contains__, states):
        links = nodes.udev.get(path, {}) if isinstance(nodes, NodesListing) else {}
        hardware = Hardware(
            unit=label,
            label=label,
            syspath=syspath,
            place=path,
            entity=path,
            number=states[path].number,
            role=None,
            numa=syspath,
            incomplete=f"incomplete: {absent[0]}" if absent else None,
        )
        yield Candidate(path, name, {**variables, **links}, None, (specs, path[1:]), hardware)


def _kernel_node(state: FileState, sysfs: SysfsTree) -> KernelNode | None:
    """Return what the kernel has for a device node."""
    kind = "block" if state.kind is FileKind.BLOCK else "char"
    path = sysfs.device_by_number(kind, state.number) if state.number else None
    if path is None:
        return None
    return KernelNode(posixpath.basename(path), sysfs.link_name(f"{path}/subsystem") or "", path)
