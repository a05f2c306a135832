"""The IDs by which a device is offered: its own, or ``id::0`` … of its shares."""

from typing import Final

from devhost.model.advertised import OfferedId

_SHARE: Final = "::"


def advertised_ids(device_id: str, replicas: int) -> tuple[str, ...]:
    """Return the IDs of a device: its own, or one for each share."""
    if replicas == 1:
        return (device_id,)
    return tuple(f"{device_id}{_SHARE}{share}" for share in range(replicas))


def offered_ids(device_id: str, replicas: int) -> tuple[OfferedId, ...]:
    """Return the IDs of a device, each with the device."""
    return tuple(map(offered_id, advertised_ids(device_id, replicas)))


def offered_id(advertised_id: str) -> OfferedId:
    """Return an ID with its device; the suffix of a share is cut from the right."""
    is_share = _SHARE in advertised_id
    device = advertised_id.rpartition(_SHARE)[0] if is_share else advertised_id
    return OfferedId(advertised_id, device)
