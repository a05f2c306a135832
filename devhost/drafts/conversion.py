"""The settings of generic-device-plugin as a configuration.

Its rules, from its sources: a device is made of groups; a group is a set of paths, each a glob, or
of USB devices. The n-th device of a group has the n-th match of each path, in sorted order.
"""

import glob
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.loading import yamltree
from devhost.loading.loader import loads
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Extent, Path, Tree
from devhost.model import limits

_DIRECTORIES: Final = ("snd", "dri", "input", "dvb")
_HEXADECIMAL: Final = "^[0-9a-fA-F]{1,4}$"
_IMAGE: Final = re.compile(r"generic-device-plugin:v?([0-9]+)\.([0-9]+)")
_ANY: Final = ["file", "directory", "char", "block", "socket"]
_COMMAND: Final = re.compile(r"--device[= ]'(\{[^']*)'")
_EACH_USB: Final = "Each USB device is one of its own; before, all that match were one."
_COUNTS: Final = "the groups have different counts; `replicas` is the lowest of them"
_LIMITS: Final = "`maxDevices` is the `limit` of the paths without wildcards."

ForeignDevice = tuple[dict[str, Any], str | None]  # what looks like a device, and its domain
_Entry = dict[str, Any]


class _Settings(BaseModel):
    """A mapping of a plugin's settings, of which all values are texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Path(_Settings):
    path: str = Field(pattern="^/")
    mount_path: str = Field("", alias="mountPath")
    permissions: str = "mrw"
    read_only: bool = Field(default=False, alias="readOnly")
    type: Literal["Device", "Mount"] = "Device"
    limit: int = Field(1, ge=0)
    optional: bool = False

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def access(self) -> tuple[object, ...]:
        """What a container gets, but for the path on the host."""
        return (self.mount_path, self.permissions, self.read_only, self.type)

    def source(self) -> _Entry | str:
        path = self.path.replace("[^", "[!")
        if self.type == "Mount":
            return {"glob": {"paths": path, "types": _ANY}}
        is_directory = path.removeprefix("/dev/") in _DIRECTORIES
        return {"glob": {"paths": path, "types": "directory"}} if is_directory else path

    def rule(self, *, constant: bool = False) -> _Entry:
        """Return the entry of `allocate` for what the source finds, or for the path itself."""
        host = self.path.replace("$", "$$") if constant else "${path}"
        rule: _Entry = {"hostPath": host}
        if self.mount_path.endswith("/"):
            name = self.name if constant else "${name}"
            rule["containerPath"] = f"{self.mount_path.replace('$', '$$')}{name}"
        elif self.mount_path not in ("", self.path):
            rule["containerPath"] = self.mount_path.replace("$", "$$")
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
        number = f"{self.vendor:0>4}:{self.product:0>4}".lower()
        return {"usb": {"device": number, **serial}}


class _Group(_Settings):
    paths: list[_Path] = []
    usb: list[_Usb] = Field([], validation_alias=AliasChoices("usb", "usbs"))
    count: int = Field(1, ge=0)


class _Device(_Settings):
    name: str
    groups: list[_Group]


def found(text: str) -> list[ForeignDevice]:
    """Return what looks like a device in a file: settings, a manifest, values, a command line.

    Scalars stay as they are written: 0403 is no number here.
    """
    if all(not line or line.startswith("#") for line in map(str.strip, text.splitlines())):
        return []
    extent, given, trees = Extent(), _COMMAND.findall(text), list[Tree]()
    try:
        trees = yamltree.parse_all(text, extent)
    except TreeError:
        if not given:
            raise
    if given and all(isinstance(one.data, str) for one in trees):  # to YAML it may be one string
        domain = _domain({"image": text, "args": text.split()})
        return [one for value in given for one in _below(value, domain, extent)]
    return [one for tree in trees for one in _below(_written(tree), None, extent)]


def _written(tree: Tree) -> Any:
    """Return the values of a document with scalars as they are written; empty ones are not set."""

    def written(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            some = {key: written(one, (*path, key)) for key, one in value.items()}
            return {key: one for key, one in some.items() if one != ""}
        if isinstance(value, list):
            return [written(one, (*path, index)) for index, one in enumerate(value)]
        return (tree.position(path).text or "").strip()

    return written(tree.data, ())


def _below(value: Any, domain: str | None, extent: Extent) -> Iterator[ForeignDevice]:
    match value:
        case {"name": str(), "groups": _}:
            yield value, domain
        case dict():
            own = _domain(value) or domain
            for one in value.values():
                yield from _below(one, own, extent)
        case list():
            for one in value:
                yield from _below(one, domain, extent)
        case str() if "groups" in value:  # in a ConfigMap, or an argument of a container
            try:
                tree = yamltree.parse(value.removeprefix("--device="), extent)
            except TreeError:
                return
            if isinstance(tree.data, dict | list):
                yield from _below(_written(tree), domain, extent)


def _domain(value: dict[str, Any]) -> str | None:
    """Return the domain of the devices in a mapping: a key, a flag, or its plugin's default."""
    listed = [one for one in value.values() if isinstance(one, list)]
    words = [one for one in itertools.chain(*listed) if isinstance(one, str)]
    flags = dict(itertools.pairwise(part for one in words for part in one.split("=", 1)))
    if isinstance(given := value.get("domain", flags.get("--domain")), str):
        return given
    match value.get("image"):
        case {"repository": repository, "tag": tag}:
            image = _IMAGE.search(f"{repository}:{tag}")
        case other:
            image = _IMAGE.search(str(other))
    if image is None:
        return None
    return "squat.ai" if (int(image[1]), int(image[2])) < (0, 2) else "devic.es"


def converted(devices: Sequence[ForeignDevice], domain: str | None = None) -> list[DraftEntry]:
    """Return the same resources as devhost has them, in a domain or in the one that they had.

    A `ValueError` if nothing says what domain that is, or if they are more than a file may have.
    """
    if len(devices) > limits.RESOURCES_MAX:
        raise ValueError(f"{len(devices)} devices, more than {limits.RESOURCES_MAX}")
    entries: list[DraftEntry] = []
    for device, own in devices:
        if (domain or own) is None:
            raise ValueError(
                f"nothing says in which domain {device['name']} is: give it by --domain; the "
                "plugin's default is devic.es since 0.2.0, and was squat.ai before"
            )
        name = f"{domain or own}/{device['name']}"
        try:
            entry = _entry(name, _Device.model_validate(device).groups)
            _check(entry, entries)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            entry = DraftEntry({}, lost=(f"{name}: {why}",))
        except ValueError as error:
            entry = DraftEntry({}, lost=(f"{name}: {error}",))
        entries.append(entry)
    return entries


def _check(entry: DraftEntry, before: Iterable[DraftEntry]) -> None:
    """Raise `ValueError` for an invalid resource: what is wrong is wrong in the original."""
    if any(one.resource.get("name") == entry.resource["name"] for one in before):
        raise ValueError("a second resource of this name")
    for problem in loads(draft.text((), [entry])).problems:
        if problem.severity == "error":
            raise ValueError(problem.message)


def _entry(name: str, groups: Sequence[_Group]) -> DraftEntry:
    """Return a device as a resource, or raise `ValueError` if devhost has no such resource."""
    paths = [one.paths for one in groups]
    comments, lost = [], []
    resource: _Entry = {"name": name}
    if groups and all(len(one.usb) == 1 and not one.paths for one in groups):
        resource["sources"] = [one.usb[0].source() for one in groups]
        comments.append(_EACH_USB)
    elif not groups or not all(paths) or any(one.usb for one in groups):
        raise ValueError("needs groups of paths alone, or of one USB device each")
    elif len(paths) == 1:
        resource |= _set(paths[0])
        comments += [_LIMITS] if "maxDevices" in resource else []
    elif any(len(one) > 1 for one in paths):
        raise ValueError("several groups of several paths: write a resource with `group`")
    elif len({one.access for (one,) in paths}) > 1:
        raise ValueError("paths with different mountPath, permissions or type")
    else:  # each match is a device
        resource["sources"] = [one.source() for (one,) in paths]
        resource["allocate"] = _allocate(paths[0], paths[0][0])
    counts = {one.count or 1 for one in groups}
    if min(counts) > 1:
        resource["replicas"] = min(counts)
    if len(counts) > 1:
        lost.append(f"{name}: {_COUNTS}")
    return DraftEntry(resource, tuple(comments), tuple(lost))


def _set(paths: Sequence[_Path]) -> _Entry:
    """Return the resource of one group: devices are what its glob matches, or its first path."""
    globs = [one for one in paths if set(one.path) & set("*?[")]
    if len(globs) > 1:
        raise ValueError("several globs in one group: write a resource with `group`")
    first = (globs or paths)[0]
    most = [one.limit or 1 for one in paths if one is not first] if globs else []
    limit = {"maxDevices": min(most)} if most else {}
    return {"sources": [first.source()], "allocate": _allocate(paths, first), **limit}


def _allocate(paths: Sequence[_Path], found: _Path) -> _Entry:
    """Return what a container gets: what a source finds, and the other paths as they are."""
    nodes, mounts = (
        [one.rule(constant=one is not found) for one in paths if one.type == kind]
        for kind in ("Device", "Mount")
    )
    return {"devices": nodes} | ({"mounts": mounts} if mounts else {})
