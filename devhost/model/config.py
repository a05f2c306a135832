"""The configuration as values: one class for each mapping of the YAML file.

These classes check the *shape*: keys, types and single values. The JSON Schema is generated from
them. Checks that need several values are in `devhost.loading.checks`.

A scalar or list in place of a mapping sets its main option. `Before` declares what this shorthand
accepts, so that the schema accepts it as well. The loader rejects nulls, so
``None`` always means that a key is absent.
"""

import fnmatch
from typing import Annotated, Final, Literal, Self

from pydantic import Discriminator, Tag, model_validator

from devhost.model.allocate import Allocate
from devhost.model.base import ConfigModel, shorthand
from devhost.model.sources import SourceEntry, Static
from devhost.model.values import (
    DEVICES_MAX,
    AsTuple,
    Count,
    Duration,
    Mode,
    NodeNames,
    NotEmpty,
    Positive,
    Removal,
    ResourceName,
    Strings,
    Templates,
    TemplateText,
    TopologyChoice,
)


class FileCheck(ConfigModel):
    """A health check by the content of a file."""

    path: TemplateText
    """The path of the file on the host."""
    matches: Strings
    """Globs, one of which must match the text of its first 4 KiB without white space around it."""


class Probe(ConfigModel):
    """A health check with options: exactly one of file, exec."""

    file: FileCheck | None = None
    """A file whose content must match."""
    exec: Annotated[tuple[TemplateText, ...], NotEmpty] | None = None
    """A command that must exit with status 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.file is None) == (self.exec is None):
            raise ValueError("needs exactly one of file, exec")
        return self


Word = Literal["readable", "writable"]
Check = Annotated[
    Annotated[Word, Tag("word")] | Annotated[Probe, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict | Probe) else "word"),
]


def _checks(value: object) -> object:
    """Return a single check as a list."""
    return [value] if isinstance(value, str | dict) else value


def _health(value: object) -> object:
    if isinstance(value, dict) and value and value.keys() <= {"file", "exec"}:
        return {"checks": [value]}
    return value if isinstance(value, dict) else {"checks": value}


class HealthChecks(ConfigModel):
    """Health checks of devices, in addition to their existence."""

    checks: Annotated[
        tuple[Check, ...], AsTuple, shorthand(_checks, Word | list[Check] | Probe)
    ] = ()
    """The checks; all must pass."""
    interval: Duration = 30.0
    """The time between two rounds of checks."""
    timeout: Duration = 5.0
    """The time limit for one round of checks of a device."""
    failures: Positive = 1
    """The number of consecutive failed rounds that make a device unhealthy."""
    recoveries: Positive = 1
    """The number of consecutive successful rounds that make it healthy again."""


ACTIONS: Final = ("run", "mode", "waitFor")  # the keys that say what a step does
_STEP_TIMEOUT_S: Final = 10.0


class Step(ConfigModel):
    """A step before a container starts: exactly one of run, mode, waitFor."""

    run: Annotated[tuple[TemplateText, ...], NotEmpty] | None = None
    """A command, as a list of arguments."""
    mode: Mode | None = None
    """The mode to set on the device's nodes, in octal."""
    wait_for: TemplateText | None = None
    """A host path to wait for."""
    timeout: Duration | None = None
    """The time limit of this step, at most 28s; default: 10s."""
    every: Literal["start", "holder"] = "holder"
    """start: at every container start; holder: once per pod that has the device."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(action is not None for action in (self.run, self.mode, self.wait_for)) != 1:
            raise ValueError(f"needs exactly one of {', '.join(ACTIONS)}")
        return self

    @property
    def time_limit(self) -> float:
        """The time limit in seconds."""
        return _STEP_TIMEOUT_S if self.timeout is None else self.timeout


class Resource(ConfigModel):
    """An extended resource: where its devices come from and what a container receives."""

    name: ResourceName
    """The extended resource name, such as example.com/serial."""
    sources: Annotated[tuple[SourceEntry, ...], NotEmpty]
    """Where the devices come from."""
    id: Templates | None = None
    """The ID of a device; of a list, the first whose variables all have a value."""
    group: TemplateText | None = None
    """The key by which several nodes become one device."""
    allocate: Allocate = Allocate()
    """What a container receives."""
    inject: Literal["deviceSpecs", "cdi"] = "deviceSpecs"
    """How containers get device nodes and mounts: from kubelet, or by a CDI spec."""
    max_devices: Positive | None = None
    """The maximum number of devices; default: 10000 for devices found on the host."""
    min_devices: Count | None = None
    """The expected number of devices; default: the most since the file last changed."""
    overlap: Literal["allow", "deny"] = "deny"
    """Whether to offer nodes that an earlier resource also offers."""
    replicas: Positive = 1
    """How many times each device is advertised."""
    max_per_container: Positive | None = None
    """The maximum number of shares of one device for a container."""
    prefer: Literal["packed", "spread", "numa", "none"] = "none"
    """Which free devices a container gets; none: kubelet chooses (with replicas: spread)."""
    topology: TopologyChoice = "auto"
    """The NUMA node of the devices: from sysfs (auto), none, or a number."""
    remove_missing_after: Removal = 300.0
    """How long a vanished device stays in the list as unhealthy."""
    health: (
        Annotated[HealthChecks, shorthand(_health, Word | list[Check] | Probe | HealthChecks)]
        | None
    ) = None
    """Health checks of the devices."""
    pre_start: Annotated[tuple[Step, ...], AsTuple] = ()
    """Steps before a container starts."""
    node_names: NodeNames | None = None
    """Globs of node names; the resource is served only on these nodes."""

    @property
    def limit(self) -> int | None:
        """The maximum number of devices; ``None`` for tokens without ``maxDevices``."""
        if self.max_devices is None and any(
            not isinstance(source.kind, Static) for source in self.sources
        ):
            return DEVICES_MAX
        return self.max_devices

    @property
    def declared_ids(self) -> int:
        """How many device IDs it has at least: its tokens, or one device, times its replicas."""
        tokens = sum(
            kind.count or len(kind.ids or ())
            for source in self.sources
            if isinstance(kind := source.kind, Static)
        )
        return max(min(tokens, self.max_devices or tokens), 1) * self.replicas

    @property
    def mentioned(self) -> frozenset[str]:
        """The variables that templates mention."""
        templates = [*(self.id or ()), *filter(None, (self.group,)), *self.allocate.templates]
        for check in self.health.checks if self.health is not None else ():
            if isinstance(check, Probe):
                templates += [*(check.exec or ()), *((check.file.path,) if check.file else ())]
        for step in self.pre_start:
            templates += [*(step.run or ()), *filter(None, (step.wait_for,))]
        return frozenset(name for template in templates for name in template.names)

    def applies_to(self, node_name: str) -> bool:
        """Whether the resource is served on a node."""
        globs = self.node_names
        return globs is None or any(fnmatch.fnmatchcase(node_name, glob) for glob in globs)


class Config(ConfigModel):
    """A configuration file."""

    version: Literal["v1"]
    """The version of the configuration language."""
    resources: Annotated[tuple[Resource, ...], AsTuple]
    """The resources to serve."""
