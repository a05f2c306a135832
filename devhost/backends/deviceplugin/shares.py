"""The IDs under which kubelet knows devices: that of the device, or ``id::0`` … of its shares."""

from typing import Final

from devhost.model.advertised import OfferedId

_SHARE: Final = "::"


def offered_ids(device_id: str, replicas: int) -> tuple[OfferedId, ...]:
    """Return the IDs of a device: its own, or one for each share."""
    if replicas == 1:
        return (OfferedId(device_id, device_id),)
    ids = (f"{device_id}{_SHARE}{share}" for share in range(replicas))
    return tuple(OfferedId(share_id, device_id) for share_id in ids)


def offered_id(advertised_id: str) -> OfferedId:
    """Return an ID with its device; the suffix of a share is cut from the right."""
    is_share = _SHARE in advertised_id
    device = advertised_id.rpartition(_SHARE)[0] if is_share else advertised_id
    return OfferedId(advertised_id, device)
