"""What the metrics need to know of a host, as values."""

from devhost.immutable import immutable
from devhost.model.state import State


@immutable
class ResourceFacts:
    """One resource at this moment.

    Attributes:
        name: The resource's name.
        state: What it is doing.
        registered: Whether the kubelet has it.
        healthy: How many devices containers may be given.
        unhealthy: How many others are known.
        expected: How many there should be.
        missing: How many of those are not there.
        streams: How many ListAndWatch calls are open.
        list_updates: How many lists were sent.
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
class ConfigFacts:
    """The configuration file.

    Attributes:
        hash: Of the content in force.
        applied: When that came into force, in seconds since 1970.
        usable: Whether the present content of the file is in force.
        reloads: How often a new content came into force.
        failures: How often one could not be used.
    """

    hash: str
    applied: float
    usable: bool
    reloads: int
    failures: int


@immutable
class Held:
    """A device in the hands of a pod."""

    resource: str
    device_id: str
    namespace: str
    pod: str


@immutable
class Facts:
    """A host at this moment.

    Attributes:
        version: Of devhost.
        resources: What is served.
        config: ``None`` where no file is read.
        kubelet_restarts: How often something was registered with another kubelet than before.
        cdi_spec_writes: How often a CDI spec file was written.
        log_lines_dropped: How many log lines were dropped because nobody read them.
        held: Who holds what; ``None`` where that is not to be told.
    """

    version: str
    resources: tuple[ResourceFacts, ...]
    config: ConfigFacts | None
    kubelet_restarts: int
    cdi_spec_writes: int
    log_lines_dropped: int
    held: tuple[Held, ...] | None = None
