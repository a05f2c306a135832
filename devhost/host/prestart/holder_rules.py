"""Decides which pod starts with devices, and how they are prepared for it; pure."""

from collections.abc import Iterable, Mapping

from devhost.errors import PreStartError
from devhost.host.prestart.holder_records import Fresh, Holder, HolderRecord, Records
from devhost.immutable import immutable
from devhost.kubelet.podresources import HeldBy
from devhost.model import names
from devhost.model.names import without_share


class TwoHandsError(PreStartError):
    """A device that kubelet has allocated to two pods, by a bug of its own."""


@immutable
class Task:
    """How one device is prepared.

    Attributes:
        fresh: Its IDs without a holder; to be assigned to the pod.
        unprepared: Whether the steps for a holder have to run.
        others: Pods that hold other shares of the device.
    """

    fresh: Mapping[str, Fresh]
    unprepared: bool
    others: frozenset[str] = frozenset()


def only_holder(held: HeldBy, ids: Iterable[str]) -> str:
    """Return the one pod that holds all IDs.

    Raises:
        PreStartError: No pod holds one of them.
        TwoHandsError: Several pods hold them.
    """
    pods: frozenset[str] = frozenset()
    for one in ids:
        if not held.get(one):
            raise PreStartError(
                f"cannot tell which pod starts with device {one}: pod-resources lists none. "
                "It does not show ordinary init containers; if one uses the device and no "
                "other container of its pod does, say `every: start` on the step"
            )
        pods |= held[one]
    if len(pods) > 1:
        raise TwoHandsError(
            f"cannot tell which pod starts with {named(ids)}: held by {', '.join(sorted(pods))}"
        )
    return next(iter(pods))


def task_of(
    device_id: str, own: Iterable[str], pod: str, held: HeldBy, records: Records, kept: str
) -> Task:
    """Return how a device is prepared.

    Raises:
        PreStartError: The records do not tell.
    """
    fresh: dict[str, Fresh] = {}
    for one in own:
        record = records.get(one)
        if isinstance(record, Fresh):
            if pod not in record.former:
                fresh[one] = record
        elif record is None or record.pod != pod:
            why = (
                f"its record is of {record.pod}" if record else f"no record of its allocation{kept}"
            )
            raise PreStartError(
                f"cannot tell whether {pod} has used device {one} before ({why}): delete the "
                "pod to get a fresh device"
            )
    shares = [one for one in held if without_share(one) == device_id]
    # A pod that has started with another share of the device must not lose its data.
    prepared = any(_used_by(records.get(one), pod) and held[one] == {pod} for one in shares)
    others = frozenset[str]().union(*(held[one] for one in shares)) - {pod}
    return Task(fresh, bool(fresh) and not prepared, others)


def _used_by(record: HolderRecord | None, pod: str) -> bool:
    match record:
        case Holder(pod=holder):
            return holder == pod
        case Fresh(former=former):
            return pod in former
    return False


def named(ids: Iterable[str]) -> str:
    """Return the IDs as messages name them."""
    ordered = names.natural(ids)
    return f"device{'s' if len(ordered) > 1 else ''} {', '.join(ordered)}"
