"""The settings of generic-device-plugin and smarter-device-manager as a configuration.

The rules of the former, from its sources: a device is made of groups; a group is a set of paths,
each a glob, or of USB devices. The n-th device of a group has the n-th match of each path, in
sorted order.
"""

import glob
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from devhost.config import yaml_tree
from devhost.config.loader import loads
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent
from devhost.drafts import draft, smarter, without_nodes
from devhost.drafts.draft import DraftEntry, with_rights
from devhost.hostfs.files import HostFiles, describe_read_error, is_wild
from devhost.model import limits

_HEXADECIMAL: Final = "^[0-9a-fA-F]{1,4}$"
_ANY: Final = ["file", "directory", "char", "block", "socket"]
_COMMAND: Final = re.compile(r"--device[= ]'(\{[^']*)'")
# The beginning of a text with settings, and their first name.
_SETTING: Final = re.compile(
    r"""(?:\A[\s{]*["']?name|\A[-\s{[]*["']?devicematch)["']?:\s*["']?([^\s"',]+)"""
)
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
        path = self.path.replace("[^", "[!").replace(".*", "[.]*")  # else they look like a regex
        without_nodes.check(
            lambda name: path.startswith(f"/dev/{name[:-1]}") and fnmatchcase(f"/dev/{name}", path)
        )
        if self.type == "Device" and path not in smarter.DIRECTORIES:
            return path
        return {"glob": {"paths": path, "types": _ANY if self.type == "Mount" else "directory"}}

    def rule(self, *, is_source: bool) -> _Entry:
        """Return the entry of `allocate` for each node of the source, or for this path alone."""
        outside, inside = self.path.replace("$", "$$"), self.mount_path.replace("$", "$$")
        name = "${name}" if is_source else posixpath.basename(outside.rstrip("/"))
        rule: _Entry = {"hostPath": "${path}" if is_source else outside}
        if inside not in ("", outside):
            rule["containerPath"] = inside + (name if inside.endswith("/") else "")
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


def find_devices(text: str) -> list[ForeignDevice]:
    """Return the devices of settings, of a manifest, of a chart's values or of a command line.

    Scalars stay as they are written: 0403 is no number here.
    """
    extent, arguments = Extent(), _COMMAND.findall(text)
    try:
        devices = [*_within(text, None, extent)]
    except TreeError:
        if not arguments:
            raise
        devices = []
    return devices or [*_below(arguments, _domain(text), extent)]


def _within(text: str, domain: str | None, extent: Extent) -> Iterator[ForeignDevice]:
    for tree in yaml_tree.parse_all(text, extent, texts=True):
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
            yield from _below([*value.values()], domain, extent)
        case list():
            for member in value:
                yield from _below(member, domain, extent)
        # In a ConfigMap, or an argument of a container.
        case str() if "groups" in value or "devicematch" in value:
            text = value.removeprefix("--device=")
            try:
                yield from _within(text, domain, extent)
            except TreeError as error:  # other texts of ConfigMaps need not be YAML
                if (setting := _SETTING.search(text)) is not None:
                    problem = f"line {error.line}, column {error.column} of its text: {error}"
                    yield {"name": setting[1], "unreadable": problem}, domain


def _domain(text: str) -> str | None:
    """Return the domain that a text gives, or the default of the plugin's version in it."""
    if (setting := _DOMAIN.search(text)) is not None:
        return setting[1]
    if (image := _IMAGE.search(text)) is None:
        return None
    return "squat.ai" if (int(image[1]), int(image[2])) < (0, 2) else "devic.es"


def convert_devices(
    devices: Sequence[ForeignDevice], domain: str | None = None, files: HostFiles | None = None
) -> list[DraftEntry]:
    """Return the devices as resources of devhost, in a domain or in the one that they had.

    A device that cannot be a resource becomes a comment. Raises `ValueError` if the domain of a
    device is unknown, or if there are more devices than a file may have resources.
    """
    if len(devices) > limits.RESOURCES_MAX:
        raise ValueError(f"{len(devices)} devices, more than {limits.RESOURCES_MAX}")
    entries, names = list[DraftEntry](), set[str]()
    for device, device_domain in devices:
        prefix, name = domain or device_domain, device.get("devicematch") or device.get("name")
        if "unreadable" in device:
            entries.append(_lost(str(name), device["unreadable"]))
            continue
        if prefix is None:
            raise ValueError(
                f"nothing says in which domain {name} is: give it by --domain; the "
                "plugin's default is devic.es since 0.2.0, and was squat.ai before"
            )
        try:
            if "devicematch" in device:
                resources = smarter.convert_setting(device, prefix, files or HostFiles())
            else:
                resources = [_resource(f"{prefix}/{name}", device)]
        except (OSError, ValueError) as error:
            entries.append(_lost(f"{prefix}/{name}", error))
            continue
        for resource in resources:
            problem = _problem(resource, names)
            entry = DraftEntry(resource) if problem is None else _lost(resource["name"], problem)
            entries.append(entry)
            names.add(resource["name"])
    return with_rights(entries, files or HostFiles())


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
    problems = loads(draft.render((), [DraftEntry(resource)])).problems
    return next((problem.message for problem in problems if problem.severity == "error"), None)


def _resource(name: str, device: _Entry) -> _Entry:
    """Return a device as a resource, or raise `ValueError` if devhost has no such resource."""
    groups = _Device.model_validate(device).groups
    paths, usb = [group.paths for group in groups], [group.usb for group in groups]
    if all(len(devices) == 1 for devices in usb) and not any(paths):
        resource = {"name": name, "sources": [device.source() for (device,) in usb]}
    elif all(paths) and not any(usb):
        resource = {"name": name, **_of_paths(paths)}
    else:
        raise ValueError("needs groups of paths alone, or of one USB device each")
    counts = {group.count or 1 for group in groups}
    if len(counts) > 1:
        raise ValueError("groups with different counts")
    return resource | ({"replicas": max(counts)} if max(counts) > 1 else {})


def _of_paths(groups: Sequence[Sequence[_Path]]) -> _Entry:
    """Return `sources` and `allocate`: the source of a group is its glob, or its first path."""
    ordered = [sorted(paths, key=lambda path: not is_wild(path.path)) for paths in groups]
    sources = [paths[0] for paths in ordered]
    first, rest = sources[0], [path for paths in ordered for path in paths[1:]]
    if any(is_wild(path.path) for path in rest) or (rest and len(sources) > 1):
        raise ValueError(
            "several globs in a group, or several groups of several paths: write a resource with "
            "`group`"
        )
    if any(path.rule(is_source=True) != first.rule(is_source=True) for path in sources):
        raise ValueError("paths with different mountPath, permissions or type")
    rules = [path.rule(is_source=path is first) for path in (first, *rest)]
    allocate = {"devices": [rule for rule in rules if "permissions" in rule]}
    if mounts := [rule for rule in rules if "readOnly" in rule]:
        allocate["mounts"] = mounts
    resource: _Entry = {"sources": [path.source() for path in sources], "allocate": allocate}
    if rest and is_wild(first.path):
        resource["maxDevices"] = min(path.limit or 1 for path in rest)
    return resource
