"""Settings of other plugins, and what pods take by path, as a configuration."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from devhost.config import yaml_tree
from devhost.config.loader import loads
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent
from devhost.drafts import draft, generic_plugin, path_users, smarter, udev_rules
from devhost.drafts.draft import DraftEntry, Profile, lost_entry, with_rights
from devhost.drafts.entries import DOMAIN
from devhost.hostfs.files import HostFiles
from devhost.model import limits

_COMMAND: Final = re.compile(r"--device[= ]'(\{[^']*)'")
# The beginning of a text with settings, and their first name.
_SETTING: Final = re.compile(
    r"""(?:\A[\s{]*["']?name|\A[-\s{[]*["']?devicematch)["']?:\s*["']?([^\s"',]+)"""
)
# A flag of a list of arguments, or of a command line; a variable of the environment.
_DOMAIN: Final = re.compile(
    r"""(?:--domain(?:=|', '| )|'DOMAIN'(?:, 'value')?: ')["']?([^\s"',}]+)"""
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_PLUGIN: Final = "generic-device-plugin"
_VERSION: Final = r"v?([0-9]+)\.([0-9]+)"
# An image, also as values of a chart.
_IMAGE: Final = re.compile(
    rf"{_PLUGIN}(?::|'[^{{}}]{{0,300}}'tag': '){_VERSION}|'tag': '{_VERSION}[^{{}}]{{0,300}}{_PLUGIN}'"
)
_CONFIG_NAME: Final = re.compile(r"'(?:name|identifier)': '([^']{1,253})'")
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

Selector = tuple[tuple[str, str], ...]
"""The labels of nodes."""


class _Place(NamedTuple):
    """Where a value is.

    Attributes:
        manifest: The number of the manifest, or of the document, that has it.
        key: The nearest key above.
        name: Of the manifest, or of the controller or ConfigMap in the values of a chart.
        domain: That of devices there; empty: not said; ``None``: there is no plugin.
        selector: On which nodes the pods are.
    """

    manifest: int = 0
    key: str = ""
    name: str = ""
    domain: str | None = None
    selector: Selector = ()


@dataclass(slots=True)
class ForeignSettings:
    """What files of others have: devices of plugins, paths of pods, rules of Akri.

    Attributes:
        devices: What looks like a device of a plugin, and where it is.
        plugins: Where generic-device-plugin runs, maybe in another file than its settings.
    """

    devices: list[tuple[dict[str, Any], _Place]] = field(default_factory=list)
    plugins: list[_Place] = field(default_factory=list)
    uses: list[path_users.PathUse] = field(default_factory=list)
    rules: list[udev_rules.RuleSet] = field(default_factory=list)
    _manifests: list[Any] = field(default_factory=list)

    def read(self, text: str) -> bool:
        """Add what a text has, and return whether it has anything of this.

        Scalars stay as they are written: 0403 is no number here.
        """
        extent, arguments = Extent(), _COMMAND.findall(text)
        before = len(self.devices), len(self.plugins)
        try:
            trees = [tree.data for tree in yaml_tree.parse_all(text, extent, texts=True)]
        except TreeError:
            if not arguments:
                raise
            trees = []
        for tree in trees:
            self._walk(tree, self._place(tree), extent)
        if arguments and len(self.devices) == before[0]:
            self._walk(arguments, self._place(arguments)._replace(domain=_domain(text)), extent)
        if before != (len(self.devices), len(self.plugins)):
            return True
        uses = [use for tree in trees for use in path_users.find_uses(tree)]
        rules = [rules for tree in trees for rules in udev_rules.find_rules(tree, extent)]
        self.uses += uses
        self.rules += rules
        return bool(uses or rules)

    def _place(self, manifest: Any) -> _Place:
        self._manifests.append(manifest)
        return _Place(len(self._manifests) - 1)

    def _walk(self, value: Any, place: _Place, extent: Extent) -> None:
        match value:
            case {"name": str(), "groups": _} | {"devicematch": _}:
                self.devices.append((value, place))
            case dict():
                place = self._inside(value, place)
                for key, child in value.items():
                    is_name = place.key in ("controllers", "configMaps")
                    inner = place._replace(key=key, name=key if is_name else place.name)
                    if key != _LAST_APPLIED:
                        self._walk(child, inner, extent)
            case list():
                for member in value:
                    self._walk(member, place, extent)
            # In a ConfigMap, or an argument of a container.
            case str() if "groups" in value or "devicematch" in value:
                text = value.removeprefix("--device=")
                try:
                    for tree in yaml_tree.parse_all(text, extent, texts=True):
                        if not isinstance(tree.data, str):
                            self._walk(tree.data, place, extent)
                except TreeError as error:  # other texts of ConfigMaps need not be YAML
                    if (setting := _SETTING.search(text)) is not None:
                        problem = f"line {error.line}, column {error.column} of its text: {error}"
                        self.devices.append(({"name": setting[1], "unreadable": problem}, place))

    def _inside(self, value: dict[str, Any], place: _Place) -> _Place:
        """Return the place of what a mapping has; note the plugin whose container it is."""
        metadata = value.get("metadata")
        if "kind" in value and isinstance(metadata, dict):
            place = self._place(value)._replace(name=str(metadata.get("name")), selector=())
        for holder in (value, value.get("pod"), value.get("defaultPodOptions")):
            labels = holder.get("nodeSelector") if isinstance(holder, dict) else None
            if isinstance(labels, dict):
                selector = sorted((str(key), str(label)) for key, label in labels.items())
                place = place._replace(selector=tuple(selector))
        if isinstance(domain := value.get("domain"), str):
            place = place._replace(domain=domain)
        elif "genericDevicePlugin" in value:
            place = place._replace(domain=_MICROSHIFT)
        elif "image" in value and (domain := _domain(str(value))) is not None:
            place = place._replace(domain=domain or place.domain or "")
            self.plugins.append(place)
        return place

    def resolve(self) -> Iterator[tuple[dict[str, Any], set[str], str, Selector]]:
        """Yield each device with the domains that it may have, and its DaemonSet and nodes.

        They are those of the plugin around it, in the same manifest, or in one that names its
        ConfigMap, or of all plugins.
        """
        by_manifest, by_name = dict[int, list[_Place]](), dict[str, list[int]]()
        for plugin in self.plugins:
            by_manifest.setdefault(plugin.manifest, []).append(plugin)
        for manifest in by_manifest:
            for name in {*_CONFIG_NAME.findall(str(self._manifests[manifest]))}:
                by_name.setdefault(name, []).append(manifest)
        for device, place in self.devices:
            manifests = (
                [place.manifest] if place.manifest in by_manifest else by_name.get(place.name)
            )
            plugins = [
                plugin for number in manifests or by_manifest for plugin in by_manifest[number]
            ]
            domains = {place.domain} if place.domain else {plugin.domain for plugin in plugins}
            nodes = {(plugin.name, plugin.selector) for plugin in plugins}
            if place.selector or len(nodes) != 1:
                nodes = {(place.name, place.selector)}
            yield device, {domain for domain in domains if domain}, *nodes.pop()


def _domain(text: str) -> str | None:
    """Return the domain of a plugin that a text runs; empty: not said; ``None``: no plugin."""
    if (flag := _DOMAIN.search(text)) is not None:
        return flag[1]
    if (image := _IMAGE.search(text)) is None:
        return "" if _PLUGIN in text else None
    major, minor = filter(None, image.groups())
    return _BEFORE_0_2 if (int(major), int(minor)) < (0, 2) else "devic.es"


@dataclass(slots=True)
class _Nodes(Profile):
    """The entries of the nodes with some labels; what an earlier one has may be shared."""

    paths: list[str] = field(default_factory=list)

    def add(self, entry: DraftEntry) -> None:
        """Add an entry, or why a file may not have it."""
        resource = dict(entry.resource)
        if resource:
            paths = [path or f"/dev/{head}*" for path, head in _GIVEN.findall(str(resource))]
            if any(_overlap(path, other) for path in paths for other in self.paths):
                resource["overlap"] = "allow"
            entry = replace(entry, resource=resource)
            problems = loads(draft.render((), [entry])).problems
            errors = [problem.message for problem in problems if problem.severity == "error"]
            if any(other.resource.get("name") == resource["name"] for other in self.entries):
                errors = ["a second resource of this name"]
            if errors:
                entry = lost_entry(resource["name"], errors[0])
            else:
                self.paths += paths
        self.entries.append(entry)


def _overlap(first: str, second: str) -> bool:
    """Whether two globs may match one path, or one of them what is below the other."""
    pairs = ((first, second), (second, first))
    return any(fnmatchcase(path, at) or fnmatchcase(path, f"{at}/*") for path, at in pairs)


def convert(
    settings: ForeignSettings, files: HostFiles, domain: str | None = None, *, by_node: bool = False
) -> tuple[list[Profile], list[str]]:
    """Return settings as resources, in a domain or in the one that they had, and notes. Blocks.

    What cannot be a resource is a comment. The first profile is of all nodes; others are of the
    nodes of a DaemonSet, if ``by_node``. Raises `ValueError` if there are more devices than a file
    may have resources.
    """
    if (count := len(settings.devices)) > limits.RESOURCES_MAX:
        raise ValueError(f"{count} devices, more than {limits.RESOURCES_MAX}")
    everywhere, notes = _Nodes("", {}), set[str]()
    profiles: dict[Selector, _Nodes] = {(): everywhere}
    for device, domains, name, labels in settings.resolve():
        key = labels if by_node else ()
        if labels and not by_node:
            notes.add(_PROFILES)
        if key not in profiles:
            short = re.sub("[^a-z0-9]+", "-", name.lower())[:16].strip("-") or "nodes"
            is_new = all(short != profile.name for profile in profiles.values())
            profiles[key] = _Nodes(short if is_new else f"{short}-{len(profiles)}", dict(labels))
        if "devicematch" in device:
            domains = {smarter.DOMAIN}
        elif not (domain or domains):
            notes.add(_UNSURE)
        chosen = {domain} if domain else domains
        for entry in _device_entries(device, chosen, files, profiles[key].paths):
            profiles[key].add(entry)
    if settings.uses or settings.rules:
        notes |= set() if domain else {f"{DOMAIN} stands for a domain of yours: --domain sets it."}
        for entry in path_users.build_entries(settings.uses, domain or DOMAIN, files):
            everywhere.add(entry)
        for rules in settings.rules:
            for entry in udev_rules.build_entries(rules, domain or DOMAIN):
                everywhere.add(entry)
    for profile in profiles.values():
        profile.entries = with_rights(profile.entries, files)
    return [*profiles.values()], [*notes]


def _device_entries(
    device: dict[str, Any], domains: set[str], files: HostFiles, taken: Collection[str]
) -> Iterator[DraftEntry]:
    """Yield the resources of a device of a plugin, and what cannot be carried over."""
    name = str(device.get("devicematch") or device.get("name"))
    if "unreadable" in device:
        yield lost_entry(name, device["unreadable"])
    elif len(domains) > 1:
        yield lost_entry(name, f"in {' or '.join(sorted(domains))}: give its domain by --domain")
    else:
        prefix = next(iter(domains), _BEFORE_0_2)
        try:
            if "devicematch" in device:
                yield from map(DraftEntry, smarter.convert_setting(device, prefix, files))
            else:
                full_name = f"{prefix}/{name}"
                yield from generic_plugin.convert_device(full_name, device, files, taken)
        except (OSError, ValueError) as error:
            yield lost_entry(f"{prefix}/{name}", error)
