"""The names under which kubelet knows devices."""

from collections.abc import Iterable
from typing import NamedTuple

from devhost.model.names import natural_key


class AdvertisedName(NamedTuple):
    """The name under which a device is, or was, offered to pods.

    Attributes:
        device: Its ID, without the suffix of a share.
        shared: Whether it is advertised as shares (``id::0`` …).
    """

    resource: str
    device: str
    shared: bool

    def __str__(self) -> str:
        return f"{self.resource} {self.device}"


class OfferedId(NamedTuple):
    """An ID in the list that kubelet gets, and the device of which it is all, or a share."""

    id: str
    device: str

    def name(self, resource: str) -> AdvertisedName:
        """Return the name of its device."""
        return AdvertisedName(resource, self.device, shared=self.id != self.device)


def sort_ids(ids: Iterable[OfferedId]) -> tuple[OfferedId, ...]:
    """Return IDs in natural order."""
    return tuple(sorted(ids, key=lambda offered: natural_key(offered.id)))
