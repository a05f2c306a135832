"""Files of others: their manifests, and the settings of plugins in them."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from devhost.config import yaml_tree
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent

BEFORE_0_2: Final = "squat.ai"
_SINCE_0_2: Final = "devic.es"
_MICROSHIFT: Final = "device.microshift.io"
_PLUGIN: Final = "generic-device-plugin"
_RELEASE: Final = re.compile(rf"{_PLUGIN}:v?([0-9]+)\.([0-9]+)")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MARKS: Final = ("groups", "devicematch", "udevRules")  # of texts that are read
# The beginning of a text with settings, and their first name.
_SETTING: Final = re.compile(
    r"""(?:\A[\s{]*["']?name|\A[-\s{[]*["']?devicematch)["']?:\s*["']?([^\s"',]+)"""
)

Labels = tuple[tuple[str, str], ...]


class PluginContext(NamedTuple):
    """The context of settings, by the mappings around them.

    Attributes:
        name: Of the manifest, or of the controller in the values of a chart.
        domain: That of devices there; empty: not said.
        labels: Those of the nodes on which its pods are.
    """

    name: str = ""
    domain: str = ""
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, values of a chart or a file of settings, in which all scalars are texts.

    Attributes:
        owner: Its kind and name; empty where it has none.
        settings: Devices of generic-device-plugin and smarter-device-manager.
        plugins: The containers of generic-device-plugin.
    """

    tree: Any
    owner: str = ""
    name: str = ""
    settings: list[tuple[dict[str, Any], PluginContext]] = field(default_factory=list)
    plugins: list[PluginContext] = field(default_factory=list)

    @property
    def is_of_plugin(self) -> bool:
        """Whether it is of a plugin, and its pods have all that its devices need."""
        return bool(self.settings or self.plugins)

    def collect(self, value: Any, context: PluginContext, key: str = "") -> None:
        """Add the settings and the plugins in a value below a key."""
        match value:
            case {"name": str(), "groups": _} | {"devicematch": _}:
                self.settings.append((value, context))
            case dict():
                context = self._narrow(context, value)
                for name, child in value.items():
                    inner = context._replace(name=name) if key == "controllers" else context
                    self.collect(child, inner, name)
            case list():
                for member in value:
                    self.collect(member, context, key)

    def _narrow(self, context: PluginContext, mapping: dict[str, Any]) -> PluginContext:
        """Return the context of what a mapping has; add a container of the plugin."""
        for pods in (mapping, mapping.get("pod"), mapping.get("defaultPodOptions")):
            labels = pods.get("nodeSelector") if isinstance(pods, dict) else None
            if isinstance(labels, dict):
                pairs = ((key, str(labels[key])) for key in labels if key != "kubernetes.io/os")
                context = context._replace(labels=tuple(sorted(pairs)))
        if "genericDevicePlugin" in mapping:
            context = context._replace(domain=_MICROSHIFT)
        if isinstance(domain := mapping.get("domain"), str) and domain:
            context = context._replace(domain=domain)
        elif "image" in mapping and (domain := _plugin_domain(mapping)) is not None:
            context = context._replace(domain=domain or context.domain)
            self.plugins.append(context)
        return context


def read_manifests(text: str) -> list[Manifest]:
    """Return the manifests of a file, also of lists in it, with their settings; or a `TreeError`.

    Scalars stay as they are written: 0403 is no number here.
    """
    extent, manifests = Extent(), list[Manifest]()
    trees = yaml_tree.parse_all(text, extent, texts=True)
    for data in _list_members(tree.data for tree in trees):
        manifest = Manifest(tree := _read_texts(data, extent))
        match tree:
            case {"kind": kind, "metadata": {"name": name}}:
                manifest = Manifest(tree, f"{kind} {name}", str(name))
        manifest.collect(tree, PluginContext(manifest.name))
        manifests.append(manifest)
    return manifests


def _list_members(trees: Iterable[Any]) -> Iterator[Any]:
    for tree in trees:
        match tree:
            case {"kind": _, "items": [*members]}:
                yield from _list_members(members)
            case _:
                yield tree


def _read_texts(value: Any, extent: Extent, key: str = "") -> Any:
    """Return a value in which texts of ConfigMaps, of values and of arguments are read."""
    match value:
        case dict():
            pairs = ((name, child) for name, child in value.items() if name != _LAST_APPLIED)
            return {name: _read_texts(child, extent, name) for name, child in pairs}
        case list():
            return [_read_texts(member, extent, key) for member in value]
        case str() if value.startswith("--device="):
            return ["--device", _read_text(value.removeprefix("--device="), extent)]
        case str() if any(mark in value for mark in _MARKS) or (
            key.startswith("values") and "hostPath" in value
        ):
            return _read_text(value, extent)
        case _:
            return value


def _read_text(text: str, extent: Extent) -> Any:
    """Return what a text has, or the text; of settings that cannot be read, a name and why."""
    try:
        trees = [tree.data for tree in yaml_tree.parse_all(text, extent, texts=True)]
    except TreeError as error:  # other texts of ConfigMaps need not be YAML
        if (setting := _SETTING.search(text)) is None:
            return text
        problem = f"line {error.line}, column {error.column} of its text: {error}"
        return {"name": setting[1], "groups": [], "unreadable": problem}
    is_plain = all(isinstance(tree, str) for tree in trees)
    return text if is_plain else [_read_texts(tree, extent) for tree in trees]


def _plugin_domain(container: dict[str, Any]) -> str | None:
    """Return the domain of a plugin's container; empty: not said; ``None``: it is of no plugin."""
    image, words = container["image"], [*_words(container)]
    if isinstance(image, dict):
        image = f"{image.get('repository')}:{image.get('tag')}"
    has_settings = {"--device", "groups"} <= {*words} or {"--config", "--domain"} <= {*words}
    if not has_settings and not any(_PLUGIN in word for word in words):
        return None
    for word, following in itertools.pairwise(words):
        if word in ("--domain", "DOMAIN"):
            return following
    if (release := _RELEASE.search(str(image))) is None:
        return ""
    return BEFORE_0_2 if (int(release[1]), int(release[2])) < (0, 2) else _SINCE_0_2


def _words(value: Any) -> Iterator[str]:
    """Yield the keys and the words in a value, in order, without what names a variable."""
    match value:
        case dict():
            for key, child in value.items():
                yield from () if key in ("name", "value") else (key,)
                yield from _words(child)
        case list():
            for member in value:
                yield from _words(member)
        case str():
            yield from re.findall(r"""[^\s="']+""", value)


def walk_mappings(value: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping in a value with the nearest key above, but for what is not enabled."""
    if isinstance(value, dict) and value.get("enabled") != "false":
        yield key, value
        for name, child in value.items():
            yield from walk_mappings(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from walk_mappings(child, key)
