"""Who starts with devices, and what has to be done for that, by the records; pure."""

from collections.abc import Iterable, Mapping

from devhost.errors import PreStartError
from devhost.host.prestart.holder_file import Fresh, Holder, Records
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.names import without_share

HeldBy = Mapping[str, frozenset[str]]


class TwoHandsError(PreStartError):
    """A device that the kubelet has given to two pods, by a mistake of its own."""


@immutable
class Task:
    """What is to be done for one device.

    Attributes:
        fresh: Its IDs that nobody has started with; to be settled.
        unprepared: Whether the steps for a holder have to run.
        others: Pods that hold other shares of the device.
    """

    fresh: Mapping[str, Fresh]
    unprepared: bool
    others: frozenset[str] = frozenset()


def only_holder(held: HeldBy, ids: Iterable[str]) -> str:
    """Return the one pod that holds all IDs.

    Raises:
        PreStartError: There is none.
        TwoHandsError: There are several.
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
    """Decide what a device needs.

    Raises:
        PreStartError: That cannot be told from the records.
    """
    fresh: dict[str, Fresh] = {}
    for one in own:
        record = records.get(one)
        if isinstance(record, Fresh):
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
    # A pod that has started with another share of the device must not lose what is on it.
    prepared = any(
        isinstance(record := records.get(one), Holder) and held[one] == {record.pod} == {pod}
        for one in shares
    )
    others = frozenset[str]().union(*(held[one] for one in shares)) - {pod}
    return Task(fresh, bool(fresh) and not prepared, others)


def named(ids: Iterable[str]) -> str:
    """Return how messages call IDs."""
    ordered = names.natural(ids)
    return f"device{'s' if len(ordered) > 1 else ''} {', '.join(ordered)}"
