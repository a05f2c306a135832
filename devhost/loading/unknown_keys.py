"""What to write instead of an unknown key."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from devhost.loading.synonyms import SYNONYMS, device_number, source_mistake
from devhost.loading.yamltree import Path, Tree
from devhost.model import allocate, config, hardware, sources
from devhost.model.mapping import key_of
from devhost.model.spelling import nearest

# The model of the mapping below a key.
_BELOW: Final[dict[str, type]] = {
    "sources": sources.Source,
    "directory": sources.Directory,
    "glob": sources.Glob,
    "dev": sources.Dev,
    "static": sources.Static,
    "usb": hardware.Usb,
    "pci": hardware.Pci,
    "sysfs": hardware.Sysfs,
    "node": hardware.NodeChoice,
    "parent": hardware.ParentSelector,
    "allocate": allocate.Allocate,
    "env": allocate.Text,
    "annotations": allocate.Text,
    "devices": allocate.DeviceNode,
    "mounts": allocate.Mount,
    "health": config.HealthChecks,
    "checks": config.Probe,
    "file": config.FileCheck,
    "preStart": config.Step,
    "resources": config.Resource,
}
# Mappings whose keys nobody means elsewhere.
_OWN: Final = frozenset({"usb", "pci", "sysfs", "node", "parent"})
_HARDWARE: Final = (hardware.Usb, hardware.Pci, hardware.Sysfs, hardware.ParentSelector)
_MAIN_OPTIONS: Final = {
    "directory": "path",
    "glob": "paths",
    "dev": "pattern",
    "usb": "device",
    "pci": "device",
}
_VENDORS: Final = frozenset({"vendor", "idVendor", "vendorId"})
_PRODUCTS: Final = frozenset({"idProduct", "productId"})


def unknown_key(full: Path, tree: Tree, reported: set[Path]) -> tuple[str, str] | None:
    """Explain an unknown key; ``full`` is its path with shorthands expanded.

    Returns:
        What to write instead, and the key that it means, if known; ``None`` if it has an error
        already.
    """
    key, path = str(full[-1]), tree.known(full)
    if path in reported and {":", " "} & set(key):
        return None
    model, present = model_at(full), tree.value(path[:-1])
    keys = keys_of(model)
    absent = [other for other in keys if other not in present]
    same = key.replace("-", "").replace("_", "").lower()
    if twin := next((one for one in keys if one.lower() == same and one in present), ""):
        return f"; '{twin}' is there already", ""
    if (special := _special_key(model, path, tree)) is not None:
        return special if special[0] else None
    if meant := next((one for one in SYNONYMS.get(key, ()) if one in absent), ""):
        return f"; did you mean '{meant}'?", meant
    near = [*filter(present.__contains__, keys)]  # `present` may be huge
    near += (one for one in keys if one not in _OWN)
    if hint := _belongs(key, near):
        return hint + (_in_full(key, present) if model is sources.Source else ""), ""
    own = [other for other in _BELOW if other not in {*full, *_OWN, "file", "checks"}]
    elsewhere = _belongs(key, own)
    if not (elsewhere and model is sources.Source) and (meant := nearest(key, absent)):
        return f"; did you mean '{meant}'?", meant
    if empty := next((one for one in near if tree.known((*path[:-1], one)) in reported), ""):
        return f"; indent it more than '{empty}'", empty
    return elsewhere or f"; known keys: {', '.join(keys)}", ""


def _special_key(model: type, path: Path, tree: Tree) -> tuple[str, str] | None:
    """Explain keys for which one of this language is not enough; as `_unknown_key`.

    Returns:
        Two empty strings if another key has the error; ``None`` if it is not such a key.
    """
    key, present = str(path[-1]), tree.value(path[:-1])
    if model in _HARDWARE and (hint := _hardware_key(model, path, tree)):
        return ("", "") if key in _PRODUCTS and _VENDORS & present.keys() else (hint, "product")
    if model is sources.Source:
        if key == "path" and {"type", "kind"} & present.keys():
            return "", ""
        if hint := source_mistake(key, present, sources.KINDS):
            return hint, ""
    if key == "valueFrom":
        return "; the node's name is ${nodeName}, and others are not known", "value"
    if model is config.HealthChecks and key in ("readable", "writable"):
        return f"; write checks: [{key}]", ""
    return None


def model_at(path: Path) -> type:
    """Return the model of the mapping that the last part of a path is a key of."""
    # "mapping" is a tag of the union of health checks.
    parents = [part for part in path[:-1] if isinstance(part, str) and part != "mapping"]
    if not parents:
        return config.Config
    if len(parents) > 1 and parents[-2] in ("env", "annotations"):
        return allocate.Text
    return _BELOW.get(parents[-1], config.Config)


def keys_of(model: type) -> list[str]:
    """Return the keys of a mapping."""
    return [key_of(field.name) for field in fields(model)]


def _hardware_key(model: type, path: Path, tree: Tree) -> str:
    """Return what to write instead of a key that other tools have for devices in sysfs."""
    key, present = str(path[-1]), tree.value(path[:-1])
    if model in (hardware.Usb, hardware.Pci) and key in {*_VENDORS, *_PRODUCTS}:
        texts = {one: tree.position((*path[:-1], one)).text or "" for one in present}
        return f"; write device: {device_number(present, texts)}"
    if model in (hardware.ParentSelector, hardware.Sysfs) and key not in ("name", "class"):
        return f"; did you mean attr: {{{key}: …}}?"
    return ""


def _in_full(key: str, source: dict[str, Any]) -> str:
    """Return how to write a source with an option that only its long form has."""
    for kind, option in _MAIN_OPTIONS.items():
        value = source.get(kind)
        if isinstance(value, str) and key in keys_of(_BELOW[kind]):
            return f": {{{option}: {value}, {key}: …}}"
    return ""


def _belongs(key: str, parents: Iterable[str]) -> str:
    for parent in parents:
        if parent in _BELOW and key in keys_of(_BELOW[parent]):
            return f"; it belongs below '{parent}'"
    return ""
