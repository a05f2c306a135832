"""The settings of generic-device-plugin and smarter-device-manager as a configuration.

The rules of the former, from its sources: a device is made of groups; a group is a set of paths,
each a glob, or of USB devices. The n-th device of a group has the n-th match of each path, in
sorted order.
"""

import contextlib
import glob
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from devhost.drafts import draft, smarter
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles, describe_read_error, is_wild
from devhost.loading import yamltree
from devhost.loading.loader import loads
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Extent
from devhost.model import limits

_HEXADECIMAL: Final = "^[0-9a-fA-F]{1,4}$"
_ANY: Final = ["file", "directory", "char", "block", "socket"]
_COMMAND: Final = re.compile(r"--device[= ]'(\{[^']*)'")
# A key, a flag of a list of arguments, or of a command line; an image, also as values of a chart.
_DOMAIN: Final = re.compile(r"""\bdomain(?:=|'[:,] '| )["']?([^\s"',}]+)""")
_IMAGE: Final = re.compile(r"generic-device-plugin(?::|'[^{}]{0,300}'tag': ')v?([0-9]+)\.([0-9]+)")

ForeignDevice = tuple[dict[str, Any], str | None]  # what looks like a device, and its domain
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

    def source(self) -> _Entry | str:
        path = self.path.replace("[^", "[!")
        if self.type == "Device" and path not in smarter.DIRECTORIES:
            return path
        return {"glob": {"paths": path, "types": _ANY if self.type == "Mount" else "directory"}}

    def rule(self, *, found: bool) -> _Entry:
        """Return the entry of `allocate` for what its source finds, or for the path itself."""
        own, inside = (one.replace("$", "$$") for one in (self.path, self.mount_path))
        name = posixpath.basename(own.rstrip("/"))
        rule: _Entry = {"hostPath": "${path}" if found else own}
        if inside not in ("", own):
            into_directory = inside.endswith("/")
            rule["containerPath"] = inside + ("${name}" if found else name) * into_directory
        if self.type == "Mount":
            rule["readOnly"] = self.read_only
        else:
            rule["permissions"] = self.permissions
        return {**rule, "optional": True} if self.optional else rule


class _Usb(_Settings):
    vendor: str = Field(pattern=_HEXADECIMAL)
    product: str = Field(pattern=_HEXADECIMAL)
    serial: str = ""

    def source(self) -> _Entry:
        serial = {"serial": glob.escape(self.serial)} if self.serial else {}
        return {"usb": {"device": f"{self.vendor:0>4}:{self.product:0>4}".lower(), **serial}}


class _Group(_Settings):
    paths: list[_Path] = []
    usb: list[_Usb] = Field([], validation_alias=AliasChoices("usb", "usbs"))
    count: int = Field(1, ge=0)


class _Device(_Settings):
    name: str
    groups: list[_Group] = Field(min_length=1)


def found(text: str) -> list[ForeignDevice]:
    """Return what looks like a device in a file: settings, a manifest, values, a command line.

    Scalars stay as they are written: 0403 is no number here.
    """
    extent, given = Extent(), _COMMAND.findall(text)
    try:
        devices = [*_within(text, None, extent)]
    except TreeError:
        if not given:
            raise
        devices = []
    return devices or [*_below(given, _domain(text), extent)]


def _within(text: str, domain: str | None, extent: Extent) -> Iterator[ForeignDevice]:
    for tree in yamltree.parse_all(text, extent, texts=True):
        if not isinstance(tree.data, str):
            yield from _below(tree.data, domain, extent)


def _below(value: Any, domain: str | None, extent: Extent) -> Iterator[ForeignDevice]:
    match value:
        case {"name": str(), "groups": _}:
            yield value, domain
        case {"devicematch": _}:
            yield value, smarter.DOMAIN
        case dict():
            if "domain" in value or "image" in value:
                domain = _domain(str(value)) or domain
            for one in value.values():
                yield from _below(one, domain, extent)
        case list():
            for one in value:
                yield from _below(one, domain, extent)
        # In a ConfigMap, or an argument of a container.
        case str() if "groups" in value or "devicematch" in value:
            with contextlib.suppress(TreeError):
                yield from _within(value.removeprefix("--device="), domain, extent)


def _domain(text: str) -> str | None:
    """Return the domain that a text gives, or the default of the plugin's version in it."""
    if (given := _DOMAIN.search(text)) is not None:
        return given[1]
    if (image := _IMAGE.search(text)) is None:
        return None
    return "squat.ai" if (int(image[1]), int(image[2])) < (0, 2) else "devic.es"


def converted(
    devices: Sequence[ForeignDevice], domain: str | None = None, files: HostFiles | None = None
) -> list[DraftEntry]:
    """Return the same resources as devhost has them, in a domain or in the one that they had.

    Those that it cannot have are comments. A `ValueError` if nothing says what domain one is in, or
    if they are more than a file may have.
    """
    if len(devices) > limits.RESOURCES_MAX:
        raise ValueError(f"{len(devices)} devices, more than {limits.RESOURCES_MAX}")
    entries, names = list[DraftEntry](), set[str]()
    for device, own in devices:
        where, what = domain or own, device.get("devicematch") or device.get("name")
        if where is None:
            raise ValueError(
                f"nothing says in which domain {what} is: give it by --domain; the "
                "plugin's default is devic.es since 0.2.0, and was squat.ai before"
            )
        try:
            if "devicematch" in device:
                made = smarter.resources(device, where, files or HostFiles())
            else:
                made = [_resource(f"{where}/{what}", device)]
        except (OSError, ValueError) as error:
            entries.append(_lost(f"{where}/{what}", error))
            continue
        for resource in made:
            problem = _problem(resource, names)
            entry = DraftEntry(resource) if problem is None else _lost(resource["name"], problem)
            entries.append(entry)
            names.add(resource["name"])
    return entries


def _lost(name: str, why: Exception | str) -> DraftEntry:
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(why, OSError):  # what is below /dev cannot be read
        why = describe_read_error(why)
    return DraftEntry({}, (f"Not carried over: {name}: {why}",))


def _problem(resource: _Entry, names: Collection[str]) -> str | None:
    """Return why a file may not have a resource beside those of these names, or ``None``."""
    if resource["name"] in names:
        return "a second resource of this name"
    problems = loads(draft.text((), [DraftEntry(resource)])).problems
    return next((one.message for one in problems if one.severity == "error"), None)


def _resource(name: str, device: _Entry) -> _Entry:
    """Return a device as a resource, or raise `ValueError` if devhost has no such resource."""
    groups = _Device.model_validate(device).groups
    paths, usb = [one.paths for one in groups], [one.usb for one in groups]
    if all(len(one) == 1 for one in usb) and not any(paths):
        resource = {"name": name, "sources": [one.source() for (one,) in usb]}
    elif all(paths) and not any(usb):
        resource = {"name": name, **_of_paths(paths)}
    else:
        raise ValueError("needs groups of paths alone, or of one USB device each")
    counts = {one.count or 1 for one in groups}
    if len(counts) > 1:
        raise ValueError("groups with different counts")
    return resource | ({"replicas": max(counts)} if max(counts) > 1 else {})


def _of_paths(groups: Sequence[Sequence[_Path]]) -> _Entry:
    """Return sources and what a container gets: devices are what a glob finds, or a first path."""
    ordered = [sorted(one, key=lambda path: not is_wild(path.path)) for one in groups]
    first, *others = [one[0] for one in ordered]
    rest = [path for one in ordered for path in one[1:]]
    if any(is_wild(one.path) for one in rest) or (rest and others):
        raise ValueError(
            "several globs in a group, or several groups of several paths: write a resource with "
            "`group`"
        )
    if any(one.rule(found=True) != first.rule(found=True) for one in others):
        raise ValueError("paths with different mountPath, permissions or type")
    rules = [one.rule(found=one is first) for one in (first, *rest)]
    allocate = {"devices": [one for one in rules if "permissions" in one]}
    if mounts := [one for one in rules if "readOnly" in one]:
        allocate["mounts"] = mounts
    found: _Entry = {"sources": [one.source() for one in (first, *others)], "allocate": allocate}
    if rest and is_wild(first.path):
        found["maxDevices"] = min(one.limit or 1 for one in rest)
    return found
