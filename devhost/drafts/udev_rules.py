"""Rules of udev, by which Akri finds devices, as a resource."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from devhost.drafts.draft import DraftEntry, lost_entry, replicas
from devhost.drafts.manifests import Manifest, walk_mappings
from devhost.hostfs.device_classes import ENUMERATED_NAMES

# Akri takes a value for a regular expression: what is none, or is also a glob.
_TERM: Final = re.compile(
    r'\s*([A-Z]+)(?:\{([^}]*)\})?\s*==\s*"((?:(?!\.\*)[^"|()+\\^$])*)"\s*(?:,|$)'
)
_OPTIONS: Final = {"SUBSYSTEM": "subsystem", "KERNEL": "name", "DRIVER": "driver", "ATTR": "attr"}
_IDS: Final = {"ID_VENDOR_ID": "idVendor", "ID_MODEL_ID": "idProduct", "ID_SERIAL_SHORT": "serial"}
_CAPTURING: Final = "; of most cameras, `attr: {index: 0}` selects the node that captures"


def find_entries(manifest: Manifest, domain: str) -> Iterator[DraftEntry]:
    """Yield the resource for the rules of a manifest or of values, and what is not in it."""
    name, capacity = manifest.name, "1"
    for _, mapping in walk_mappings(manifest.tree):
        capacity = str(mapping.get("capacity", capacity))
        if "discoveryDetails" in mapping and not manifest.name:  # in the values of Akri's chart
            name = str(mapping.get("name", "akri-udev"))
        if isinstance(rules := mapping.get("udevRules"), list):
            shares = int(capacity) if capacity.isdecimal() else 1
            yield from _build_entries(f"{domain}/{name}", rules, shares)


def _build_entries(name: str, rules: list[Any], shares: int) -> Iterator[DraftEntry]:
    sources = []
    for rule in map(str, rules):
        try:
            sources.append(_convert_rule(rule))
        except ValueError as error:
            yield lost_entry(f"{name}: {rule}", error)
    if sources:
        request = f"pods request `{name}` instead of `akri.sh/{name.partition('/')[2]}`"
        yield DraftEntry(
            {"name": name, "sources": sources, **replicas(shares)}, (f"Akri: {request}",)
        )


def _convert_rule(rule: str) -> dict[str, Any]:
    """Return the source that selects what a rule selects, or raise `ValueError`."""
    node, above, end = dict[str, Any](), dict[str, Any](), 0
    while rest := rule[end:].strip():
        term = _TERM.match(rule, end)
        key, inside, text = term.groups() if term else ("", "", "")
        if inside in _IDS:
            key, inside = "ATTRS", _IDS[inside]
        if term is None or (option := _OPTIONS.get(key.removesuffix("S"))) is None:
            hint = _CAPTURING if "ID_V4L_CAPABILITIES" in rest else ""
            raise ValueError(f"no equivalent of {rest}{hint}")
        options, end = above if key.endswith("S") else node, term.end()
        options[option] = {**options.get(option, {}), inside: text} if inside else text
    for subsystem, names in ENUMERATED_NAMES.items():
        if any(fnmatchcase(name.rpartition("/")[2], node.get("name", "")) for name in names):
            node.setdefault("subsystem", subsystem)
    if "subsystem" not in node:
        raise ValueError("it selects nodes of any kind: name their SUBSYSTEM")
    if is_raw := node["subsystem"] == "usb":  # ATTRS is also of the device itself
        node["attr"] = node.get("attr", {}) | above.pop("attr", {})
    ids = (node if is_raw else above).get("attr", {})
    if "idVendor" in ids and ids.keys() <= {*_IDS.values()} and "driver" not in node | above:
        device = f"{ids['idVendor']}:{ids.get('idProduct', '*')}"
        serial = {"serial": ids["serial"]} if "serial" in ids else {}
        choice = node if len(node) > 1 else node["subsystem"]
        return {"usb": {"device": device, **serial, **({} if is_raw else {"node": choice})}}
    return {"sysfs": {**node, **({"parent": above} if above else {})}}
