"""The devices of generic-device-plugin as resources.

Its rules, from its sources: a device is made of groups; a group is a set of paths, each a glob, or
of USB devices. The n-th device of a group has the n-th match of each path, in sorted order.
"""

import glob
import posixpath
import re
from collections.abc import Sequence
from typing import Any, Final

from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.immutable import immutable
from devhost.model import names

DOMAIN: Final = "squat.ai"
_PERMISSIONS: Final = "mrw"
_ANY: Final = ["file", "directory", "char", "block", "socket"]
_DIRECTORIES: Final = ("snd", "dri", "input", "dvb")
_EACH_USB: Final = "Each USB device is one of its own; before, all that match were one."
_GROUP: Final = {"paths", "usb", "usbs", "count"}
_PATH: Final = {"path", "mountPath", "permissions", "readOnly", "type", "limit", "optional"}
_USB: Final = {"vendor", "product", "serial"}

_Mapping = dict[str, Any]


class _NoEquivalentError(Exception):
    """It cannot be carried over; the text says why."""


@immutable
class _Path:
    """A path of a group, with its defaults filled in."""

    path: str
    mount_path: str
    permissions: str
    read_only: bool
    is_mount: bool
    limit: int
    optional: bool

    @property
    def is_glob(self) -> bool:
        return bool(set(self.path) & set("*?["))

    @property
    def name(self) -> str:
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def access(self) -> tuple[object, ...]:
        """What a container gets, but for the path on the host."""
        return (self.mount_path, self.permissions, self.read_only, self.is_mount)

    def source(self) -> _Mapping:
        if self.is_mount:
            return {"glob": {"paths": self.path, "types": _ANY}}
        if self.name in _DIRECTORIES:
            return {"glob": {"paths": self.path, "types": "directory"}}
        return {"glob": self.path}

    def rule(self, host: str, name: str) -> _Mapping:
        """Return the entry of `allocate` for a host path and the name of its node."""
        rule: _Mapping = {"hostPath": host}
        if self.mount_path.endswith("/"):
            rule["containerPath"] = f"{self.mount_path.replace('$', '$$')}{name}"
        elif self.mount_path not in ("", self.path):
            rule["containerPath"] = self.mount_path.replace("$", "$$")
        if self.is_mount:
            rule["readOnly"] = self.read_only
        else:
            rule["permissions"] = self.permissions
        return {**rule, "optional": True} if self.optional else rule


def entry(device: Any, domain: str) -> tuple[DraftEntry, tuple[str, ...]]:
    """Return a device as a resource, and what cannot be carried over."""
    if not isinstance(device, dict) or not isinstance(device.get("groups"), list):
        return draft.lost(f"{device!r} is not a device with name and groups")
    name = f"{domain}/{str(device.get('name', '')).strip()}"
    groups, lost = device["groups"], []
    if problem := names.resource_name_problem(name):
        return draft.lost(problem)
    try:
        _check(device, {"name", "groups"}, "device")
        for group in groups:
            _check(group, _GROUP, "group")
        resource, comments = _resource(name, groups)
        counts = {_number(one, "count") for one in groups}
    except (_NoEquivalentError, TypeError, ValueError) as error:
        return draft.lost(f"{name}: {error}")
    if len(counts) > 1:
        lost.append(f"{name}: the groups have different counts; `replicas` is the lowest of them")
    if min(counts) > 1:
        resource["replicas"] = min(counts)
    shown = (*comments, *(f"Not carried over: {one}" for one in lost))
    return DraftEntry(resource, shown), tuple(lost)


def _resource(name: str, groups: Sequence[_Mapping]) -> tuple[_Mapping, list[str]]:
    """Return the resource of a device, without its replicas, and comments."""
    paths = [[_path(one) for one in group.get("paths") or ()] for group in groups]
    usb = [one for group in groups for one in group.get("usb") or group.get("usbs") or ()]
    if not any(paths) and usb and len(usb) == len(groups):
        return {"name": name, "sources": [{"usb": _usb(one)} for one in usb]}, [_EACH_USB]
    if usb or not all(paths) or not paths:
        raise _NoEquivalentError("needs groups of paths alone, or of one USB device each")
    if len(paths) == 1:
        return _set(name, paths[0])
    if any(len(group) > 1 for group in paths):
        raise _NoEquivalentError("several groups of several paths: write a resource with `group`")
    return _singles(name, [path for (path,) in paths])


def _singles(name: str, paths: Sequence[_Path]) -> tuple[_Mapping, list[str]]:
    """Return a resource where each match is a device."""
    if len({path.access for path in paths}) > 1:
        raise _NoEquivalentError("paths with different mountPath, permissions or type")
    rules = [(paths[0], paths[0].rule("${path}", "${name}"))]
    sources = [path.source() for path in paths]
    return {"name": name, "sources": sources, "allocate": _allocate(rules)}, []


def _set(name: str, paths: Sequence[_Path]) -> tuple[_Mapping, list[str]]:
    """Return a resource of one group, of which at most one path is a glob."""
    globs = [path for path in paths if path.is_glob]
    if len(globs) > 1:
        raise _NoEquivalentError("several globs in one group: write a resource with `group`")
    if not globs and len(paths) > 1:
        return _grouped(name, paths), []
    first = (globs or paths)[0]
    rules = [
        (path, path.rule("${path}", "${name}") if path is first else _fixed(path)) for path in paths
    ]
    resource: _Mapping = {
        "name": name,
        "sources": [first.source()],
        "allocate": _allocate(rules),
    }
    if len(paths) == 1:
        return resource, []
    resource["maxDevices"] = min(path.limit for path in paths if path is not first)
    return resource, ["`maxDevices` is the `limit` of the paths without wildcards."]


def _fixed(path: _Path) -> _Mapping:
    return path.rule(path.path.replace("$", "$$"), path.name)


def _grouped(name: str, paths: Sequence[_Path]) -> _Mapping:
    """Return a resource with one device of several nodes."""
    sources, rules = [], []
    for number, path in enumerate(paths):
        option = {"optional": True} if path.optional else {}
        sources.append({**path.source(), "as": f"node{number}", **option})
        rules.append((path, path.rule(f"${{node{number}.path}}", f"${{node{number}.name}}")))
    group = name.rpartition("/")[2]
    return {"name": name, "sources": sources, "group": group, "allocate": _allocate(rules)}


def _allocate(rules: Sequence[tuple[_Path, _Mapping]]) -> _Mapping:
    devices = [rule for path, rule in rules if not path.is_mount]
    mounts = [rule for path, rule in rules if path.is_mount]
    return {"devices": devices} | ({"mounts": mounts} if mounts else {})


def _check(given: Any, known: set[str], what: str) -> None:
    """Refuse what is no mapping, and keys that have no meaning."""
    if not isinstance(given, dict):
        raise _NoEquivalentError(f"{given!r} is no {what}")
    if unknown := [key for key in given if key not in known]:
        raise _NoEquivalentError(f"unknown key {unknown[0]!r} of a {what}")


def _path(given: Any) -> _Path:
    _check(given, _PATH, "path")
    if not str(given.get("path", "")).startswith("/"):
        raise _NoEquivalentError(f"{given.get('path')!r} is not an absolute path")
    kind = given.get("type") or "Device"
    if kind not in ("Device", "Mount"):
        raise _NoEquivalentError(f"unknown type {kind!r}")
    return _Path(
        path=str(given["path"]).strip().replace("[^", "[!"),
        mount_path=str(given.get("mountPath") or "").strip(),
        permissions=str(given.get("permissions") or _PERMISSIONS),
        read_only=given.get("readOnly") == "true",
        is_mount=kind == "Mount",
        limit=_number(given, "limit"),
        optional=given.get("optional") == "true",
    )


def _number(given: _Mapping, key: str) -> int:
    text = given.get(key) or "1"
    if not isinstance(text, str) or not re.fullmatch("0*[0-9]{1,9}", text):
        raise _NoEquivalentError(f"{key} is {text}")
    return int(text[-9:]) or 1


def _usb(given: Any) -> dict[str, str]:
    _check(given, _USB, "usb")
    try:
        vendor, product = (int(given[key], 16) for key in ("vendor", "product"))
    except (KeyError, TypeError, ValueError):
        raise _NoEquivalentError("usb needs vendor and product, in hexadecimal") from None
    found = {"device": f"{vendor:04x}:{product:04x}"}
    if serial := given.get("serial"):
        found["serial"] = glob.escape(serial)
    return found
