"""Entries of a configuration, ready to paste: each offers exactly one device of a host."""

import collections
import fnmatch
import glob
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from devhost.discovery.hardware import KernelNode, SysfsDevice, devices_above, member_differs
from devhost.discovery.machine import Described, Machine, class_name
from devhost.hostfs.sysfs import PLACES
from devhost.model.hardware import USB_NODE, ParentSelector, Sysfs

_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("[0-9]+")


class EntryWriter:
    """Writes entries with the fewest options that match. All methods block."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of(self, found: Iterable[Described]) -> Iterator[dict[str, Any]]:
        """Yield resources that offer exactly these devices, under a name each."""
        return numbered(map(self.entry, found))

    def entry(self, found: Described) -> dict[str, Any]:
        """Return a resource that offers exactly this device."""
        owner = found.owner
        if owner is not None:
            write = self._usb_entry if owner.prefix == "usb." else self._pci_entry
            return write(found, owner)
        assert found.node is not None, "found by its node"  # noqa: S101
        node = found.node
        if not node.subsystem:
            return _resource(node.name, f"/dev/{node.file}")
        options = self._sysfs_options(node)
        place = {"id": "${place}"} if "place" in found.variables else {}
        return _resource(node.name, {"sysfs": options}, **place)

    def _sysfs_options(self, node: KernelNode) -> Any:
        """Return the fewest options that match one device of a subsystem, by what is above it.

        Its own name is the last resort: it is often counted.
        """
        reading = self._machine.subsystem(node.subsystem)
        if len(reading.members) == 1:
            return node.subsystem
        own: dict[str, Any] = {"name": name_glob(node.name, reading.members)}
        above = list(devices_above(node.syspath, reading.sysfs))
        named = [glob.escape(posixpath.basename(path)) for path in above]
        # The nearest whose name says where it is, and what is below it as that calls it.
        at = (
            n for n, path in enumerate(above) if reading.sysfs.linked(f"{path}/subsystem") in PLACES
        )
        tried: list[dict[str, Any]] = []
        if (count := next(at, None)) is not None:
            fixed = {"name": named[count]}
            tried.append({"parent": fixed})
            tried += [{"parent": {"name": one}} for one in named[:count] if named[count] in one]
            tried += [
                {"parent": [{"name": _COUNTER.sub("*", one, count=1)}, fixed]}
                for one in named[:count]
            ]
            tried.append({**own, "parent": fixed})
        tried += [*({"parent": {"name": one}} for one in named), own]
        for more in tried:
            options = {"subsystem": node.subsystem, **more}
            selector = _selector(options)
            matching = (
                path
                for path in reading.members.values()
                if not member_differs(path, selector, reading.sysfs)
            )
            if list(matching) == [node.syspath]:
                return options
        return {"subsystem": node.subsystem, "name": node.name}

    def _usb_entry(self, found: Described, owner: SysfsDevice) -> dict[str, Any]:
        facts = owner.facts
        twins = [o for o in self._machine.usb_devices() if o.facts["device"] == facts["device"]]
        options: dict[str, Any] = {"device": facts["device"]}
        if owner.is_between:
            options["class"] = "hub"
        product, serial = facts["product"], facts["serial"]
        named = [one for one in twins if one.facts["product"] == product]
        if product and len(named) < len(twins):
            options["product"] = glob.escape(product)
        more = {}
        if _is_good(serial) and sum(one.facts["serial"] == serial for one in twins) == 1:
            options["serial"] = glob.escape(serial)
            more["id"] = "${usb.serial}"
        elif len(named if "product" in options else twins) > 1 and owner.place:
            options["port"] = glob.escape(owner.place)
        options |= self._node_options(found)
        return _resource(product or facts["device"].replace(":", "-"), {"usb": options}, **more)

    def _node_options(self, found: Described) -> dict[str, Any]:
        """Return which node of a USB device is meant."""
        node = found.node
        if node is None or node.subsystem == USB_NODE:
            return {"node": _subsystems(found.nodes)} if found.nodes else {}
        options: dict[str, Any] = {}
        alike = [one for one in found.nodes if one.subsystem == node.subsystem]
        sysfs = self._machine.sysfs
        if len(alike) > 1 and "usb.interface" in found.variables:
            options["interface"] = int(found.variables["usb.interface"])
            at = sysfs.interface(node.syspath)
            alike = [one for one in alike if sysfs.interface(one.syspath) == at]
        choice: Any = node.subsystem
        if len(alike) > 1:
            index = sysfs.text(f"{node.syspath}/index")
            name = name_glob(node.name, [one.name for one in alike])
            choice = f"{node.subsystem}/{name}"
            if index and name == node.name:
                choice = {"subsystem": node.subsystem, "attr": {"index": index}}
        return {**options, "node": choice}

    def _pci_entry(self, found: Described, owner: SysfsDevice) -> dict[str, Any]:
        number, functions = owner.facts["device"], self._machine.pci_functions()
        options: dict[str, Any] = {"device": number}
        if owner.is_between:
            options["class"] = "bridge"
        if sum(one.facts["device"] == number for one in functions) > 1:
            options["address"] = owner.name
        if (node := found.node) is None:
            options["node"] = _subsystems(found.nodes) if found.nodes else "none"
        else:
            alike = [one for one in found.nodes if one.subsystem == node.subsystem]
            name = name_glob(node.name, [one.name for one in alike])
            if len(alike) > 1 and name == node.name and _COUNTER.search(name):
                more = {"id": "${place}"} if "place" in found.variables else {}
                return _resource(node.name, {"sysfs": self._sysfs_options(node)}, **more)
            options["node"] = f"{node.subsystem}/{name}" if len(alike) > 1 else node.subsystem
        return _resource(class_name(owner.facts["class"]), {"pci": options})


def numbered(resources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield resources under a name each."""
    seen: collections.Counter[str] = collections.Counter()
    for one in resources:
        seen[name := one["name"]] += 1
        yield {**one, "name": f"{name}-{seen[name]}" if seen[name] > 1 else name}


def _subsystems(nodes: Sequence[KernelNode]) -> str | list[str]:
    """Return what a source names to have all nodes of a device, without what is a second way."""
    found = list(dict.fromkeys(one.subsystem for one in nodes))
    if "vfio" in found:
        return "vfio"
    plain = [one for one in found if one not in ("input", "usbmisc")] or found
    return plain[0] if len(plain) == 1 else plain


def _selector(options: Mapping[str, Any]) -> Sysfs:
    """Return a source with the options ``subsystem``, ``name`` and names of ``parent``."""
    above = options.get("parent", [])
    parents = above if isinstance(above, list) else [above]
    return Sysfs(
        subsystem=options["subsystem"],
        name=(options["name"],) if "name" in options else None,
        parent=tuple(ParentSelector(name=(one["name"],)) for one in parents),
    )


def _resource(name: str, source: str | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"
    return {"name": f"example.com/{slug}", "sources": [source], **more}


def name_glob(name: str, others: Iterable[str]) -> str:
    """Return a glob that matches only one of some names, if possible without what is counted."""
    literal, alike = glob.escape(name), list(others)
    for count in (0, 1):  # all numbers in it, or the first
        shorter = _COUNTER.sub("*", literal, count=count)
        if [one for one in alike if fnmatch.fnmatchcase(one, shorter)] == [name]:
            return shorter
    return literal


def _is_good(serial: str) -> bool:
    """Whether a serial number is likely to be a device's own."""
    return len(serial) >= _SERIAL_MIN and len(set(serial)) > 1 and not _COUNTED.fullmatch(serial)
