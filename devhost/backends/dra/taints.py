"""The taints of devices: pods are not given a device, or evicted where they have it; pure.

Kubernetes evicts the pods of a claim whose device has a taint NoExecute that the claim does not
tolerate (k8s.io/kubernetes v1.37.1 pkg/controller/devicetainteviction).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from devhost.backends.dra.pool import PoolDevice
from devhost.model.device import Cause, HostDevice
from devhost.model.records import ClaimedDevice

_LOST: Final = {Cause.NOT_FOUND, Cause.INCOMPLETE, Cause.CHECK_FAILED}


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

    def entry(self, driver: str, *, evicts: bool) -> dict[str, Any]:
        """Return it as it stands in a slice."""
        effect = "NoExecute" if evicts else "NoSchedule"
        return {"key": f"{driver}/{self.kind}", "value": self.cause, "effect": effect}


_RENUMBERED: Final = Taint(
    "unhealthy", "renumbered", "it came back with another number, which its containers lack", True
)
_NOT_OFFERED: Final = Taint("unhealthy", "not-offered", "not offered any more")


def device_taints(
    devices: Sequence[PoolDevice],
    claimed: Mapping[str, ClaimedDevice],
    former: Mapping[str, Taint],
) -> dict[str, Taint]:
    """Return the taints of the devices of a pool, by name.

    `claimed` are those that claims have, by name, and `former` the taints before: a device that was
    lost when it left the list still is.
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


class Evictions:
    """The devices whose pods are evicted: those that are lost for long enough.

    Attributes:
        names: Their names.
        next_at: When there is one more, on the clock of the event loop; ``None`` if there is none.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.names = frozenset[str]()
        self.next_at: float | None = None

    def update(self, lost: Iterable[str], after: float, now: float) -> None:
        """Set which devices are lost now; their pods are evicted after so many seconds."""
        self._since = {name: self._since.get(name, now) for name in lost}
        due = {name: since + after for name, since in self._since.items()}
        self.names = frozenset(name for name in due if due[name] <= now)
        self.next_at = min((at for at in due.values() if at > now), default=None)
