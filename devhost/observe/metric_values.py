"""The state of a host that the metrics show, as values."""

from devhost.immutable import immutable
from devhost.model.state import State


@immutable
class ResourceMetrics:
    """The current state of one resource.

    Attributes:
        name: The resource's name.
        state: Its state.
        registered: Whether it is registered with kubelet.
        healthy: The number of devices that can be allocated.
        unhealthy: The number of other known devices.
        expected: The number of devices that should be there.
        missing: The number of expected devices that are not there.
        streams: The number of open ListAndWatch calls.
        list_updates: The number of lists that were sent.
    """

    name: str
    state: State
    registered: bool
    healthy: int
    unhealthy: int
    expected: int
    missing: int
    streams: int
    list_updates: int


@immutable
class ConfigMetrics:
    """The state of the configuration file.

    Attributes:
        hash: The hash of the configuration in use.
        applied: When that was applied, in seconds since 1970.
        usable: Whether the file's current content is in use.
        reloads: The number of changes that were applied.
        failures: The number of changes that were rejected.
    """

    hash: str
    applied: float
    usable: bool
    reloads: int
    failures: int


@immutable
class DeviceHolder:
    """A device, and a pod that has it."""

    resource: str
    device_id: str
    namespace: str
    pod: str


@immutable
class HostMetrics:
    """The current state of a host.

    Attributes:
        version: The version of devhost.
        resources: The resources that are served.
        config: The configuration file; ``None`` if there is none.
        kubelet_restarts: The number of registrations with a kubelet that had restarted.
        cdi_spec_writes: The number of CDI spec files written.
        log_lines_dropped: The number of log lines dropped because the log was not read.
        holders: The pods that have devices; ``None`` if the metrics leave them out.
        uevent_overruns: How many times the kernel had more device events than could be held.
    """

    version: str
    resources: tuple[ResourceMetrics, ...]
    config: ConfigMetrics | None
    kubelet_restarts: int
    cdi_spec_writes: int
    log_lines_dropped: int
    holders: tuple[DeviceHolder, ...] | None = None
    uevent_overruns: int = 0
