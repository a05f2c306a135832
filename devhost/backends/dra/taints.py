"""The taints of devices: pods are not given a device, or evicted where they have it.

Kubernetes evicts the pods of a claim whose device has a taint NoExecute that the claim does not
tolerate (k8s.io/kubernetes v1.37.1 pkg/controller/devicetainteviction).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from devhost.backends.dra.pool import PoolDevice
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice
from devhost.model.records import ClaimedDevice

_LOST: Final = {Cause.NOT_FOUND, Cause.INCOMPLETE, Cause.CHECK_FAILED}
_LOG: Final = logging.getLogger(__name__)


class Taint(NamedTuple):
    """Why pods should not be given a device.

    Attributes:
        kind: What is wrong, the name in the key: ``missing`` or ``unhealthy``.
        cause: Why, in short, the value.
        text: Why, for people.
        is_lost: Whether pods that have the device cannot use it any longer; not where only devhost
            does not know it, or an edit of the configuration has taken it off the list.
    """

    kind: str
    cause: str
    text: str
    is_lost: bool = False


_RENUMBERED: Final = Taint(
    "unhealthy", "renumbered", "it came back with another number, which its containers lack", True
)
_NOT_OFFERED: Final = Taint("unhealthy", "not-offered", "not offered any more")


class PoolTaints:
    """The taints of the devices of a pool, and whose pods are evicted: those lost for long enough.

    Attributes:
        by_name: The taints, by the device's name.
        evicted: The names of the devices whose pods are evicted.
        next_at: When there is one more, on the clock of the event loop; ``None`` if there is none.
    """

    def __init__(self) -> None:
        self.by_name: Mapping[str, Taint] = {}
        self.evicted = frozenset[str]()
        self.next_at: float | None = None
        self._lost_since: dict[str, float] = {}

    def update(
        self,
        resource: Resource,
        devices: Sequence[PoolDevice],
        claimed: Mapping[str, ClaimedDevice],
        now: float,
    ) -> None:
        """Take over the devices of the pool, and those that claims have, by name."""
        self.by_name = _device_taints(devices, claimed, self.by_name)
        lost = [name for name in claimed if name in self.by_name and self.by_name[name].is_lost]
        since = {name: self._lost_since.get(name, now) for name in lost}
        self._lost_since = since if resource.evict else {}
        due = {name: lost_at + resource.evict_after for name, lost_at in self._lost_since.items()}
        former, self.evicted = self.evicted, frozenset(name for name in due if due[name] <= now)
        self.next_at = min((at for at in due.values() if at > now), default=None)
        for name in self.evicted - former:
            reason = self.by_name[name].text
            fields = {"resource": resource.name, "device": name, "reason": reason}
            _LOG.warning("pods of a device are evicted", extra={"fields": fields})

    def entries(self, driver: str) -> dict[str, dict[str, str]]:
        """Return the taints as they stand in slices, by the device's name."""
        return {
            name: {
                "key": f"{driver}/{taint.kind}",
                "value": taint.cause,
                "effect": "NoExecute" if name in self.evicted else "NoSchedule",
            }
            for name, taint in self.by_name.items()
        }


def _device_taints(
    devices: Sequence[PoolDevice],
    claimed: Mapping[str, ClaimedDevice],
    former: Mapping[str, Taint],
) -> dict[str, Taint]:
    """Return the taints of the devices of a pool, by name.

    `former` are those before: a device that was lost when it left the list still is.
    """
    taints: dict[str, Taint] = {}
    for name, device, _ in devices:
        if name in claimed and claimed[name].moved and device.is_present:
            taints[name] = _RENUMBERED
        elif (taint := _taint_of(device)) is not None:
            taints[name] = taint
    for name in claimed.keys() - {device.name for device in devices}:
        before = former.get(name, _NOT_OFFERED)
        taints[name] = before if before.is_lost else _NOT_OFFERED
    return taints


def _taint_of(device: HostDevice) -> Taint | None:
    verdict = device.verdict
    if verdict is None:
        return None
    kind = "unhealthy" if device.is_present or device.is_leaving else "missing"
    cause = verdict.cause.value.replace(" ", "-")
    return Taint(kind, cause, verdict.text, verdict.cause in _LOST)
