"""The settings of other device plugins as one configuration."""

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from devhost import limits
from devhost.drafts import draft, generic_device_plugin, smarter_device_manager
from devhost.drafts.draft import DraftEntry
from devhost.drafts.foreign import Foreign, GenericDevices
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.loading.loader import loads
from devhost.model import names

_COMPARED_MAX: Final = 1000  # paths: each is compared with each
_OVERLAPS: Final = "Other resources of this file offer its nodes as well."


@immutable
class Conversion:
    """What became of the settings of other plugins.

    Attributes:
        text: The configuration.
        converted: The number of its resources.
        lost: What could not be carried over.
    """

    text: str
    converted: int
    lost: tuple[str, ...]


def converted(
    found: Sequence[Foreign],
    header: Iterable[str],
    files: HostFiles,
    dev: Iterable[str] = (),
    domain: str | None = None,
) -> Conversion:
    """Return the configuration that serves the same resources. Blocks.

    Args:
        found: The settings.
        header: Comments at the beginning of the file.
        files: The host's files, to see what is below /dev.
        dev: Paths below /dev that other nodes have.
        domain: The domain of the resources; by default as it was.

    Raises:
        OSError: /dev cannot be read.
    """
    pairs = [*itertools.islice(_pairs(found, files, dev, domain), limits.RESOURCES_MAX + 1)]
    if len(pairs) > limits.RESOURCES_MAX:
        pairs[-1] = draft.lost(f"the settings after the first {limits.RESOURCES_MAX}")
    entries, lost = _distinct(pairs)
    text = draft.text(header, _overlapping(entries))
    return Conversion(text, sum(bool(one.resource) for one in entries), lost)


def _pairs(
    found: Sequence[Foreign], files: HostFiles, dev: Iterable[str], domain: str | None
) -> Iterator[tuple[DraftEntry, tuple[str, ...]]]:
    """Yield each resource, and what cannot be carried over."""
    domains = [one.domain for one in found if isinstance(one, GenericDevices)]
    given = next(filter(None, domains), generic_device_plugin.DOMAIN)
    for one in found:
        if isinstance(one, GenericDevices):
            own = domain or one.domain or given
            for device in one.devices:
                yield generic_device_plugin.entry(device, own)
            yield from map(draft.lost, one.other)
        else:
            known = names.natural({*smarter_device_manager.below_dev(files), *dev})
            own = domain or smarter_device_manager.DOMAIN
            yield from smarter_device_manager.entries(one.devices, own, known, files)


def _distinct(
    pairs: Iterable[tuple[DraftEntry, tuple[str, ...]]],
) -> tuple[list[DraftEntry], tuple[str, ...]]:
    """Return entries with different names, and what is lost."""
    entries: list[DraftEntry] = []
    lost: list[str] = []
    seen: set[str | None] = set()
    for entry, missing in pairs:
        lost += missing
        name = entry.resource.get("name")
        problem = "a second resource of this name" if name in seen else _problem(entry)
        if name is not None and problem:
            without, more = draft.lost(f"{name}: {problem}")
            entries.append(without)
            lost += more
            continue
        seen.add(name)
        entries.append(entry)
    return entries, tuple(lost)


def _problem(entry: DraftEntry) -> str | None:
    """Return why a resource is not valid: what is wrong in it is wrong in the original."""
    if not entry.resource:
        return None
    loaded = loads(draft.text((), [entry]))
    errors = [one for one in loaded.problems if one.severity == "error"]
    return errors[0].message if errors else None


def _overlapping(entries: Sequence[DraftEntry]) -> list[DraftEntry]:
    """Return the entries; those that offer nodes of an earlier one say so."""
    result: list[DraftEntry] = []
    before: list[str] = []
    for entry in entries:
        paths = [path for source in entry.resource.get("sources", ()) for path in _paths(source)]
        del paths[max(_COMPARED_MAX - len(before), 0) :]
        if any(_meet(one, other) for one in paths for other in before):
            resource: dict[str, Any] = {**entry.resource, "overlap": "allow"}
            entry = replace(entry, resource=resource, comments=(*entry.comments, _OVERLAPS))  # noqa: PLW2901
        before += paths
        result.append(entry)
    return result


def _paths(source: Any) -> list[str]:
    """Return the paths of a source, as globs."""
    if isinstance(source, str):
        return [source]
    if "dev" in source:
        return [f"/dev/{re.sub(r'[(].*?[)]', '*', source['dev'])}"]
    glob = source.get("glob", [])
    glob = glob["paths"] if isinstance(glob, dict) else glob
    return [glob] if isinstance(glob, str) else glob


def _meet(one: str, other: str) -> bool:
    """Whether two globs may have the same node, or one a directory above the other."""
    pairs = ((one, other), (other, one))
    return any(fnmatch.fnmatchcase(a, b) or fnmatch.fnmatchcase(a, f"{b}/*") for a, b in pairs)
