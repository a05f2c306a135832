"""A device of generic-device-plugin as a resource.

Its rules, from its sources: a device is made of groups; a group is a set of paths, each a glob, or
of USB devices. The n-th device of a group has the n-th match of each path, in sorted order, as far
as all have one; optional paths without a match do not count. USB devices of a group are one device.
"""

import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from devhost.drafts import dev_names
from devhost.drafts.draft import DraftEntry, lost_entry, replicas
from devhost.hostfs.device_classes import BLOCK, class_by_path
from devhost.hostfs.files import HostFiles, is_wild

_GROUPS_MAX: Final = 50
_GLOBS: Final = (
    "{} in one group: the plugin joins their n-th matches, and offers none where one has none. For "
    "a device for each match, make each a group; to join nodes of one device by a part of their "
    "names, write `dev` and `group`"
)

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

    @property
    def glob(self) -> str:
        return self.path.replace("[^", "[!").replace(".*", "[.]*")  # else they look like a regex

    def source(self, files: HostFiles) -> _Entry | str:
        """Return the source of what it matches. Blocks."""
        return dev_names.path_source(self.glob, files, is_mounted=self.type == "Mount")

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


def _drop_empty(value: Any) -> Any:
    """Return a list without members that say nothing, as MicroShift writes them."""
    if not isinstance(value, list):
        return value
    return [member for member in value if not isinstance(member, dict) or any(member.values())]


class Group(_Settings):
    """Paths or USB devices, of which the n-th ones are a device, in ``count`` containers."""

    paths: Annotated[list[_Path], BeforeValidator(_drop_empty)] = []
    usb: Annotated[
        list[_Usb],
        BeforeValidator(_drop_empty),
        Field(validation_alias=AliasChoices("usb", "usbs")),
    ] = []
    count: int = Field(1, ge=0)


class _Device(_Settings):
    name: str
    groups: list[Any] = Field(min_length=1, max_length=_GROUPS_MAX)


def convert_device(name: str, device: _Entry, files: HostFiles) -> Iterator[DraftEntry]:
    """Yield why groups are not carried over, and the resource of the others. Blocks."""
    groups = list[Group]()
    for number, data in enumerate(_Device.model_validate(device).groups, 1):
        try:
            group = Group.model_validate(data)
            _combine([*groups, group])
        except ValueError as error:
            yield lost_entry(f"{name}, group {number}", error)
        else:
            groups.append(group)
    if groups:
        yield DraftEntry(convert_groups(name, groups, files))


def convert_groups(name: str, groups: Sequence[Group], files: HostFiles) -> _Entry:
    """Return the resource of groups, or raise `ValueError`. Blocks."""
    resource = _combine(groups)
    sources = [
        source.source(files) if isinstance(source, _Path) else source
        for source in resource["sources"]
    ]
    return {"name": name, **resource, "sources": sources}


def _combine(groups: Sequence[Group]) -> _Entry:
    """Return groups as options of a resource, with paths as sources, or raise `ValueError`."""
    paths, usb = [group.paths for group in groups], [group.usb for group in groups]
    counts = {group.count or 1 for group in groups}
    if len(counts) > 1:
        raise ValueError("groups with different counts")
    if all(usb) and not any(paths):
        resource = _convert_usb(usb)
    elif any(usb) or not all(paths):
        raise ValueError("needs groups of paths alone, or of USB devices alone")
    else:
        resource = _convert_paths(paths)
    return {**resource, **replicas(max(counts))}


def _convert_usb(groups: Sequence[Sequence[_Usb]]) -> _Entry:
    """Return USB devices: all that a group matches are one device."""
    sources = [device.source() for group in groups for device in group]
    numbers = [source["usb"]["device"] for source in sources]
    serials = sum("serial" in source["usb"] for source in sources)
    if serials == len(sources) == len(groups):
        return {"sources": sources}
    is_single = len(groups) == 1
    if serials or not (is_single or len({*numbers}) == len(sources) == len(groups)):
        raise ValueError("several USB devices in one of several groups, or with serial numbers")
    source = {"device": numbers if len(numbers) > 1 else numbers[0]}
    return {"sources": [{"usb": source}], "group": "all" if is_single else "${usb.device}"}


def _convert_paths(groups: Sequence[Sequence[_Path]]) -> _Entry:
    """Return a source for each group, or several that are joined, beside what all groups have."""
    members = [path for paths in groups if len(paths) > 1 for path in paths]
    wild = [path for path in members if is_wild(path.path)]
    required_paths = [path for path in members if not path.optional]
    constants = [path for path in groups[0] if all(path in paths for paths in groups)]
    if sum((bool(wild), required_paths != members, bool(members) and len(groups) > 1)) > 1:
        raise ValueError("globs, optional paths or several groups together")
    if len(wild) > 1:
        raise ValueError(_GLOBS.format(" and ".join(path.path for path in wild)))
    if members and not required_paths:
        return _convert_optional(members)
    if len(groups) == 1:
        # A disk may be in use, and is then no source.
        order = [(path not in wild, class_by_path(path.path) == BLOCK) for path in required_paths]
        constants.remove(required_paths[order.index(min(order))] if members else groups[0][0])
    rows = [[path for path in paths if path not in constants] for paths in groups]
    if not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError("groups of several paths beside others")
    if len(rows[0]) > 1:
        resource, rules = _join_rows(rows)
    else:
        paths = [path for (path,) in rows]
        resource, rules = {"sources": paths}, [_shared_rule(paths)]
    rules += [path.rule(optional=path.optional) for path in constants]
    allocate = {"devices": [rule for rule in rules if "permissions" in rule]}
    if mounts := [rule for rule in rules if "readOnly" in rule]:
        allocate["mounts"] = mounts
    most = {"maxDevices": min(path.limit or 1 for path in constants)} if wild else {}
    return {**resource, "allocate": allocate, **most}


def _shared_rule(paths: Sequence[_Path]) -> _Entry:
    """Return what a container gets of each of the paths, or raise `ValueError`."""
    rules = [path.rule("${path}") for path in paths]
    if any(rule != rules[0] for rule in rules):
        raise ValueError("paths with different mountPath, permissions or type")
    return rules[0]


def _convert_optional(paths: Sequence[_Path]) -> _Entry:
    """Return a group of optional paths: a device of those that are there."""
    rule = _shared_rule(paths)
    if "permissions" not in rule:
        raise ValueError("optional paths that are mounts")
    source = {"paths": [path.glob for path in paths], "types": ["char", "block", "directory"]}
    return {"sources": [{"glob": source}], "group": "all", "allocate": {"devices": [rule]}}


def _join_rows(rows: Sequence[Sequence[_Path]]) -> tuple[_Entry, list[_Entry]]:
    """Return sources for rows of paths that differ in one part, by which their nodes are joined."""
    sources, rules, keys = list[_Entry](), list[_Entry](), set[tuple[str, ...]]()
    for index, column in enumerate(zip(*rows, strict=True)):
        names = [path.path.removeprefix("/dev/") for path in column]
        head = os.path.commonprefix(names)  # noqa: RUF071 (letters, not directories)
        rests = [name[len(head) :][::-1] for name in names]
        tail = os.path.commonprefix(rests)[::-1]  # noqa: RUF071
        key = tuple(name[len(head) : len(name) - len(tail)] for name in names)
        keys.add(key)
        renames = [path for path in column if path.mount_path not in ("", path.path)]
        mounts = {path.mount_path or path.path for path in column if renames}
        alike = {path.permissions if path.type == "Device" else "" for path in column} - {""}
        if len(keys) > 1 or len({*key, ""}) <= len(key) or len(mounts) > 1 or len(alike) != 1:
            raise ValueError("groups of paths that differ in more than a part of their names")
        pattern = f"{re.escape(head)}(?P<key>{'|'.join(map(re.escape, key))}){re.escape(tail)}"
        sources.append({"dev": pattern, "as": f"g{index}"})
        rules.append((renames or column)[0].rule(f"${{g{index}.path}}"))
    return {"sources": sources, "group": "${key}"}, rules
