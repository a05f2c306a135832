"""The devices of generic-device-plugin as resources.

Its rules, from its sources: a device is made of groups; a group is a set of paths, each a glob, or
of USB devices. The n-th device of a group has the n-th match of each path, in sorted order.
"""

import glob
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.immutable import immutable
from devhost.model import names

DOMAIN: Final = "squat.ai"
_PERMISSIONS: Final = "mrw"
_ANY: Final = ["file", "directory", "char", "block", "socket"]
_NUMBER: Final = re.compile(r"[0-9]+")
_EACH_USB: Final = "Each USB device is one of its own; before, all that match were one."
_JOINED: Final = (
    "Nodes belong together by the text that the wildcard matches; before, by their order: the "
    "first of one glob with the first of the other."
)
_KNOWN: Final = {
    "device": {"name", "groups"},
    "group": {"paths", "usb", "usbs", "count"},
    "path": {"path", "mountPath", "permissions", "readOnly", "type", "limit", "optional"},
    "usb": {"vendor", "product", "serial"},
}


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
    def access(self) -> tuple[object, ...]:
        """What a container gets, but for the path on the host."""
        return (self.mount_path, self.permissions, self.read_only, self.is_mount)

    @property
    def target(self) -> object:
        """What the paths of one entry of `allocate` have in common."""
        is_fixed = self.mount_path and not self.mount_path.endswith("/")
        return self.mount_path if is_fixed else self.access

    def source(self) -> dict[str, Any]:
        if self.is_mount:
            return {"glob": {"paths": self.path, "types": _ANY}}
        if not self.is_glob and _base(self.path) in ("snd", "dri", "input", "dvb"):
            return {"glob": {"paths": self.path, "types": "directory"}}
        return {"glob": self.path}

    def rule(self, host: str, name: str, *, optional: bool = False) -> dict[str, Any]:
        """Return the entry of `allocate` for a host path and the name of its node."""
        rule: dict[str, Any] = {"hostPath": host}
        if self.mount_path.endswith("/"):
            rule["containerPath"] = f"{self.mount_path.replace('$', '$$')}{name}"
        elif self.mount_path not in ("", self.path):
            rule["containerPath"] = self.mount_path.replace("$", "$$")
        if self.is_mount:
            rule["readOnly"] = self.read_only
        else:
            rule["permissions"] = self.permissions
        return {**rule, "optional": True} if optional or self.optional else rule


_USB_NODE: Final = _Path("", "", "rw", read_only=False, is_mount=False, limit=1, optional=False)


@immutable
class _Group:
    """A group of a device: of paths, or of USB devices."""

    paths: tuple[_Path, ...]
    usb: tuple[dict[str, str], ...]
    count: int

    @property
    def is_single(self) -> bool:
        return len(self.paths) + len(self.usb) == 1


def entry(device: Any, domain: str) -> tuple[DraftEntry, tuple[str, ...]]:
    """Return a device as a resource, and what cannot be carried over."""
    if not isinstance(device, dict) or not isinstance(device.get("groups"), list):
        return draft.lost(f"{device!r} is not a device with name and groups")
    name = f"{domain}/{str(device.get('name', '')).strip()}"
    lost = list(_unknown(device))
    if problem := names.resource_name_problem(name):
        return draft.lost(problem)
    try:
        groups = [_group(one) for one in device["groups"] if isinstance(one, dict)]
        if not groups:
            return draft.lost(f"{name}: no groups")
        resource, comments = _resource(name, groups, lost)
    except (_NoEquivalentError, TypeError, ValueError) as error:
        return draft.lost(f"{name}: {error}")
    counts = {group.count for group in groups}
    if len(counts) > 1:
        lost.append(f"{name}: the groups have different counts; `replicas` is the lowest of them")
    if min(counts) > 1:
        resource["replicas"] = min(counts)
    shown = (*comments, *(f"Not carried over: {one}" for one in lost))
    return DraftEntry(resource, shown), tuple(lost)


def _resource(
    name: str, groups: Sequence[_Group], lost: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the resource of a device, without its replicas, and comments."""
    if all(group.is_single for group in groups):
        return _singles(name, groups, lost)
    if len(groups) == 1 and groups[0].usb:
        return _usb_set(name, groups[0])
    if len(groups) == 1:
        globs = [path for path in groups[0].paths if path.is_glob]
        return (_joined if len(globs) > 1 else _set)(name, groups[0].paths)
    if values := _parallel(groups):
        return _numbered(name, groups, values)
    single = [group for group in groups if group.is_single]
    if not single:
        raise _NoEquivalentError("its groups differ in more than one number")
    lost.append(f"{name}: groups of several paths beside groups of one path")
    return _singles(name, single, lost)


def _singles(
    name: str, groups: Sequence[_Group], lost: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return a resource where each match is a device."""
    usb: list[dict[str, Any]] = [{"usb": _usb(group.usb[0])} for group in groups if group.usb]
    comments = [_EACH_USB] if usb else []
    together: dict[object, list[_Path]] = {}
    for path in (group.paths[0] for group in groups if group.paths):
        together.setdefault(path.target, []).append(path)
    alike = not usb and len(together) == 1
    sources: list[dict[str, Any]] = []
    rules = []
    for number, paths in enumerate(together.values()):
        role, at = ({}, "") if alike else ({"as": f"g{number}"}, f"g{number}.")
        if len({path.access for path in paths}) > 1:
            lost.append(f"{name}: one mountPath with different options; those of the first hold")
        sources += [{**source, **role} for source in _sources(paths, apart=alike)]
        rule = paths[0].rule(f"${{{at}path}}", f"${{{at}name}}", optional=not alike)
        rules.append((paths[0], rule))
    if rules:  # the nodes of USB devices need an entry as well
        roles = [f"g{len(together) + number}" for number in range(len(usb))]
        rules += [(_USB_NODE, _USB_NODE.rule(f"${{{r}.path}}", "", optional=True)) for r in roles]
        usb = [{**one, "as": role} for one, role in zip(usb, roles, strict=True)]
    resource = {"name": name, "sources": [*sources, *usb]}
    return resource | ({"allocate": _allocate(rules)} if rules else {}), comments


def _sources(paths: Sequence[_Path], *, apart: bool) -> list[dict[str, Any]]:
    """Return the sources of paths; only one if they need a common name."""
    sources = [path.source() for path in paths]
    if apart or len(sources) == 1:
        return sources
    if any(isinstance(one["glob"], dict) for one in sources):
        raise _NoEquivalentError("one mountPath for nodes and directories")
    return [{"glob": [one["glob"] for one in sources]}]


def _usb_set(name: str, group: _Group) -> tuple[dict[str, Any], list[str]]:
    found = [_usb(one) for one in group.usb]
    comments = []
    if any("serial" in one for one in found):
        sources: list[dict[str, Any]] = [{"usb": one} for one in found]
        comments.append("Offered when all are there; before, as soon as one was.")
    else:
        sources = [{"usb": {"device": [one["device"] for one in found]}}]
    return {"name": name, "sources": sources, "group": _key(name)}, comments


def _set(name: str, paths: Sequence[_Path]) -> tuple[dict[str, Any], list[str]]:
    """Return a resource of one group, of which at most one path is a glob."""
    first = next((path for path in paths if path.is_glob), None)
    if first is None:
        return _grouped(name, paths)
    resource: dict[str, Any] = {"name": name, "sources": [first.source()]}
    resource["maxDevices"] = min(path.limit for path in paths if path is not first)
    rules = [
        (path, path.rule("${path}", "${name}") if path is first else _fixed(path)) for path in paths
    ]
    resource["allocate"] = _allocate(rules)
    return resource, ["`maxDevices` is the `limit` of the paths without wildcards."]


def _fixed(path: _Path) -> dict[str, Any]:
    return path.rule(path.path.replace("$", "$$"), _base(path.path))


def _grouped(name: str, paths: Sequence[_Path]) -> tuple[dict[str, Any], list[str]]:
    """Return a resource with one device of several nodes."""
    roles = _roles(paths)
    sources, rules = [], []
    for role, path in zip(roles, paths, strict=True):
        option = {"optional": True} if path.optional else {}
        sources.append({**path.source(), "as": role, **option})
        rules.append((path, path.rule(f"${{{role}.path}}", f"${{{role}.name}}")))
    resource = {"name": name, "sources": sources, "group": _key(name)}
    return resource | {"allocate": _allocate(rules)}, []


def _joined(name: str, paths: Sequence[_Path]) -> tuple[dict[str, Any], list[str]]:
    """Return a resource whose nodes belong together by what the wildcards match."""
    if any(path.is_glob and path.limit > 1 for path in paths):
        raise _NoEquivalentError("`limit` of a glob beside another glob")
    roles = _roles(paths)
    sources, rules = [], []
    for role, path in zip(roles, paths, strict=True):
        if not path.is_glob:
            rules.append((path, _fixed(path)))
            continue
        below = path.path.removeprefix("/dev/")
        if below == path.path or path.is_mount or len(re.findall(r"[*?[]", below)) != 1:
            raise _NoEquivalentError("globs that cannot be joined by what one `*` matches")
        parts = re.split(r"(\*|\?|\[[^]]*\])", below)
        if len(parts) != 3:  # before, wildcard, after
            raise _NoEquivalentError(f"unclosed '[' in {path.path}")
        before, _, after = parts
        wild = below[len(before) : len(below) - len(after)]
        key = {"*": "[^/]*", "?": "[^/]"}.get(wild, wild.replace("[!", "[^"))
        pattern = f"{re.escape(before)}(?P<key>{key}){re.escape(after)}"
        option = {"optional": True} if path.optional else {}
        sources.append({"dev": pattern.replace(r"\-", "-"), "as": role, **option})
        rules.append((path, path.rule(f"${{{role}.path}}", f"${{{role}.name}}")))
    resource = {"name": name, "sources": sources, "group": "${key}"}
    return resource | {"allocate": _allocate(rules)}, [_JOINED]


def _parallel(groups: Sequence[_Group]) -> list[str]:
    """Return the number that tells each group from the others, if it is the only difference."""
    texts = [[path.path for path in group.paths] for group in groups]
    if any(group.usb or any(path.is_glob for path in group.paths) for group in groups):
        return []
    if len({tuple(_NUMBER.sub("#", one) for one in paths) for paths in texts}) > 1:
        return []
    values = []
    for paths in texts:
        runs = [_NUMBER.findall(one) for one in paths]
        first = [_NUMBER.findall(one) for one in texts[0]]
        other = [_NUMBER.findall(one) for one in texts[-1]]
        changed = {
            run[at]
            for run, a, b in zip(runs, first, other, strict=True)
            for at in range(len(run))
            if a[at] != b[at]
        }
        if len(changed) != 1:
            return []
        values.append(changed.pop())
    return values if len(set(values)) == len(values) else []


def _numbered(
    name: str, groups: Sequence[_Group], values: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return a resource of groups that differ in one number."""
    first = groups[0].paths
    roles = _roles(first)
    choice = f"(?P<key>{'|'.join(values)})"
    sources, rules = [], []
    for at, role in enumerate(roles):
        below = [group.paths[at].path.removeprefix("/dev/") for group in groups]
        if below[0] == first[at].path:
            raise _NoEquivalentError("groups of several paths outside of /dev")
        parts = [re.escape(one).replace(r"\-", "-") for one in _NUMBER.split(below[0])]
        runs = zip(_NUMBER.findall(below[0]), _NUMBER.findall(below[-1]), strict=True)
        numbers = [one if one == other else choice for one, other in runs]
        pattern = parts[0] + "".join(a + b for a, b in zip(numbers, parts[1:], strict=True))
        if pattern.count("(?P<key>") != 1:
            raise _NoEquivalentError("a path with the number of its group more than once")
        option = {"optional": True} if first[at].optional else {}
        sources.append({"dev": pattern, "as": role, **option})
        targets = [group.paths[at].mount_path or group.paths[at].path for group in groups]
        if {path.access[1:] for group in groups for path in group.paths} != {first[0].access[1:]}:
            raise _NoEquivalentError("groups with different options")
        rule = first[at].rule(f"${{{role}.path}}", f"${{{role}.name}}")
        if len(set(targets)) == 1:
            rule = {"hostPath": rule["hostPath"], "containerPath": targets[0], **rule}
        elif targets != [group.paths[at].path for group in groups]:
            raise _NoEquivalentError("groups with different options")
        rules.append((first[at], rule))
    resource = {"name": name, "sources": sources, "group": "${key}"}
    return resource | {"allocate": _allocate(rules)}, []


def _allocate(rules: Sequence[tuple[_Path, dict[str, Any]]]) -> dict[str, Any]:
    devices = [rule for path, rule in rules if not path.is_mount]
    mounts = [rule for path, rule in rules if path.is_mount]
    return {"devices": devices} | ({"mounts": mounts} if mounts else {})


def _roles(paths: Sequence[_Path]) -> list[str]:
    """Return a name for each path of a group."""
    roles: list[str] = []
    for path in paths:
        stem = re.match(r"[A-Za-z]*", _base(path.path))
        role = (stem[0] if stem else "") or "node"
        roles.append(role if role not in roles else f"{role}{len(roles)}")
    return roles


def _base(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))


def _key(name: str) -> str:
    return name.rpartition("/")[2]


def _group(given: dict[str, Any]) -> _Group:
    paths = tuple(_path(one) for one in given.get("paths") or () if isinstance(one, dict))
    usb = given.get("usb") or given.get("usbs") or ()
    specs = tuple(one for one in usb if isinstance(one, dict) and any(one.values()))
    if bool(paths) == bool(specs):
        raise _NoEquivalentError("a group needs either paths or usb")
    return _Group(paths, specs, _number(given, "count"))


def _path(given: dict[str, Any]) -> _Path:
    path = str(given.get("path", "")).strip()
    if not path.startswith("/"):
        raise _NoEquivalentError(f"{path!r} is not an absolute path")
    kind = given.get("type") or "Device"
    if kind not in ("Device", "Mount"):
        raise _NoEquivalentError(f"unknown type {kind!r}")
    return _Path(
        path=path.replace("[^", "[!"),
        mount_path=str(given.get("mountPath") or "").strip(),
        permissions=str(given.get("permissions") or _PERMISSIONS),
        read_only=given.get("readOnly") == "true",
        is_mount=kind == "Mount",
        limit=_number(given, "limit"),
        optional=given.get("optional") == "true",
    )


def _number(given: dict[str, Any], key: str) -> int:
    text = given.get(key) or "1"
    if not isinstance(text, str) or not re.fullmatch("0*[0-9]{1,9}", text):
        raise _NoEquivalentError(f"{key} is {text}")
    return int(text[-9:]) or 1


def _usb(given: dict[str, str]) -> dict[str, str]:
    try:
        vendor, product = (int(given[key], 16) for key in ("vendor", "product"))
    except KeyError as error:
        raise _NoEquivalentError(f"usb without {error}") from None
    except (TypeError, ValueError):
        raise _NoEquivalentError("vendor and product of usb should be hexadecimal") from None
    found = {"device": f"{vendor:04x}:{product:04x}"}
    if serial := given.get("serial"):
        found["serial"] = glob.escape(serial)
    return found


def _unknown(device: dict[str, Any]) -> Iterator[str]:
    """Yield the keys that have no meaning."""
    nested = [("device", device)]
    for group in device["groups"]:
        if isinstance(group, dict):
            nested.append(("group", group))
            nested += [("path", one) for one in group.get("paths") or ()]
            nested += [("usb", one) for one in (group.get("usb") or group.get("usbs") or ())]
    for kind, mapping in nested:
        for key in mapping if isinstance(mapping, dict) else ():
            if key not in _KNOWN[kind]:
                yield f"unknown key {key!r} of a {kind}"
