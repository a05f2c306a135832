"""A device of generic-device-plugin as a resource.

Its rules, from its sources: a device is made of groups; a group is a set of paths, each a glob, or
of USB devices. The n-th device of a group has the n-th match of each path, in sorted order, as far
as all have one; optional paths without a match do not count. USB devices of a group are one device.
"""

import glob
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from devhost.drafts.dev_names import path_source
from devhost.drafts.draft import DraftEntry, lost_entry
from devhost.hostfs.files import HostFiles, is_wild

_GROUPS_MAX: Final = 200

_Entry = dict[str, Any]


class _Settings(BaseModel):
    """A mapping of the plugin's settings, of which all values are texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class _Path(_Settings):
    path: str = Field(pattern="^/")
    mount_path: str = ""
    permissions: str = "mrw"
    read_only: bool = False
    type: Literal["Device", "Mount"] = "Device"
    limit: int = Field(1, ge=0)
    optional: bool = False

    def source(self, files: HostFiles) -> _Entry | str:
        path = self.path.replace("[^", "[!").replace(".*", "[.]*")  # else they look like a regex
        return path_source(path, files, is_mounted=self.type == "Mount")

    def rule(self, path: str = "", *, optional: bool = False) -> _Entry:
        """Return the entry of `allocate` for a template of host paths, or for this path alone."""
        outside, inside = self.path.replace("$", "$$"), self.mount_path.replace("$", "$$")
        name = path.replace("path}", "name}") or posixpath.basename(outside.rstrip("/"))
        rule: _Entry = {"hostPath": path or outside}
        if inside not in ("", outside):
            rule["containerPath"] = inside + (name if inside.endswith("/") else "")
        if self.type == "Mount":
            rule["readOnly"] = self.read_only
        else:
            rule["permissions"] = self.permissions
        return {**rule, "optional": True} if optional else rule


_Hexadecimal = Annotated[
    str,
    BeforeValidator(lambda text: str(text).removeprefix("0x")),
    Field(pattern="^[0-9a-fA-F]{1,4}$"),
]


class _Usb(_Settings):
    vendor: _Hexadecimal
    product: _Hexadecimal
    serial: str = ""

    def source(self) -> _Entry:
        serial = {"serial": glob.escape(self.serial)} if self.serial else {}
        return {"usb": {"device": f"{self.vendor:0>4}:{self.product:0>4}".lower(), **serial}}


def _members(value: Any) -> Any:
    """Return a list without members that say nothing, as MicroShift writes them."""
    if not isinstance(value, list):
        return value
    return [member for member in value if not isinstance(member, dict) or any(member.values())]


class _Group(_Settings):
    paths: Annotated[list[_Path], BeforeValidator(_members)] = []
    usb: Annotated[
        list[_Usb], BeforeValidator(_members), Field(validation_alias=AliasChoices("usb", "usbs"))
    ] = []
    count: int = Field(1, ge=0)


class _Device(_Settings):
    name: str
    groups: list[Any] = Field(min_length=1, max_length=_GROUPS_MAX)


def convert_device(
    name: str, device: _Entry, files: HostFiles, taken: Collection[str]
) -> Iterator[DraftEntry]:
    """Yield why groups are not carried over, and the resource of the others. Blocks.

    A path that is ``taken`` is a source of another resource.
    """
    resource, groups = {}, list[_Group]()
    for number, data in enumerate(_Device.model_validate(device).groups, 1):
        try:
            more = [*groups, _Group.model_validate(data)]
            resource, groups = {"name": name, **_resource(more, files, taken)}, more
        except ValueError as error:
            yield lost_entry(f"{name}, group {number}", error)
    if resource:
        yield DraftEntry(resource)


def _resource(groups: Sequence[_Group], files: HostFiles, taken: Collection[str]) -> _Entry:
    paths, usb = [group.paths for group in groups], [group.usb for group in groups]
    counts = {group.count or 1 for group in groups}
    if len(counts) > 1:
        raise ValueError("groups with different counts")
    if all(usb) and not any(paths):
        resource = _of_usb(usb)
    elif any(usb) or not all(paths):
        raise ValueError("needs groups of paths alone, or of USB devices alone")
    elif len(paths) == 1 and len(paths[0]) > 1:
        resource = _of_set(paths[0], files, taken)
    else:
        resource = _of_rows(paths, files)
    return resource | ({"replicas": max(counts)} if max(counts) > 1 else {})


def _of_usb(groups: Sequence[Sequence[_Usb]]) -> _Entry:
    """Return USB devices: all that a group matches are one device."""
    devices = [device for group in groups for device in group]
    if all(device.serial for device in devices) and len(devices) == len(groups):
        return {"sources": [device.source() for device in devices]}
    numbers = [device.source()["usb"]["device"] for device in devices]
    is_single = len(groups) == 1
    if any(device.serial for device in devices) or not (
        is_single or len({*numbers}) == len(devices) == len(groups)
    ):
        raise ValueError("several USB devices in one of several groups, or with serial numbers")
    source = {"device": numbers if len(numbers) > 1 else numbers[0]}
    return {"sources": [{"usb": source}], "group": "all" if is_single else "${usb.device}"}


def _of_set(paths: Sequence[_Path], files: HostFiles, taken: Collection[str]) -> _Entry:
    """Return a group of several paths, whose source is one that is required and not taken."""
    wild = [path for path in paths if is_wild(path.path)]
    required = [path for path in paths if not path.optional]
    if len(wild) > 1:
        raise ValueError(
            f"{' and '.join(path.path for path in wild)} in one group: the plugin joins the n-th "
            "matches, and offers nothing where one has no match. For a device for each match, make "
            "each a group; to join nodes by a part of their names, write `dev` and `group`"
        )
    if wild and len(required) < len(paths):
        raise ValueError("a glob beside an optional path")
    if not required:
        rules = [path.rule("${path}") for path in paths]
        if any(rule != rules[0] for rule in rules):
            raise ValueError("optional paths with different mountPath, permissions or type")
        types = ["char", "block", "directory"]
        source = {"paths": [path.path for path in paths], "types": types}
        return {"sources": [{"glob": source}], "group": "all", **_allocate(rules[:1])}
    order = [(path not in wild, path.path in taken, path.type == "Mount") for path in required]
    first = required[order.index(min(order))]
    rest = [path for path in paths if path is not first]
    rules = [first.rule("${path}"), *(path.rule(optional=path.optional) for path in rest)]
    most = {"maxDevices": min(path.limit or 1 for path in rest)} if wild else {}
    return {"sources": [first.source(files)], **_allocate(rules), **most}


def _of_rows(groups: Sequence[Sequence[_Path]], files: HostFiles) -> _Entry:
    """Return groups of one path each, or of several, beside the paths that all groups have."""
    shared = [path for path in groups[0] if all(path in paths for paths in groups)]
    shared = shared if len(groups) > 1 else []
    rows = [[path for path in paths if path not in shared] for paths in groups]
    several = [path for paths in groups if len(paths) > 1 for path in paths]
    if not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError("groups of several paths beside others")
    if any(is_wild(path.path) or path.optional for path in several):
        raise ValueError("globs or optional paths in several groups of several paths")
    if len(rows[0]) > 1:
        resource, rules = _joined(rows)
    else:
        paths = [path for row in rows for path in row]
        rules = [paths[0].rule("${path}")]
        if any(path.rule("${path}") not in rules for path in paths):
            raise ValueError("paths with different mountPath, permissions or type")
        resource = {"sources": [path.source(files) for path in paths]}
    return resource | _allocate([*rules, *(path.rule() for path in shared)])


def _joined(rows: Sequence[Sequence[_Path]]) -> tuple[_Entry, list[_Entry]]:
    """Return groups whose paths differ in one part, by which nodes are joined."""
    sources, rules, keys = list[_Entry](), list[_Entry](), set[tuple[str, ...]]()
    for index, column in enumerate(zip(*rows, strict=True)):
        names = [path.path.removeprefix("/dev/") for path in column]
        head = os.path.commonprefix(names)
        tail = os.path.commonprefix([name[len(head) :][::-1] for name in names])[::-1]
        key = tuple(name[len(head) : len(name) - len(tail)] for name in names)
        keys.add(key)
        moved = [path for path in column if path.mount_path not in ("", path.path)]
        alike = {
            ((path.mount_path or path.path) if moved else "", path.permissions, path.type)
            for path in column
        }
        if len(keys) > 1 or len({*key, ""}) <= len(key) or len(alike) > 1:
            raise ValueError("groups of paths that differ in more than a part of their names")
        pattern = f"{re.escape(head)}(?P<key>{'|'.join(map(re.escape, key))}){re.escape(tail)}"
        sources.append({"dev": pattern, "as": f"g{index}"})
        rules.append((moved or column)[0].rule(f"${{g{index}.path}}"))
    return {"sources": sources, "group": "${key}"}, rules


def _allocate(rules: Sequence[_Entry]) -> _Entry:
    allocate = {"devices": [rule for rule in rules if "permissions" in rule]}
    if mounts := [rule for rule in rules if "readOnly" in rule]:
        allocate["mounts"] = mounts
    return {"allocate": allocate}
