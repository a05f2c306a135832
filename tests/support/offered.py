"""IDs as a backend hands them to the node."""

from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId


def offered(*advertised_ids: str) -> tuple[OfferedId, ...]:
    """Return IDs as kubelet has them, with their devices."""
    return tuple(map(offered_id, advertised_ids))
