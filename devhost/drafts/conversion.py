"""Settings of other plugins, and what pods have by path, as a configuration."""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from devhost.config import yaml_tree
from devhost.config.loader import loads
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent
from devhost.drafts import draft, generic_plugin, path_users, smarter, udev_rules
from devhost.drafts.draft import DraftEntry, NodeEntries, lost_entry, unused_name, with_rights
from devhost.drafts.entries import DOMAIN
from devhost.hostfs.files import HostFiles, is_wild
from devhost.model import limits

_COMMAND: Final = re.compile(r"--device[= ]'(\{[^']*)'")
# The beginning of a text with settings, and their first name.
_SETTING: Final = re.compile(
    r"""(?:\A[\s{]*["']?name|\A[-\s{[]*["']?devicematch)["']?:\s*["']?([^\s"',]+)"""
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# What a container of the plugin has; its domain: a flag in a list or a command line, or a variable.
_PLUGIN: Final = re.compile(
    r"""generic-device-plugin|--device(?:=|', ["'])\W*(?:name|groups)|--config\b.*--domain\b"""
)
_DOMAIN: Final = re.compile(
    r"""(?:--domain(?:=|', '| )|'DOMAIN'(?:, 'value')?: ')["']?([^\s"',}]+)"""
)
_RELEASE: Final = re.compile(
    r"generic-device-plugin(?::|'[^{}]{0,300}'tag': ')v?([0-9]+)\.([0-9]+)|"
    r"'tag': 'v?([0-9]+)\.([0-9]+)[^{}]{0,300}generic-device-plugin'"
)
_CONFIG_NAME: Final = re.compile(r"'name': '([^']{1,253})'")
# What a resource gives: paths, and the beginning of patterns below /dev.
_GIVEN: Final = re.compile(r"(?<!'containerPath': )'(/[^']+)'|'dev': '([^(']+)")
_BEFORE_0_2: Final = "squat.ai"
_MICROSHIFT: Final = "device.microshift.io"
_UNSURE: Final = (
    f"Nothing says in which domain: {_BEFORE_0_2} is the plugin's default before 0.2.0, and "
    "devic.es since. The `limits` of the pods have it; give another one by --domain."
)
_PROFILES: Final = (
    "A DaemonSet is for some nodes: with --values, its devices are a profile of these."
)
_EXAMPLE: Final = f"{DOMAIN} stands for a domain of yours: --domain sets it."

_Labels = tuple[tuple[str, str], ...]


class _Place(NamedTuple):
    """Where a value is.

    Attributes:
        manifest: The number of the manifest, or of the document, that has it.
        key: The nearest key above.
        name: Of the manifest, or of the controller in the values of a chart.
        domain: That of devices there; empty: not said.
        labels: Those of the nodes on which its pods are.
    """

    manifest: int = 0
    key: str = ""
    name: str = ""
    domain: str = ""
    labels: _Labels = ()


@dataclass(slots=True)
class _Nodes(NodeEntries):
    """The entries of the nodes with some labels.

    Attributes:
        starts: The literal beginnings of the paths that they give, sorted, of which none begins
            with another.
    """

    starts: list[str] = field(default_factory=list)

    def add(self, entry: DraftEntry) -> None:
        """Add an entry, or why a file may not have it; nodes of an earlier one may be shared."""
        if entry.resource:
            name, texts = entry.resource["name"], _GIVEN.findall(str(entry.resource))
            problems = loads(draft.render((), [entry])).problems
            errors = [problem.message for problem in problems if problem.severity == "error"]
            if any(former.resource.get("name") == name for former in self.entries):
                errors = ["a second resource of this name"]
            if errors:
                entry = lost_entry(name, errors[0])
            elif sum(self._share(path or f"/dev/{head}*") for path, head in texts):
                entry = replace(entry, resource={**entry.resource, "overlap": "allow"})
        self.entries.append(entry)

    def _share(self, path: str) -> bool:
        """Add a path; return whether an earlier one may match it, what is below it or above."""
        start = re.split(r"[*?[]", path)[0] + "/" * (not is_wild(path))
        at = end = bisect.bisect_left(self.starts, start)
        if at and start.startswith(self.starts[at - 1]):
            return True
        while end < len(self.starts) and self.starts[end].startswith(start):
            end += 1
        self.starts[at:end] = [start]
        return end > at


class Conversion:
    """Collects what files of others have, and writes it as resources.

    They are in a domain, or in that of their plugin. ``by_node``, the devices of a DaemonSet with
    a `nodeSelector` are a profile.
    """

    def __init__(
        self, files: HostFiles, domain: str | None = None, *, by_node: bool = False
    ) -> None:
        self._files, self._domain, self._by_node = files, domain, by_node
        self._devices = list[tuple[dict[str, Any], _Place]]()
        # By manifest, which may be in another file than the settings.
        self._plugins = dict[int, list[_Place]]()
        self._others = list[path_users.PathUse | DraftEntry]()
        self._manifests = list[Any]()

    def read(self, text: str) -> bool:
        """Add what a text has, and return whether it has anything.

        Scalars stay as they are written: 0403 is no number here.
        """
        extent, arguments, manifests = Extent(), _COMMAND.findall(text), list[Any]()
        before = self._counts()
        try:
            trees = [tree.data for tree in yaml_tree.parse_all(text, extent, texts=True)]
        except TreeError:
            if not arguments:
                raise
            trees = []
        for manifest in path_users.list_manifests(trees, extent):
            counts = self._counts()
            self._walk(manifest, self._add_manifest(manifest), extent)
            if counts == self._counts():
                manifests.append(manifest)
        if arguments and len(self._devices) == before[0]:
            domain = _domain(text) or ""
            self._walk(arguments, self._add_manifest(arguments)._replace(domain=domain), extent)
        has_plugin = before != self._counts()
        domain, count_before = self._domain or DOMAIN, len(self._others)
        for manifest in manifests:
            self._others += [
                use
                for use in path_users.find_uses(manifest)
                # Beside a plugin are also privileged pods of the cluster.
                if not has_plugin or isinstance(use, path_users.PathUse)
            ]
            self._others += udev_rules.find_entries(manifest, extent, domain)
        return has_plugin or len(self._others) > count_before

    def _counts(self) -> tuple[int, int]:
        """Return how many devices were read, and how many manifests with a plugin."""
        return len(self._devices), len(self._plugins)

    def _add_manifest(self, manifest: Any) -> _Place:
        self._manifests.append(manifest)
        return _Place(len(self._manifests) - 1)

    def _walk(self, value: Any, place: _Place, extent: Extent) -> None:
        match value:
            case {"name": str(), "groups": _} | {"devicematch": _}:
                self._devices.append((value, place))
            case dict():
                place = self._locate(value, place)
                for key, child in value.items():
                    name = key if place.key == "controllers" else place.name
                    if key != _LAST_APPLIED:
                        self._walk(child, place._replace(key=key, name=name), extent)
            case list():
                for member in value:
                    self._walk(member, place, extent)
            case str() if "groups" in value or "devicematch" in value:
                self._read_text(value.removeprefix("--device="), place, extent)

    def _read_text(self, text: str, place: _Place, extent: Extent) -> None:
        """Add what is in a text of a ConfigMap, or an argument of a container."""
        try:
            for tree in yaml_tree.parse_all(text, extent, texts=True):
                if not isinstance(tree.data, str):
                    self._walk(tree.data, place, extent)
        except TreeError as error:  # other texts of ConfigMaps need not be YAML
            if (setting := _SETTING.search(text)) is not None:
                problem = f"line {error.line}, column {error.column} of its text: {error}"
                self._devices.append(({"name": setting[1], "unreadable": problem}, place))

    def _locate(self, value: dict[str, Any], place: _Place) -> _Place:
        """Return the place of what a mapping has; remember one that is the plugin's container."""
        metadata = value.get("metadata")
        if "kind" in value and isinstance(metadata, dict):
            place = self._add_manifest(value)._replace(name=str(metadata.get("name")))
        for pods in (value, value.get("pod"), value.get("defaultPodOptions")):
            labels = pods.get("nodeSelector") if isinstance(pods, dict) else None
            if isinstance(labels, dict):
                pairs = ((key, str(labels[key])) for key in labels if key != "kubernetes.io/os")
                place = place._replace(labels=tuple(sorted(pairs)))
        if "genericDevicePlugin" in value:
            place = place._replace(domain=_MICROSHIFT)
        if isinstance(domain := value.get("domain"), str) and domain:
            place = place._replace(domain=domain)
        elif "image" in value and (domain := _domain(str(value))) is not None:
            place = place._replace(domain=domain or place.domain)
            self._plugins.setdefault(place.manifest, []).append(place)
        return place

    def _resolve(self) -> Iterator[tuple[dict[str, Any], set[str], _Place]]:
        """Yield each device with the domains that it may have, and where its pods are.

        That is by the plugin around it, in the same manifest, in one that names its ConfigMap, or
        by all plugins.
        """
        all_plugins, by_name = list[_Place](), dict[str, list[_Place]]()
        for manifest, plugins in self._plugins.items():
            all_plugins += plugins
            for name in {*_CONFIG_NAME.findall(str(self._manifests[manifest]))}:
                by_name.setdefault(name, []).extend(plugins)
        for device, place in self._devices:
            nearest = self._plugins.get(place.manifest) or by_name.get(place.name)
            plugins = nearest or all_plugins
            domains = {place.domain} if place.domain else {plugin.domain for plugin in plugins}
            domains = set() if "devicematch" in device else domains - {""}
            is_sure = not place.labels and len({plugin.labels for plugin in plugins}) == 1
            yield device, domains, plugins[0] if is_sure else place

    def finish(self) -> tuple[list[NodeEntries], list[str]]:
        """Return entries for all nodes, and those of profiles, with what to know of them. Blocks.

        What cannot be a resource is a comment. Raises `ValueError` for more devices than a file may
        have resources.
        """
        if (count := len(self._devices) + len(self._others)) > limits.RESOURCES_MAX:
            raise ValueError(f"{count} devices, more than {limits.RESOURCES_MAX}")
        profiles, notes = dict[_Labels, _Nodes]({(): _Nodes("", {})}), dict[str, None]()
        names = set[str]()
        for device, domains, place in self._resolve():
            labels = place.labels if self._by_node else ()
            if labels not in profiles:
                name = re.sub("[^a-z0-9]+", "-", place.name.lower())[:16].strip("-") or "nodes"
                profiles[labels] = _Nodes(unused_name(name, names), dict(labels))
            if place.labels and not labels:
                notes[_PROFILES] = None
            if not (self._domain or domains or "devicematch" in device):
                notes[_UNSURE] = None
            for entry in self._convert_device(device, domains):
                profiles[labels].add(entry)
        if self._others and self._domain is None:
            notes[_EXAMPLE] = None
        for entry in path_users.build_entries(self._others, self._domain or DOMAIN, self._files):
            profiles[()].add(entry)
        for profile in profiles.values():
            profile.entries = with_rights(profile.entries, self._files)
        return [*profiles.values()], [*notes]

    def _convert_device(self, device: dict[str, Any], domains: set[str]) -> Iterator[DraftEntry]:
        """Yield the resources of a device of a plugin, and what cannot be carried over."""
        is_smarter = "devicematch" in device
        default = smarter.DOMAIN if is_smarter else min(domains, default=_BEFORE_0_2)
        domain = self._domain or default
        name = f"{domain}/{device.get('devicematch') or device.get('name')}"
        problem = device.get("unreadable")
        if self._domain is None and len(domains) > 1:
            problem = f"in {' or '.join(sorted(domains))}: give its domain by --domain"
        try:
            if problem:
                yield lost_entry(name, problem)
            elif is_smarter:
                yield from map(DraftEntry, smarter.convert_setting(device, domain, self._files))
            else:
                yield from generic_plugin.convert_device(name, device, self._files)
        except (OSError, ValueError) as error:
            yield lost_entry(name, error)


def _domain(text: str) -> str | None:
    """Return the domain of a plugin that a text runs; empty: not said; ``None``: no plugin."""
    if _PLUGIN.search(text) is None:
        return None
    if (flag := _DOMAIN.search(text)) is not None:
        return flag[1]
    if (release := _RELEASE.search(text)) is None:
        return ""
    major, minor = filter(None, release.groups())
    return _BEFORE_0_2 if (int(major), int(minor)) < (0, 2) else "devic.es"
