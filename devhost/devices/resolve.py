"""Decides which devices each resource has: one pass over what was found, in the order of the file.

All that resources compete for is decided here: nodes (`NodeOffers`) and device IDs (`IdQuota`).
Pure: no clock, no file, no thread. A running host and the dry run call the same.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from devhost.devices.context import OwnerOf, Owners
from devhost.devices.identify import Identified, identify
from devhost.devices.node_offers import NodeOffers
from devhost.model import limits
from devhost.model.config import Resource
from devhost.model.device import Snapshot


class Resolver:
    """The nodes and IDs that resources have; methods also return which to read again."""

    def __init__(self, reserved: Mapping[str, Collection[str]] | None = None) -> None:
        self._nodes, self._ids = NodeOffers(reserved), IdQuota()

    def reconfigure(self, resources: Sequence[Resource]) -> set[str]:
        """Set the resources of the file, in its order; others give up what they have."""
        return self._nodes.reconfigure(resources) | self._ids.reconfigure(resources)

    def release(self, name: str) -> set[str]:
        """Give up all that a resource has."""
        return self._nodes.release(name) | self._ids.take(name, 0, truncated=False)

    def resolve(
        self, forecast: Identified, previous: Snapshot, *, outdated: bool = False
    ) -> tuple[Identified | None, set[str]]:
        """Return the devices of a resource; ``None`` if it has to be read again first.

        The same object, if it was found by the `previous` devices and by what other resources offer
        now. It is `outdated` if something may have changed since.
        """
        identified, resource, nodes = forecast, forecast.context.resource, self._nodes
        name = resource.name
        owner_of, links_to_come = partial(nodes.owner, name), nodes.links_to_come(name)
        if not _comes_true(forecast, previous, owner_of, links_to_come):
            context = replace(
                forecast.context,
                previous=previous,
                owners=Owners(owner_of),
                links_to_come=links_to_come,
            )
            identified = identify(forecast.selection, context)
        identified = identified.limited(self._ids.max_ids(name) // resource.replicas)
        devices = (*identified.devices.values(), *identified.missing.values())
        offers = frozenset(key for device in devices for key in device.keys)
        # It may be gone since, and that why nobody else offers it.
        if outdated and not offers <= nodes.offers(name):
            return None, {name}
        owners, failed = identified.context.owners, identified.selection.failed_sources
        may_come = nodes.reserved(name) if failed else owners.keys()
        again = nodes.offer(name, offers, filter(owners.get, owners), may_come)
        return identified, again | self._ids.take(
            name, len(devices) * resource.replicas, truncated=identified.truncated > 0
        )


def _comes_true(
    forecast: Identified, previous: Snapshot, owner_of: OwnerOf, links_to_come: bool
) -> bool:
    """Whether what a forecast was made by is so."""
    context = forecast.context
    return (
        context.previous is previous
        and (links_to_come == context.links_to_come or not previous.scanned)
        and all(owner_of(key) == owner for key, owner in context.owners.items())
    )


class IdQuota:
    """How many device IDs each resource may have, of those that a process offers.

    Each has those that it declares; the rest goes to the first that need it.
    """

    def __init__(self) -> None:
        self._declared: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._truncated = set[str]()

    def reconfigure(self, resources: Sequence[Resource]) -> set[str]:
        """Set how many IDs each resource of the file declares."""
        self._declared = {resource.name: resource.declared_ids for resource in resources}
        self._taken = {name: self._taken.get(name, 0) for name in self._declared}
        self._truncated &= self._declared.keys()
        return set(self._truncated)

    def max_ids(self, name: str) -> int:
        """Return how many IDs a resource may have; what it has it keeps."""
        counts = (max(count, self._declared[rival]) for rival, count in self._taken.items())
        elsewhere = sum(counts) - max(self._taken[name], self._declared[name])
        return max(self._taken[name], limits.DEVICE_IDS_MAX - elsewhere)

    def take(self, name: str, count: int, *, truncated: bool) -> set[str]:
        """Set how many IDs a resource has, and whether it would have more."""
        if name not in self._taken:
            return set()
        before, self._taken[name] = self._taken[name], count
        (self._truncated.add if truncated else self._truncated.discard)(name)
        return self._truncated - {name} if count < before else set()
