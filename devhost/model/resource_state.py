"""The states of a resource, for logs, status and probes."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from devhost.model.advertised import AdvertisedName, OfferedId

HeldBy = Mapping[OfferedId, frozenset[str]]
"""The pods (``namespace/name``) that hold each ID."""


class PodHoldings(NamedTuple):
    """The devices that pods hold, by resource.

    Attributes:
        by_id: The pods of each ID, whichever backend has given it.
        plugin_pods: The pods that a device plugin has given any.
        claims: The driver and the claim (``namespace/name``) with which pods have a device.
    """

    by_id: Mapping[str, HeldBy]
    plugin_pods: Mapping[str, AbstractSet[str]]
    claims: Mapping[AdvertisedName, AbstractSet[tuple[str, str]]] = MappingProxyType({})


class PodList(NamedTuple):
    """A list of kubelet.

    Attributes:
        kubelet: What differs from one kubelet to the next.
        pods: The pods (``namespace/name``), also those without devices.
        held: The devices that they hold.
    """

    kubelet: object
    pods: AbstractSet[str]
    held: PodHoldings


class State(StrEnum):
    """The state of a resource."""

    PENDING = "Pending"  # not started yet
    DISCOVERING = "Discovering"  # the first scan is running; nothing is served yet
    SERVING = "Serving"  # its socket is served, and the registration is running
    REGISTERED = "Registered"  # registered with kubelet, with an open stream
    WAITING = "Waiting"  # for kubelet, another instance, or pods of the other backend
    BACKING_OFF = "BackingOff"  # failed; a retry follows
    DRAINING = "Draining"  # removed, or switching its backend: its devices are leaving the list
    STOPPED = "Stopped"  # ended


@dataclass(frozen=True, slots=True)
class Status:
    """A state, its reason, and its start."""

    state: State = State.PENDING
    reason: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class DraStatus:
    """Where Dynamic Resource Allocation publishes a resource, and the claims that have devices."""

    driver: str
    pool: str
    claims: list[str]


@dataclass(frozen=True, slots=True)
class PublicationStatus:
    """How many IDs a backend lists, and to how many connections; what is amiss with the list."""

    listed: int
    healthy: int
    streams: int
    lists_sent: int
    warnings: tuple[str, ...] = ()
    dra: DraStatus | None = None


SetState = Callable[[State, str | None], None]
"""Shows the state of a resource, and why."""
