"""Errors and warnings of a resource's sources."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from devhost import limits
from devhost.allocation.variables import BUILT_IN_VARIABLES, CONTAINER_VARIABLES
from devhost.loading.lookalikes import (
    counted_by_glob,
    counted_by_pattern,
    directory_mistake,
    glob_mistake,
    glob_problem,
    variable_mistake,
)
from devhost.loading.yamltree import Finding, Path
from devhost.model import names, pattern
from devhost.model.config import Resource
from devhost.model.pattern import PatternError
from devhost.model.sources import Dev, Directory, Glob, Source, Static

# Limits for all patterns of a file together: their number and their characters.
_PATTERNS_MAX: Final = 1000
_PATTERN_TEXT_MAX: Final = 100_000
_GLOB_MAX: Final = 1000
_PARTS_MAX: Final = 100
_ANY_DEPTHS_MAX: Final = 3
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LITERAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-.")


def check_sources(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield errors and warnings of patterns, tokens and IDs."""
    for index, source in enumerate(resource.sources):
        yield from _source(source, (*path, "sources", index))
    yield from _nodes(path, resource)
    yield from _limits(path, resource)
    yield from _stable_ids(path, resource)


def check_patterns(resources: Iterable[tuple[Path, Resource]]) -> Iterator[Finding]:
    """Refuse more patterns than can be compiled in reasonable time and memory."""
    seen: set[str] = set()
    for path, resource in resources:
        for index, source in enumerate(resource.sources):
            match source.kind:
                case Dev(pattern=text):
                    seen.add(text)
            if len(seen) > _PATTERNS_MAX or sum(map(len, seen)) > _PATTERN_TEXT_MAX:
                message = (
                    f"with this source, the file has more than {_PATTERNS_MAX} patterns, or more "
                    f"than {_PATTERN_TEXT_MAX} characters in them"
                )
                yield "error", (*path, "sources", index), message, False
                return


def check_device_ids(resources: Iterable[tuple[Path, Resource]]) -> Iterator[Finding]:
    """Refuse more tokens and shares than all resources together may have."""
    total, most = 0, limits.DEVICE_IDS_MAX
    for path, resource in resources:
        total += resource.declared_ids
        if total > most:
            message = f"with this resource, the file has {total} device IDs, more than {most}"
            yield (
                "error",
                (*path, "replicas" if resource.replicas > 1 else "sources"),
                message,
                True,
            )
            return


def _source(source: Source, path: Path) -> Iterator[Finding]:
    kind = source.kind
    match kind:
        case Directory():
            base = (*path, "directory")
            if problem := directory_mistake(kind.path):
                yield "error", (*base, "path"), problem, False
            for option, texts in (("include", kind.include or ()), ("exclude", kind.exclude)):
                yield from check_globs(texts, (*base, option))
        case Dev():
            base = (*path, "dev")
            yield from _pattern(kind.pattern, (*base, "pattern"))
            yield from check_globs(kind.exclude, (*base, "exclude"))
            if kind.pattern.startswith("/"):
                message = "a dev pattern matches the path below /dev; remove the leading '/dev/'"
                yield "error", (*base, "pattern"), message, False
        case Static():
            yield from _static_ids(kind, (*path, "static", "ids"))
        case Glob():
            yield from check_globs(kind.paths, (*path, "glob", "paths"))
            yield from _walks(kind.paths, (*path, "glob", "paths"))
            yield from check_globs(kind.exclude, (*path, "glob", "exclude"))


def check_globs(texts: Sequence[str], path: Path) -> Iterator[Finding]:
    """Refuse globs with mistakes, and long ones."""
    yield from check_lengths(texts, path)
    for index, text in enumerate(texts):
        if len(text) <= _GLOB_MAX and (problem := glob_mistake(text)):
            yield "error", (*path, index), problem, False


def check_lengths(globs: Sequence[str], path: Path) -> Iterator[Finding]:
    """Refuse long globs: Python takes quadratic time for them."""
    for index, text in enumerate(globs):
        if len(text) > _GLOB_MAX:
            message = f"glob of {len(text)} characters; at most {_GLOB_MAX} are allowed"
            yield "error", (*path, index), message, False


def _walks(globs: Sequence[str], path: Path) -> Iterator[Finding]:
    """Refuse globs that would read the same directories many times; warn of directories."""
    for index, text in enumerate(globs):
        if text.endswith("/"):
            message = f"ends with '/'; write {text}* for what is in a directory"
            yield "warning", (*path, index), message, False
        parts = text.split("/")
        if len(parts) > _PARTS_MAX:
            message = f"path of {len(parts)} parts; at most {_PARTS_MAX} are allowed"
            yield "error", (*path, index), message, False
        elif parts.count("**") > _ANY_DEPTHS_MAX:
            message = f"more than {_ANY_DEPTHS_MAX} '**' in the path"
            yield "error", (*path, index), message, False


def _pattern(text: str, path: Path) -> Iterator[Finding]:
    try:
        groups = pattern.group_names(text)
    except PatternError as error:
        yield "error", path, str(error), False
        return
    for group in groups:
        if group in BUILT_IN_VARIABLES:
            message = f"the group '{group}' has the name of a built-in variable; rename it"
            yield "error", path, message, False
    if problem := variable_mistake(text):
        yield "error", path, problem, False
    elif problem := glob_problem(text):
        yield "warning", path, problem, False


def _static_ids(static: Static, path: Path) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, device_id in enumerate(static.ids or ()):
        problem = names.id_problem(device_id)
        if device_id in seen:
            problem = f"duplicate ID {device_id!r}"
        if problem:
            yield "error", (*path, index), problem, False
        seen.add(device_id)


def _nodes(path: Path, resource: Resource) -> Iterator[Finding]:
    """Check the options of sources for devices that have several nodes."""
    roles: set[str] = set()
    for index, source in enumerate(resource.sources):
        where = (*path, "sources", index)
        if source.optional and resource.group is None:
            message = "only devices with several nodes can lack one; set `group` as well"
            yield "error", (*where, "optional"), message, True
        if source.role is None:
            continue
        if not _ROLE.fullmatch(source.role):
            message = f"{source.role!r} should be letters, digits and '_', beginning with a letter"
            yield "error", (*where, "as"), message, False
        elif source.role in roles:
            message = f"duplicate name {source.role!r}: another source has the same `as`"
            yield "error", (*where, "as"), message, False
        roles.add(source.role)
    if resource.group is not None and all(source.optional for source in resource.sources):
        message = "at least one source must not be optional"
        yield "error", (*path, "sources"), message, True


def _limits(path: Path, resource: Resource) -> Iterator[Finding]:
    most, least = resource.max_devices, resource.min_devices
    if most is not None and least is not None and least > most:
        message = f"minDevices {least} is more than maxDevices {most}; some would always be missing"
        yield "error", (*path, "minDevices"), message, False


def _stable_ids(path: Path, resource: Resource) -> Iterator[Finding]:
    if resource.id is not None or resource.group is not None:
        return
    for index, source in enumerate(resource.sources):
        match source.kind:
            case Dev(pattern=text):
                name = None if glob_problem(text) else counted_by_pattern(text)
            case Glob(paths=paths):
                fit = (text for text in paths if len(text) <= _GLOB_MAX)
                name = next(filter(None, map(counted_by_glob, fit)), None)
            case _:
                continue
        if name is not None:
            message = (
                f"IDs such as '{name}' depend on the order of discovery and may change; "
                "use the links below /dev/*/by-id or by-path, or set `id`"
            )
            yield "warning", (*path, "sources", index), message, False


def is_single(resource: Resource) -> bool:
    """Whether the sources can find at most one device."""
    if resource.group is not None:
        return not resource.group.names - CONTAINER_VARIABLES
    if len(resource.sources) != 1:
        return False
    match resource.sources[0].kind:
        case Dev(pattern=text):
            return set(text) <= _LITERAL - {"."}
        case Glob(paths=(only,)):
            return not set(only) & set("*?[")
        case Static(count=count, ids=ids):
            return (count or len(ids or ())) <= 1
        case _:
            return False
