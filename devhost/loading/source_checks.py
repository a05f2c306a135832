"""Errors and warnings of a resource's sources."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from devhost.allocation.variables import BUILT_IN_VARIABLES, CONTAINER_VARIABLES
from devhost.hostfs.files import is_in_dev, is_wild
from devhost.loading.yamltree import CheckProblem, Path
from devhost.model import limits, pattern
from devhost.model.config import Resource
from devhost.model.hardware_sources import USB_NODE, Pci, Sysfs, Usb
from devhost.model.pattern import PatternError
from devhost.model.sources import Dev, Directory, Glob, Kind, Static

# Limits for all patterns of a file together: their number and their characters.
_PATTERNS_MAX: Final = 1000
_PATTERN_TEXT_MAX: Final = 100_000
_LITERAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-")
_WILD: Final = re.compile(r"[*?[]")
# Names that the kernel numbers in the order of discovery, so that a reboot may assign them to other
# devices, by subsystem; and an ID that stays, where each device has its own.
_FORMS: Final = (
    ("tty", ("ttyUSB{}", "ttyACM{}"), "${place}"),
    ("hidraw", ("hidraw{}",), "${place}"),
    ("video4linux", ("video{}",), "${place}-${attr.name}-${attr.index}"),
    ("video4linux", ("v4l-subdev{}",), None),
    ("media", ("media{}",), "${place}-${attr.model}"),
    ("gpio", ("gpiochip{}",), "${parent}"),
    ("i2c-dev", ("i2c-{}",), "${attr.name}"),
    ("iio", ("iio:device{}",), "${parent}-${attr.name}"),
    ("input", ("input/event{}", "input/js{}", "input/mouse{}"), None),
    ("usbmisc", ("usb/lp{}", "cdc-wdm{}"), "${place}"),
    ("drm", ("dri/card{}",), None),
    ("drm", ("dri/renderD128", "dri/renderD129"), "${place}"),
    ("nvme", ("nvme{}", "nvme{}n1", "nvme{}n1p1"), "${place}"),
    ("block", tuple(f"sd{letter}{part}" for letter in "abcdefghij" for part in ("", "1")), None),
    ("scsi", ("sr{}", "sg{}", "st{}", "nst{}"), None),
    ("sound", ("snd/controlC{}", "snd/pcmC{}D0c", "snd/pcmC{}D0p"), None),
)
# The first few of each, for patterns that match only some.
_COUNTED: Final = [
    (subsystem, name, stable)
    for subsystem, forms, stable in _FORMS
    for name in dict.fromkeys(form.format(number) for form in forms for number in range(10))
]
# What is another one after a replug or reboot, and what stays.
_CHANGING: Final = {
    "usb.devnum": ("a replug", "usb.port"),
    "usb.busnum": ("a reboot", "usb.port"),
    "pci.group": ("a reboot", "pci.address"),
}


def check_amounts(resources: Iterable[tuple[Path, Resource]]) -> Iterator[CheckProblem]:
    """Refuse more patterns than can be compiled in bounded time and memory, and more device IDs."""
    patterns: set[str] = set()
    total = 0
    for path, resource in resources:
        for index, source in enumerate(resource.sources):
            if isinstance(source.kind, Dev):
                patterns.add(source.kind.pattern)
            if len(patterns) > _PATTERNS_MAX or sum(map(len, patterns)) > _PATTERN_TEXT_MAX:
                message = (
                    f"with this source, the file has more than {_PATTERNS_MAX} patterns, or more "
                    f"than {_PATTERN_TEXT_MAX} characters in them"
                )
                yield "error", (*path, "sources", index), message, False
                return
        total += resource.declared_ids
        if total > limits.DEVICE_IDS_MAX:
            key = "replicas" if resource.replicas > 1 else "sources"
            message = (
                f"with this resource, the file has {total} device IDs, more than "
                f"{limits.DEVICE_IDS_MAX}"
            )
            yield "error", (*path, key), message, True
            return


def check_sources(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Yield errors and warnings of a resource's sources, and of IDs that would change."""
    for index, source in enumerate(resource.sources):
        where = (*path, "sources", index)
        match source.kind:
            case Dev(pattern=text):
                yield from _pattern((*where, "dev", "pattern"), text)
            case Glob(paths=paths, exclude=excluded):
                yield from _paths((*where, "glob", "paths"), paths)
                yield from _paths((*where, "glob", "exclude"), excluded)
            case Usb(node=choices, class_=[*codes]) if any(
                code.startswith("08") for code in codes
            ) and USB_NODE in (choice.subsystem for choice in choices):
                message = (
                    "a storage device's USB node gives access to the whole disk, whether or not "
                    "the host uses it"
                )
                yield "warning", (*where, "usb", "class"), message, False
            case Directory(path=text, types=("file",)) if is_in_dev(text):
                message = "finds plain files only; for device nodes, set `types: char`"
                yield "warning", (*where, "directory"), message, False
        if isinstance(source.kind, Usb | Pci) and source.kind.split and resource.group is not None:
            message = "split makes each node a device, and group joins nodes: remove one of them"
            yield "error", (*where, type(source.kind).__name__.lower(), "split"), message, True
    yield from _roles(path, resource)
    yield from _ids(path, resource)


def _roles(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Check the options of sources for devices that have several nodes."""
    roles: set[str | None] = set()
    for index, source in enumerate(resource.sources):
        if source.optional and resource.group is None:
            message = "only devices with several nodes can lack one; set `group` as well"
            yield "error", (*path, "sources", index, "optional"), message, True
        if source.role is not None and source.role in roles:
            message = f"duplicate name {source.role!r}: another source has the same `as`"
            yield "error", (*path, "sources", index, "as"), message, False
        roles.add(source.role)
    if resource.group is not None and all(source.optional for source in resource.sources):
        message = "at least one source must not be optional"
        yield "error", (*path, "sources"), message, True


def _ids(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Warn of IDs that change."""
    given = resource.id is not None or resource.group is not None
    for index, source in enumerate(() if given else resource.sources):
        if (name := _counted(source.kind)) is not None:
            better = "use the links below /dev/*/by-id or by-path, or set `id`"
            if isinstance(source.kind, Sysfs):
                stable = next(one for _, path, one in _COUNTED if path.rpartition("/")[2] == name)
                better = f"set `id: {stable}`" if stable else "select them by `usb` or `pci`"
            message = (
                f"IDs such as '{name}' depend on the order of discovery and may change; {better}"
            )
            yield "warning", (*path, "sources", index), message, False
    for index, template in enumerate(resource.id or ()):
        for name in sorted(template.names & _CHANGING.keys()):
            what, stable = _CHANGING[name]
            message = f"${{{name}}} is another one after {what}; ${{{stable}}} stays"
            yield "warning", (*path, "id", index), message, False


def _pattern(path: Path, text: str) -> Iterator[CheckProblem]:
    try:
        groups = pattern.group_names(text)
    except PatternError as error:
        yield "error", path, str(error), False
        return
    for group in groups:
        if group in BUILT_IN_VARIABLES:
            message = f"the group '{group}' has the name of a built-in variable; rename it"
            yield "error", path, message, False
    regex = pattern.GLOB_MARK.sub(lambda mark: {"*": ".*", "?": "."}[mark[0]], text)
    meant = _by_pattern(regex) if regex != text else None
    if meant is not None and pattern.fullmatch(text, meant) is None:
        message = f"does not match {meant}: a regular expression, not a glob; write {regex}"
        yield "warning", path, message, False


def _paths(path: Path, globs: Sequence[str]) -> Iterator[CheckProblem]:
    for index, text in enumerate(globs):
        if text.endswith("/"):
            message = f"ends with '/'; write {text}* for what is in a directory"
            yield "warning", (*path, index), message, False
        below = text.removeprefix("/dev/")
        is_regex = "." in text and not _by_glob(text) and _by_pattern(below)
        if is_regex and below != text:
            yield "error", (*path, index), f"{pattern.NO_REGEX}; for one, write dev: {below}", False


def _counted(kind: Kind) -> str | None:
    """Return a numbered name that a source finds."""
    match kind:
        case Dev(pattern=text):
            return _by_pattern(text)
        case Glob(paths=paths):
            return next(filter(None, map(_by_glob, paths)), None)
        case Sysfs(subsystem=subsystem, name=globs):
            names = (one.rpartition("/")[2] for of, one, _ in _COUNTED if of == subsystem)
            fit = (one for one in names if any(fnmatchcase(one, glob) for glob in globs or "*"))
            return next(fit, None)
    return None


def _by_glob(text: str) -> str | None:
    literal = _WILD.split(text, maxsplit=1)[0]
    paths = (path for _, name, _ in _COUNTED if (path := f"/dev/{name}").startswith(literal))
    return next((path[5:] for path in paths if pattern.glob_matches(text, path)), None)


def _by_pattern(text: str) -> str | None:
    names = (name for _, name, _ in _COUNTED if pattern.fullmatch(text, name) is not None)
    try:
        return next(names, None)
    except PatternError:  # reported by another check
        return None


def is_single(resource: Resource) -> bool:
    """Whether the sources can find at most one device."""
    if resource.group is not None:
        return not resource.group.names - CONTAINER_VARIABLES
    if len(resource.sources) != 1:
        return False
    match resource.sources[0].kind:
        case Dev() | Glob(paths=(_,)) as kind:
            return bool(named_paths(kind))
        case Static(count=count, ids=ids):
            return (count or len(ids or ())) <= 1
        case _:
            return False


def named_paths(kind: Kind) -> list[str]:
    """Return the paths that a source names, without a pattern."""
    match kind:
        case Dev(pattern=text):
            return [f"/dev/{text}"] if set(text) <= _LITERAL else []
        case Glob(paths=globs):
            return [one for one in globs if not is_wild(one)]
    return []
