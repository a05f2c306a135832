"""A resource whose devices come from code: the base class of plugins, their devices and options."""
# ruff: noqa: ARG002 (of methods that plugins override)

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

import yaml
from pydantic.alias_generators import to_camel, to_snake

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.spelling import did_you_mean
from devhost.model.template import Template

_INTERVAL_S: Final = 30.0
_INTERVAL_MIN_S: Final = 0.1
ID_VARIABLE: Final = "device.id"  # of a node: the ID of its device
# A source with all variables that a device in code has; it is not used to find devices.
_PLACEHOLDER: Final = "/dev/*"
# Code in the process can do anything, so restricting its options would be pointless.
TRUSTED: Final = Policy(
    ("*",), allow_exec=True, trusted=True, allow_cdi=("*",), allow_annotations=("*",)
)


class Options(TypedDict, total=False):
    """The options of a resource but ``sources``: in snake case, with the same values as in YAML.

    A function as ``allocate`` or ``pre_start`` stands for the method of that name; ``interval`` has
    the seconds between calls of ``devices``, 0.1 to 30 (default).
    """

    interval: float
    allocate: "Mapping[str, Any] | Callable[[Sequence[Device]], Allocation | None]"
    inject: Literal["deviceSpecs", "cdi"]
    max_devices: int | None
    min_devices: int | None
    overlap: Literal["allow", "deny"]
    replicas: int
    max_per_container: int | None
    prefer: Literal["packed", "spread", "numa", "none"]
    topology: int | Literal["auto", "none"]
    remove_missing_after: str
    health: Mapping[str, Any] | Sequence[Any] | None
    pre_start: "Sequence[Mapping[str, Any]] | Callable[[Sequence[Device]], None]"
    node_names: str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a plugin; may be subclassed to add data.

    ``allocate`` and ``pre_start`` get the same objects that `DevicePlugin.devices` returned.

    Attributes:
        id: Its ID: stable across reboot and replug, at most 63 characters, without ``::``.
        paths: The host paths of its nodes; empty for a token. A string is a single path. The
            device is unhealthy while one of them is missing.
        reason: Why it is unhealthy; ``None`` or empty if it is healthy.
        numa_nodes: The NUMA nodes that it is attached to; by default those in sysfs. If only some
            devices of a resource have NUMA nodes, the resource is advertised without.
    """

    id: str
    _: KW_ONLY
    paths: Sequence[str] = ()
    reason: str | None = None
    numa_nodes: Sequence[int] = ()

    def __post_init__(self) -> None:
        paths = (self.paths,) if isinstance(self.paths, str) else tuple(self.paths)
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "numa_nodes", tuple(self.numa_nodes))


class DevicePlugin:
    """One resource, served by `devhost.serve`.

    Only ``devices`` must be overridden. All methods are called in threads; ``devices`` and
    ``refresh`` are never called concurrently. A method that raises or hangs affects only this
    resource.

    Attributes:
        resource: The resource with its options.
        interval: Seconds between calls of ``devices`` if `changed` is not called earlier.
        warnings: Warnings about the options.
        root: The directory where the host's files are mounted (``--root``); set when the plugin is
            served. The paths of devices and allocations are the host's, without it.
        on_changed: Called by `changed`; set when the plugin is served.
    """

    def __init__(self, name: str, **options: Unpack[Options]) -> None:
        """Declare the resource, such as ``example.com/disk``, with `Options`.

        Raises `TypeError` for an unknown option, `ValueError` for an invalid name or value.
        """
        values = dict(options)
        self.interval: float = options.get("interval", _INTERVAL_S)
        if not _INTERVAL_MIN_S <= self.interval <= _INTERVAL_S:
            raise ValueError(f"{name}: interval: should be 0.1 to 30 seconds, not {self.interval}")
        for method in ("allocate", "pre_start"):
            if callable(values.get(method)):
                setattr(self, method, values.pop(method))
        self.resource, self.warnings = build_resource(name, values)
        self.root = Path("/")
        self.on_changed: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.resource.name

    def devices(self) -> Iterable[Device | str]:
        """Return all devices that are there now, unhealthy ones with a reason.

        Called at the start, after each `changed`, and every ``interval`` seconds; may take 10 s.
        If it raises, the known devices are unhealthy until a later call succeeds.

        A string is the ID of a healthy token. A known device that is left out counts as unplugged.
        """
        raise NotImplementedError(f"{type(self).__name__} must define devices()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:
        """Return what a container receives for its devices; may take 5 s.

        An exception fails the pod permanently, with its message.

        The devices are distinct, in natural order of their IDs. ``None``: each node under its
        own name, and what the option ``allocate`` declares.
        """
        return None

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str] | None:
        """Return which of the free devices a container should get; may take 5 s.

        After an exception or an invalid result kubelet chooses.

        IDs are advertised ones; with ``replicas`` those of shares, such as ``a::0``. The result
        has ``size`` of them. ``None``: by the option ``prefer``.
        """
        return None

    def pre_start(self, devices: Sequence[Device]) -> None:
        """Prepare a container's devices before each start of it; may take 28 s.

        An exception prevents the start, with its message; kubelet tries again.
        """

    def refresh(self) -> None:
        """Called before the first call of ``devices``, and again after each restart of kubelet.

        ``devices`` is called next. Both together may take 10 s.
        """

    def destroy(self) -> None:
        """Called once, when the plugin is no longer served; may take 5 s.

        Not called when kubelet restarts: only the registration is renewed then.
        """

    def changed(self) -> None:
        """Request a call of ``devices``; may be called from any thread at any time."""
        self.on_changed()


def build_resource(name: str, options: Mapping[str, Any]) -> tuple[Resource, tuple[str, ...]]:
    """Return the resource with a name and options, and warnings."""
    if "backend" in options:
        raise TypeError(f"{name}: only a device plugin offers devices from code; leave out backend")
    for option in options:
        if option not in Options.__annotations__:
            options_text = f"; known options: {', '.join(Options.__annotations__)}"
            hint = did_you_mean(to_snake(option), Options.__annotations__)
            raise TypeError(f"unknown option {option!r}{hint or options_text}")
    values = {to_camel(key): value for key, value in options.items() if value is not None}
    values.pop("interval", None)
    entry = {"name": name, "sources": [_PLACEHOLDER], **values}
    try:
        text = yaml.safe_dump({"version": "v1", "resources": [entry]}, sort_keys=False)
    except yaml.YAMLError as error:
        message = f"{name}: an option has a value that YAML cannot represent: {error}"
        raise ValueError(message) from None
    loaded = loads(text, policy=TRUSTED)
    problems = [
        (problem.severity, f"{name}: {_option(problem.path)}: {problem.message}")
        for problem in loaded.problems
        if not problem.path.startswith("resources[0].sources")
    ]
    if loaded.config is None:
        raise ValueError("\n".join(text for severity, text in problems if severity == "error"))
    group = Template.parse(f"${{{ID_VARIABLE}}}")
    resource = loaded.config.resources[0].model_copy(update={"group": group})
    return resource, tuple(text for _, text in problems)


def _option(path: str) -> str:
    """Return a path in YAML as a path in the options."""
    option, dot, rest = path.removeprefix("resources[0].").partition(".")
    return to_snake(option) + dot + rest
