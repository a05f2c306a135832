"""Errors and warnings of a resource's sources."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from devhost.allocation.variables import BUILT_IN_VARIABLES, CONTAINER_VARIABLES
from devhost.config.yaml_tree import CheckProblem, Path, error, warning
from devhost.hostfs.device_classes import ENUMERATED_NAMES
from devhost.hostfs.files import is_in_dev, is_wild
from devhost.model import limits, pattern
from devhost.model.config import Resource
from devhost.model.hardware_sources import Pci, Sysfs, Usb
from devhost.model.pattern import PatternError
from devhost.model.sources import Dev, Directory, Glob, Kind, Static

# Limits for all patterns of a file together: their number and their characters.
_PATTERNS_MAX: Final = 1000
_PATTERN_TEXT_MAX: Final = 100_000
_LITERAL: Final = re.compile(r"[\w/-]*", re.ASCII)
_RAW_USB: Final = "bus/usb/001/002"  # a replug changes the number


def check_amounts(resources: Iterable[tuple[Path, Resource]]) -> Iterator[CheckProblem]:
    """Refuse more patterns than can be compiled in bounded time and memory, and more device IDs."""
    patterns: set[str] = set()
    total = 0
    for path, resource in resources:
        for index, source in enumerate(resource.sources):
            if isinstance(source.kind, Dev):
                patterns.add(source.kind.pattern)
            if len(patterns) > _PATTERNS_MAX or sum(map(len, patterns)) > _PATTERN_TEXT_MAX:
                yield error(
                    (*path, "sources", index),
                    f"with this source, the file has more than {_PATTERNS_MAX} patterns, or more "
                    f"than {_PATTERN_TEXT_MAX} characters in them",
                )
                return
        total += resource.declared_ids
        if total > limits.DEVICE_IDS_MAX:
            yield error(
                (*path, "replicas" if resource.replicas > 1 else "sources"),
                f"with this resource, the file has {total} device IDs, more than "
                f"{limits.DEVICE_IDS_MAX}",
                on_key=True,
            )
            return


def check_sources(resource: Resource) -> Iterator[CheckProblem]:
    """Yield errors and warnings of a resource's sources, and of IDs that would change."""
    for index, source in enumerate(resource.sources):
        source_path = ("sources", index)
        match source.kind:
            case Dev() as dev:
                yield from _check_pattern((*source_path, "dev", "pattern"), dev)
            case Directory(path=directory, types=("file",)) if is_in_dev(directory):
                message = "finds plain files only; for device nodes, set `types: char`"
                yield warning((*source_path, "directory"), message)
        if isinstance(source.kind, Usb | Pci) and source.kind.split and resource.group is not None:
            kind_key = type(source.kind).__name__.lower()
            message = "split makes each node a device, and group joins nodes: remove one of them"
            yield error((*source_path, kind_key, "split"), message, on_key=True)
        if source.cdi is not None and (len(resource.sources) > 1 or resource.group is not None):
            message = "stands alone, without `group`: make a resource for each kind"
            yield error((*source_path, "cdi"), message, on_key=True)
    yield from _check_roles(resource)
    yield from _check_ids(resource)


def _check_roles(resource: Resource) -> Iterator[CheckProblem]:
    roles: set[str | None] = set()
    for index, source in enumerate(resource.sources):
        if source.optional and resource.group is None:
            message = "only devices with several nodes can lack one; set `group` as well"
            yield error(("sources", index, "optional"), message, on_key=True)
        if source.role is not None and source.role in roles:
            message = f"duplicate name {source.role!r}: another source has the same `as`"
            yield error(("sources", index, "as"), message)
        roles.add(source.role)
    if resource.group is not None and all(source.optional for source in resource.sources):
        message = "at least one source must not be optional"
        yield error(("sources",), message, on_key=True)


def _check_ids(resource: Resource) -> Iterator[CheckProblem]:
    """Warn of IDs that change."""
    has_ids = resource.id is not None or resource.group is not None
    for index, source in enumerate(() if has_ids else resource.sources):
        if (name := _enumerated_name(source.kind)) is not None:
            stable = "use the links below /dev/*/by-id or by-path, or set `id`"
            if isinstance(source.kind, Sysfs):
                stable = "set `id`, such as `${place}`, or select them by `usb` or `pci`"
            elif name == _RAW_USB:
                stable = "select them by `usb`"
            yield warning(
                ("sources", index),
                f"IDs such as '{name}' depend on the order of discovery and may change; {stable}",
            )


def _check_pattern(path: Path, dev: Dev) -> Iterator[CheckProblem]:
    try:
        groups = pattern.group_names(dev.pattern)
    except PatternError as problem:
        yield error(path, str(problem))
        return
    for group in groups:
        if group in BUILT_IN_VARIABLES:
            message = f"the group '{group}' has the name of a built-in variable; rename it"
            yield error(path, message)


def _enumerated_name(kind: Kind) -> str | None:
    """Return the first enumerated name that a source finds, judging by how its text begins."""
    texts: list[str] = []
    match kind:
        case Sysfs(subsystem=subsystem, name=globs):
            names = [name.rpartition("/")[2] for name in ENUMERATED_NAMES.get(subsystem, ())]
            return next((name for name in names if pattern.matches_any(name, globs or "*")), None)
        case Dev(pattern=text):
            texts = [text.lstrip("(?:")]
        case Glob(paths=paths):
            texts = [path.removeprefix("/dev/") for path in paths if path.startswith("/dev/")]
    for name in (*itertools.chain.from_iterable(ENUMERATED_NAMES.values()), _RAW_USB):
        beginning = "sd([a-z](?![A-Za-z])|[^A-Za-z])"
        if name != "sda":
            beginning = f"{name.rstrip('0128/')}[^A-Za-z]"
        if any(re.match(beginning, text) for text in texts):
            return name
    return None


def is_single(resource: Resource) -> bool:
    """Return whether the sources can find at most one device."""
    if resource.group is not None:
        return not resource.group.names - CONTAINER_VARIABLES
    if len(resource.sources) != 1:
        return False
    match resource.sources[0].kind:
        case Dev(pattern=text):
            return _LITERAL.fullmatch(text) is not None
        case Glob(paths=(path,)):
            return not is_wild(path)
        case Static(count=count, ids=ids):
            return (count or len(ids or ())) <= 1
    return False
