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
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml

from devhost.errors import describe_os_error
from devhost.hostfs.files import CachedFiles, HostFiles, Tally
from devhost.hostfs.kernel_devices import KernelNode, node_variables
from devhost.hostfs.sysfs import SysfsTree, sysfs_by_number
from devhost.model import names
from devhost.model.device import Cause, Skipped
from devhost.model.device_node import FileKind, FileState, Hardware
from devhost.model.limits import CDI_DEVICES_MAX, CDI_FILE_MAX, CDI_FILES_MAX
from devhost.model.pattern import matches_any
from devhost.model.sources import Cdi
from devhost.sources.base import (
    Candidate,
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
_FOR_OTHERS: Final = "it stands for other devices: `name` has to say it in full"
_COUNTED: Final = re.compile("[0-9:]+")  # an index, as of a MIG device: 0:1
# Not what devhost writes, and drivers of DRA for their claims: those are no devices to offer.
_SPEC: Final = re.compile(r"(?!devhost_|.*-claim_).*\.(json|yaml)")

Nodes = frozenset[str]
"""The host paths of the nodes that the entry of a device lists: what all share is nobody's."""
VendorSpec = Mapping[str, Nodes]
"""What a file has, by qualified name."""


@functools.lru_cache(maxsize=16)
def parse_spec(content: bytes) -> VendorSpec:
    """Return what a file holds; a `ValueError` without any of its text says why not."""
    try:
        data = _mapping(_load(content.decode()))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise ValueError(f"line {line}: {getattr(error, 'problem', None) or 'no YAML'}") from None
    if len(entries := _list(data.get("devices"))) > CDI_DEVICES_MAX:
        raise ValueError(f"more than {CDI_DEVICES_MAX} devices")
    devices: dict[str, Nodes] = {}
    for number, entry in enumerate(map(_mapping, entries)):
        name = f"{data.get('kind')}={entry.get('name')}"
        listed = _list(_mapping(entry.get("containerEdits")).get("deviceNodes"))
        nodes = Nodes(f"{n.get('hostPath') or n.get('path')}" for n in map(_mapping, listed))
        problems = (names.cdi_name_problem(name), *map(names.path_problem, nodes))
        if name in devices or any(problems):
            raise ValueError(f"devices[{number}]: its kind, name or a node is not valid, or twice")
        devices[name] = nodes
    return devices


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
    directories: Iterable[Iterable[VendorSpec]],
) -> tuple[dict[str, dict[str, Nodes]], set[str]]:
    """Return the devices by kind and name, and the qualified names that runtimes do not take.

    A later directory has precedence; a name that is twice in one is usable nowhere.
    """
    devices: dict[str, Nodes] = {}
    twice = set[str]()
    for specs in directories:
        here: dict[str, Nodes] = {}
        for spec in specs:
            twice |= here.keys() & spec.keys()
            here |= spec
        devices |= here
    by_kind: dict[str, dict[str, Nodes]] = {}
    for qualified in names.natural(devices.keys() - twice):
        kind, _, name = qualified.partition("=")
        by_kind.setdefault(kind, {})[name] = devices[qualified]
    return by_kind, twice


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
    """Return the devices of a kind: names with the same nodes are one, and each has its own nodes.

    A name stands for several devices if it is ``all``, or if smaller devices have each of its
    nodes: it is a device only if it is chosen `in_full`, in the place of all that share a node.
    """
    plain = {name: nodes for name, nodes in nodes_by_name.items() if name != _ALL}
    sizes: dict[str, int] = {}  # by node, of the smallest set of nodes that it is in
    for nodes in sorted(plain.values(), key=len, reverse=True):
        sizes |= dict.fromkeys(nodes, len(nodes))
    groups = {_ALL} | {
        name
        for name, nodes in plain.items()
        if nodes and all(sizes[node] < len(nodes) for node in nodes)
    }
    devices = [
        VendorDevice((name,), nodes, nodes)
        for name, nodes in nodes_by_name.items()
        if name in groups and name in in_full
    ]
    taken = Nodes().union(*(device.nodes for device in devices))
    namesakes: dict[Nodes | str, list[str]] = {}  # by nodes; a device without any has one name
    for name, nodes in plain.items():
        if name not in groups:
            namesakes.setdefault(nodes or name, []).append(name)
    users = Counter(node for aliases in namesakes.values() for node in plain[aliases[0]])
    for aliases in namesakes.values():
        nodes = plain[aliases[0]]
        owned = Nodes(node for node in nodes if users[node] == 1)
        if taken.isdisjoint(nodes) and (owned or not nodes):
            aliases.sort(key=lambda name: (bool(_COUNTED.fullmatch(name)), names.natural_key(name)))
            devices.append(VendorDevice(tuple(aliases), nodes, owned))
    return sorted(devices, key=lambda device: names.natural_key(device.names[0]))


# ── the host's specs ───────────────────────────────────────────────────────────────────


@dataclass(eq=False, kw_only=True)
class SpecListing(FileListing):
    """The specs in a directory, by path; what cannot be read is `unreadable`.

    Any host path can be read in it: devices may have their nodes anywhere.

    Attributes:
        kinds: The kind of each file, by path; of one that is unreadable, when it was read last.
    """

    specs: Mapping[str, VendorSpec]
    kinds: Mapping[str, str]

    @functools.cached_property
    def sysfs(self) -> SysfsTree:
        """The kernel's devices by number."""
        return sysfs_by_number(self.files)

    def syspath(self, state: FileState) -> str | None:
        """Return the directory in sysfs of a device node."""
        number = state.number
        return self.sysfs.device_by_number(state.kind.value, number) if number else None


@dataclass(frozen=True, slots=True)
class SpecLocation(Location):
    """A directory where container runtimes look for CDI specs; it remembers the kinds of files."""

    path: str
    _kinds: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def watched(self) -> WatchedDirectory:
        """The directory; specs may be written in place."""
        return WatchedDirectory(self.path, writes=True)

    def list(self, files: HostFiles, tally: Tally) -> SpecListing:
        """Read the specs of others."""
        specs, unreadable = dict[str, VendorSpec](), dict[str, str]()
        entries = CachedFiles(files).entries(self.path, tally=tally) or ()
        listed = [entry.name for entry in entries if _SPEC.fullmatch(entry.name)]
        if len(listed) > CDI_FILES_MAX:
            raise OSError(errno.E2BIG, f"more than {CDI_FILES_MAX} CDI specs", self.path)
        for path in (f"{self.path}/{name}" for name in names.natural(listed)):
            try:
                spec = specs[path] = parse_spec(_read(files, path))
                self._kinds[path] = next(iter(spec), "").partition("=")[0]
            except ValueError as error:
                unreadable[path] = names.printable(str(error))
            except OSError as error:
                unreadable[path] = describe_os_error(error)
        present = specs.keys() | unreadable.keys()
        kinds = {path: kind for path, kind in self._kinds.items() if path in present}
        return SpecListing(unreadable=unreadable, files=files, specs=specs, kinds=kinds)


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
    for kind, devices in merge(directories)[0].items():
        yield from ((kind, device) for device in distinguish(devices))


class CdiSource(NodeSource):
    """Finds the devices of a kind in CDI specs."""

    def __init__(self, options: Cdi, directories: Iterable[str]) -> None:
        self._options = options
        self._directories = tuple(map(SpecLocation, directories))
        self._nodes = NodesLocation(links=True)
        self.locations = (*self._directories, self._nodes)

    def _listings(self, listings: Listings) -> list[SpecListing]:
        return [listings[directory] for directory in self._directories]

    def failure(self, listings: Listings) -> str | None:
        """Return why a file could not be read that had, or may have, devices of the kind."""
        specs, kind = self._listings(listings), self._options.kind
        kinds = {path: kind for listing in specs for path, kind in listing.kinds.items()}
        unread = {path: why for listing in specs for path, why in listing.unreadable.items()}
        unknown = "" if kind in kinds.values() else kind
        relevant = (path for path in unread if kinds.get(path, unknown) == kind)
        return next((f"{path}: {unread[path]}" for path in relevant), None)

    def find(self, listings: Listings, _previous: object) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device that matches, or its name if it has none."""
        specs, kind = self._listings(listings), self._options.kind
        by_kind, twice = merge(listing.specs.values() for listing in specs)
        for label in (name for name in names.natural(twice) if name.startswith(f"{kind}=")):
            text = "two specs in one directory have it: container runtimes take neither"
            yield Skipped.because(Cause.CLASH, label, text)
        devices = distinguish(by_kind.get(kind, {}), self._options.name or ())
        for device in filter(self._matches, devices):
            if any(matches_any(name, self._options.exclude) for name in device.names):
                yield Skipped.because(Cause.EXCLUDED, f"{kind}={device.names[0]}", "excluded")
            else:
                yield from _candidates(device, kind, specs[0], listings[self._nodes])

    def _matches(self, device: VendorDevice) -> bool:
        globs = self._options.name
        return globs is None or any(matches_any(name, globs) for name in device.names)

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other devices, and the names that stand for several."""
        by_kind, _ = merge(listing.specs.values() for listing in self._listings(listings))
        for kind, devices in by_kind.items():
            distinct = distinguish(devices, self._options.name or ())
            matches = {name: self._matches(device) for device in distinct for name in device.names}
            for name in names.natural(devices):
                if kind != self._options.kind:
                    yield Unmatched(f"{kind}={name}", {"kind": kind})
                elif name not in matches:
                    yield Unmatched(f"{kind}={name}", {"": _FOR_OTHERS})
                elif not matches[name]:
                    yield Unmatched(f"{kind}={name}", {"name": name})


def _candidates(
    device: VendorDevice, kind: str, specs: SpecListing, nodes: NodesListing
) -> Iterator[Candidate | Skipped]:
    """Yield the nodes of a device that others do not have, or its name if it has none at all."""
    name = device.names[0]
    label, states = f"{kind}={name}", dict[str, FileState]()
    for path in names.natural(device.nodes):
        with contextlib.suppress(OSError):
            if (state := specs.state(path)) is not None:
                states[path] = state
    variables = {"cdi.kind": kind, "cdi.name": name, "cdi.qualified": label}
    absent = [f"there is no {path}" for path in names.natural(device.nodes - states.keys())]
    if not device.nodes:
        yield Candidate("", name, variables)
    elif device.owned.isdisjoint(states):
        yield Skipped.because(Cause.INCOMPLETE, label, absent[0])
    ordered = sorted(states, key=lambda path: path not in device.owned)
    places = filter(None, (specs.syspath(states[path]) for path in ordered))
    if syspath := next(places, ""):
        subsystem = specs.sysfs.link_name(f"{syspath}/subsystem") or ""
        node = KernelNode(posixpath.basename(syspath), subsystem, syspath)
        variables |= node_variables(node, specs.sysfs)
    lack = f"incomplete: {absent[0]}" if absent else None
    for path in filter(device.owned.__contains__, states):
        links = nodes.udev.get(path, {})
        number = states[path].number
        hardware = Hardware(
            label, label, syspath, path, path, number, role=None, numa=syspath, incomplete=lack
        )
        yield Candidate(path, name, {**variables, **links}, None, specs, hardware)
