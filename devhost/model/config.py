"""The configuration as values: one class for each mapping of the YAML file.

What is checked here is the *shape*: keys, types, and what one value alone must look like.
The JSON Schema says the same, because both come from these classes. What takes more than
one value to judge is in `devhost.loading.checks`.

A scalar or list where a mapping is expected means its main option. The validators that
carry this shorthand name what they accept, so that the schema accepts it too. Nulls are
refused by the loader, so ``None`` here always means "left out".
"""

import fnmatch
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, StrictStr, Tag, model_validator

from devhost.model.allocate import Allocate
from devhost.model.mapping import Model
from devhost.model.sources import SourceEntry, Static
from devhost.model.values import (
    DEVICES_MAX,
    AsTuple,
    Count,
    Duration,
    Mode,
    NotEmpty,
    Positive,
    Removal,
    ResourceName,
    Strings,
    Templates,
    TemplateText,
    TopologyChoice,
)


class FileCheck(Model):
    """A health check that reads a file."""

    path: TemplateText
    """The file on the host."""
    matches: StrictStr
    """An RE2 pattern that matches the whole content, without the last newline."""


class Probe(Model):
    """A health check with options: exactly one of them."""

    file: FileCheck | None = None
    """The content of a file."""
    exec: Annotated[tuple[TemplateText, ...], NotEmpty] | None = None
    """A command that exits 0."""

    @model_validator(mode="after")
    def _one_probe(self) -> Self:
        if (self.file is None) == (self.exec is None):
            raise ValueError("needs exactly one of file, exec")
        return self


Word = Literal["readable", "writable"]
Check = Annotated[
    Annotated[Word, Tag("word")] | Annotated[Probe, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict) else "word"),
]


def _checks(value: object) -> object:
    """Read a check alone as a list of one."""
    return [value] if isinstance(value, str | dict) else value


def _health(value: object) -> object:
    if isinstance(value, dict) and value and value.keys() <= Probe.model_fields.keys():
        return {"checks": [value]}
    return value if isinstance(value, dict) else {"checks": value}


class HealthChecks(Model):
    """How a device's health is checked, apart from its existence."""

    checks: Annotated[
        tuple[Check, ...],
        AsTuple,
        BeforeValidator(_checks, json_schema_input_type=Word | list[Check] | Probe),
    ] = ()
    """All must pass."""
    interval: Duration = 30.0
    """Between two rounds."""
    timeout: Duration = 5.0
    """For one round of all checks of a device."""
    failures: Positive = 1
    """So many failed rounds make a device unhealthy."""
    recoveries: Positive = 1
    """So many good rounds make it healthy again."""


class Step(Model):
    """A step before a container starts: exactly one of run, mode, waitFor."""

    run: Annotated[tuple[TemplateText, ...], NotEmpty] | None = None
    """A command, as a list of arguments."""
    mode: Mode | None = None
    """The permission bits of the device's nodes, in octal."""
    wait_for: TemplateText | None = None
    """A host path that has to appear."""
    timeout: Duration = 10.0
    """For this step; at most 28s."""
    every: Literal["start", "holder"] = "holder"
    """Run at each container start, or once per holder (a pod)."""

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if sum(action is not None for action in (self.run, self.mode, self.wait_for)) != 1:
            raise ValueError("needs exactly one of run, mode, waitFor")
        return self


class Resource(Model):
    """One extended resource: where its devices come from and what a container receives."""

    name: ResourceName
    """The extended resource name, such as example.com/serial."""
    sources: Annotated[tuple[SourceEntry, ...], NotEmpty]
    """Where devices come from."""
    id: Templates | None = None
    """A device's ID; of a list, the first whose variables all have a value."""
    group: TemplateText | None = None
    """Joins candidates of equal key into one device."""
    allocate: Allocate = Allocate()
    """What a container receives."""
    inject: Literal["deviceSpecs", "cdi"] = "deviceSpecs"
    """How device nodes and mounts reach a container: by kubelet, or by a CDI spec."""
    max_devices: Positive | None = None
    """Offer at most so many devices; 10000 of those that are found on the host, if left out."""
    min_devices: Count | None = None
    """Report fewer devices as missing; as many as in the last 24 hours, if left out."""
    overlap: Literal["allow", "deny"] = "deny"
    """Whether to offer nodes that an earlier resource offers."""
    replicas: Positive = 1
    """Advertise each device so many times."""
    max_per_container: Positive | None = None
    """Hand out at most so many shares of one device to a container."""
    prefer: Literal["packed", "spread", "numa", "none"] = "none"
    """Which of the free devices a container gets; none: kubelet's choice, with replicas spread."""
    topology: TopologyChoice = "auto"
    """The NUMA node of the devices: from the host, none, or a number."""
    remove_missing_after: Removal = 300.0
    """How long a vanished device stays in the list, as unhealthy."""
    health: (
        Annotated[
            HealthChecks,
            BeforeValidator(
                _health, json_schema_input_type=Word | list[Check] | Probe | HealthChecks
            ),
        ]
        | None
    ) = None
    """Checks of the devices' health."""
    pre_start: Annotated[tuple[Step, ...], AsTuple] = ()
    """Steps before a container starts."""
    node_names: Strings | None = None
    """Globs; the resource is served only on nodes with such a name."""

    @property
    def limit(self) -> int | None:
        """How many devices are offered at most; ``None`` for tokens without ``maxDevices``."""
        if self.max_devices is None and any(
            not isinstance(source.kind, Static) for source in self.sources
        ):
            return DEVICES_MAX
        return self.max_devices

    def applies_to(self, node_name: str) -> bool:
        """Whether the resource is for this node."""
        globs = self.node_names
        return globs is None or any(fnmatch.fnmatchcase(node_name, glob) for glob in globs)


class Config(Model):
    """A configuration file."""

    version: Literal["v1"]
    """The version of the language."""
    resources: Annotated[tuple[Resource, ...], AsTuple]
    """The resources that this host serves."""
