"""Rules of udev, by which Akri finds devices, as a resource."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from devhost.config import yaml_tree
from devhost.config.yaml_tree import Extent
from devhost.drafts.draft import DraftEntry, lost_entry
from devhost.drafts.path_users import mappings_below
from devhost.hostfs.device_classes import ENUMERATED_NAMES

_TERM: Final = re.compile(r'\s*([A-Z]+)(?:\{([^}]*)\})?\s*==\s*"([^"]*)"\s*(?:,|$)')
_PATTERN: Final = re.compile(r"[|()+\\^$]|\.\*")  # Akri takes values for regular expressions
_IDS: Final = {
    "idVendor": "vendor",
    "ID_VENDOR_ID": "vendor",
    "idProduct": "product",
    "ID_MODEL_ID": "product",
    "serial": "serial",
    "ID_SERIAL_SHORT": "serial",
}
_HINTS: Final = {
    "ID_V4L_CAPABILITIES": "; `attr: {index: 0}` selects the capturing node of most cameras"
}


class RuleSet(NamedTuple):
    """The rules of a configuration, and how many pods may have each device."""

    name: str
    capacity: str
    rules: list[Any]


def find_rules(tree: Any, extent: Extent) -> Iterator[RuleSet]:
    """Yield the rules in a manifest of Akri, or in values of its chart."""
    name, capacity = "akri", "1"
    for _, mapping in mappings_below(tree):
        if "kind" in mapping and isinstance(mapping.get("metadata"), dict):
            name = str(mapping["metadata"].get("name"))
        capacity = str(mapping.get("capacity", capacity))
        details = mapping.get("discoveryDetails")
        if isinstance(details, str) and "udevRules" in details:
            details = yaml_tree.parse_all(details, extent, texts=True)[0].data
        rules = details.get("udevRules") if isinstance(details, dict) else None
        if isinstance(rules, list):
            yield RuleSet(name, capacity, rules)


def build_entries(rules: RuleSet, domain: str) -> Iterator[DraftEntry]:
    """Yield the resource of a configuration, and the rules that are not in it."""
    name, sources = f"{domain}/{rules.name}", []
    for rule in rules.rules:
        try:
            sources.append(_source(str(rule)))
        except ValueError as error:
            yield lost_entry(f"{name}: {rule}", error)
    shares = int(rules.capacity) if rules.capacity.isdecimal() else 1
    replicas = {"replicas": shares} if shares > 1 else {}
    request = f"pods request `{name}`, where brokers have `akri.sh/{rules.name}`"
    if sources:
        yield DraftEntry({"name": name, "sources": sources, **replicas}, (f"Akri: {request}",))


def _source(rule: str) -> dict[str, Any]:
    """Return the source that selects what a rule selects, or raise `ValueError`."""
    names, ids, attr, end = dict[str, str](), dict[str, str](), dict[str, str](), 0
    while rule[end:].strip():
        if (term := _TERM.match(rule, end)) is None:
            raise ValueError(f"no equivalent of {rule[end:].strip()}")
        key, inside, text, end = *term.group(1, 2, 3), term.end()
        if _PATTERN.search(text):
            raise ValueError(f"{text} is a pattern: write a rule for each value")
        if inside in _IDS or (inside in ("vendor", "device") and text.startswith("0x")):
            ids[_IDS.get(inside, f"pci {inside}")] = text.removeprefix("0x")
        elif key == "ATTR":
            attr[inside] = text
        elif key in ("DRIVER", "DRIVERS", "KERNEL", "SUBSYSTEM", "SUBSYSTEMS"):
            names[key.removesuffix("S")] = text
        else:
            raise ValueError(f"no equivalent of {term[0].strip(' ,')}{_HINTS.get(inside, '')}")
    kernel, driver = names.get("KERNEL"), names.get("DRIVER")
    subsystem = names.get("SUBSYSTEM") or next(_subsystems(kernel or ""), None)
    if subsystem is None:
        raise ValueError("it selects nodes of any kind: name their SUBSYSTEM")
    node = _without_empty(subsystem=subsystem, name=kernel, attr=attr)
    bus, keys = "usb", ("vendor", "product")
    if any(key.startswith("pci") for key in ids):
        bus, keys = "pci", ("pci vendor", "pci device")
    if not ids:
        return {"sysfs": _without_empty(**node, driver=driver)}
    device = ":".join(ids.get(key, "*") for key in keys)
    nodes = None if subsystem == bus == "usb" else node if len(node) > 1 else subsystem
    return {bus: _without_empty(device=device, serial=ids.get("serial"), driver=driver, node=nodes)}


def _without_empty(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value}


def _subsystems(name: str) -> Iterator[str]:
    """Yield the subsystems whose devices have such a name."""
    for subsystem, examples in ENUMERATED_NAMES.items():
        if any(fnmatchcase(example.rpartition("/")[2], name) for example in examples):
            yield subsystem
