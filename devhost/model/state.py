"""The states of a resource, for logs, status and probes."""

from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum

from devhost.immutable import immutable


class State(StrEnum):
    """The state of a resource."""

    PENDING = "Pending"
    """Not started yet."""
    DISCOVERING = "Discovering"
    """The first scan is running; nothing is served yet."""
    SERVING = "Serving"
    """Its socket is served, and the registration is running."""
    REGISTERED = "Registered"
    """Registered with kubelet, with an open stream."""
    WAITING = "Waiting"
    """Waiting for kubelet, or while another instance serves the resource."""
    BACKING_OFF = "BackingOff"
    """Failed; a retry follows."""
    DRAINING = "Draining"
    """Removed from the configuration; its devices are leaving kubelet's list."""
    STOPPED = "Stopped"
    """Ended."""


@immutable
class Status:
    """A state, its reason, and its start."""

    state: State = State.PENDING
    reason: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
