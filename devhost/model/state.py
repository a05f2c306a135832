"""What a resource is doing at the moment, for logs, status and probes."""

from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum

from devhost.immutable import immutable


class State(StrEnum):
    """The states of a resource's life."""

    PENDING = "Pending"
    """Not started."""
    DISCOVERING = "Discovering"
    """Its first scan; nothing is served yet."""
    SERVING = "Serving"
    """Its socket is served and about to be registered."""
    REGISTERED = "Registered"
    """The kubelet has registered it and holds a stream open."""
    WAITING = "Waiting"
    """For a kubelet, or because a newer instance of devhost serves it."""
    BACKING_OFF = "BackingOff"
    """Something failed; it is retried soon."""
    DRAINING = "Draining"
    """Removed from the configuration; its devices are leaving the kubelet's list."""
    STOPPED = "Stopped"
    """Ended."""


@immutable
class Status:
    """A state, why, and since when."""

    state: State = State.PENDING
    reason: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
