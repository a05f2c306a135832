"""The settings of other device plugins as one configuration."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from devhost import limits
from devhost.drafts import draft, generic_device_plugin, smarter_device_manager
from devhost.drafts.draft import DraftEntry
from devhost.drafts.foreign import Foreign, GenericDevices
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.loading.loader import loads
from devhost.model import names


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
    entries: list[DraftEntry] = []
    lost: list[str] = []
    for entry, missing in pairs:
        name = entry.resource.get("name")
        if name is not None and (problem := _problem(entry, entries)):
            entry, more = draft.lost(f"{name}: {problem}")  # noqa: PLW2901
            lost += more
        entries.append(entry)
        lost += missing
    count = sum(bool(one.resource) for one in entries)
    return Conversion(draft.text(header, entries), count, tuple(lost))


def _pairs(
    found: Sequence[Foreign], files: HostFiles, dev: Iterable[str], domain: str | None
) -> Iterator[tuple[DraftEntry, tuple[str, ...]]]:
    """Yield each resource, and what cannot be carried over."""
    for one in found:
        if isinstance(one, GenericDevices):
            own = domain or one.domain or generic_device_plugin.DOMAIN
            for device in one.devices:
                yield generic_device_plugin.entry(device, own)
        else:
            known = names.natural({*files.walk("/dev"), *dev})
            own = domain or smarter_device_manager.DOMAIN
            yield from smarter_device_manager.entries(one.devices, own, known, files)


def _problem(entry: DraftEntry, before: Iterable[DraftEntry]) -> str | None:
    """Return why a resource is not valid: what is wrong in it is wrong in the original."""
    if any(one.resource.get("name") == entry.resource["name"] for one in before):
        return "a second resource of this name"
    problems = loads(draft.text((), [entry])).problems
    return next((one.message for one in problems if one.severity == "error"), None)
