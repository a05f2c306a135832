"""The configuration as values: one class for each mapping of the YAML file.

They check keys, types and single values; `devhost.config.checks.resource_checks` checks several
together. The loader rejects nulls, so ``None`` always means that a key is absent.
"""

import functools
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from devhost.model import values
from devhost.model.pattern import matches_any
from devhost.model.sources import SourceEntry, Static
from devhost.model.template import Template
from devhost.model.values import (
    DEVICES_MAX,
    ConfigModel,
    Items,
    NotEmpty,
    OneOrMore,
    key_of,
    shorthand,
)

_OF_VENDORS: Final = {"cdi": (Template.parse("${cdi.qualified}"),), "devices": ()}
PlacedTemplate = tuple[tuple[str | int, ...], Template, ConfigModel]
"""The keys and indexes that lead to a template, the template, and the mapping that it is in."""


class Text(ConfigModel):
    """The value of an environment variable or annotation."""

    value: values.ValueText
    """The value; with a device variable, the values of all devices, joined."""
    separator: str = ","
    """The separator between the devices' values."""
    optional: bool = False
    """If a variable has no value: omit the entry instead of making the device unhealthy."""
    main = "value"


class DeviceNode(ConfigModel):
    """A device node that the container receives."""

    host_path: values.HostNodePath
    """The path of the node on the host."""
    container_path: values.NodePath | None = None
    """The path in the container; default: the same path."""
    permissions: values.Permissions = "rw"
    """Any of r (read), w (write) and m (mknod)."""
    optional: bool = False
    """Omit the entry if the path does not exist on the host."""
    uid: values.OwnerId | None = None
    """With CDI: the owner of the node in the container; default: the container's user."""
    gid: values.OwnerId | None = None
    """With CDI: the group of the node in the container; default: the container's group."""
    mode: values.Mode | None = None
    """With CDI: the mode of the node in the container, in octal; default: as on the host."""
    main = "host_path"


class Mount(ConfigModel):
    """A host path that is mounted into the container."""

    host_path: values.HostPath
    """The path on the host."""
    container_path: values.MountPath | None = None
    """The path in the container; default: the same path."""
    read_only: bool = True
    """Whether to mount it read-only."""
    optional: bool = False
    """Omit the entry if the path does not exist on the host."""
    main = "host_path"


class Allocate(ConfigModel):
    """The nodes, mounts and variables that a container receives with its devices."""

    env: dict[values.EnvName, Text] = Field(default_factory=dict)
    """Environment variables, by name."""
    devices: Items[DeviceNode] | None = None
    """Device nodes; default: every node of the devices, under its own name."""
    mounts: Items[Mount] = ()
    """Host paths to mount."""
    annotations: dict[values.AnnotationKey, Text] = Field(default_factory=dict)
    """Annotations for the container runtime, by key."""
    cdi: Items[values.CdiName] = ()
    """Fully qualified CDI device names."""


class FileCheck(ConfigModel):
    """A health check by the content of a file."""

    path: values.PathText
    """The path of the file on the host."""
    matches: values.ContentGlobs
    """Globs, one of which must match the text of its first 4 KiB without white space around it."""


class Probe(ConfigModel):
    """A health check with options: exactly one of file, exec."""

    file: FileCheck | None = None
    """A file whose content must match."""
    exec: values.Argv | None = None
    """A command that must exit with status 0."""
    one_of = ("file", "exec")


Word = Literal["readable", "writable"]
Check = Annotated[
    Annotated[Word, Tag("word")] | Annotated[Probe, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict | Probe) else "word"),
]
Checks = OneOrMore[Check]


def _health(value: object) -> object:
    is_check = isinstance(value, dict) and value and value.keys() <= {"file", "exec"}
    return value if isinstance(value, dict) and not is_check else {"checks": value}


class HealthChecks(ConfigModel):
    """Health checks of devices, in addition to their existence."""

    checks: Checks
    """The checks; all must pass."""
    interval: values.Interval = 30.0
    """The time between two rounds of checks."""
    timeout: values.CheckTime = 5.0
    """The time limit for one round of checks of a device."""
    failures: values.Positive = 1
    """The number of consecutive failed rounds that make a device unhealthy."""
    recoveries: values.Positive = 1
    """The number of consecutive successful rounds that make it healthy again."""


class Step(ConfigModel):
    """A step before a container starts: exactly one of run, mode, waitFor."""

    run: values.Argv | None = None
    """A command, as a list of arguments."""
    mode: values.Mode | None = None
    """The mode to set on the device's nodes, in octal."""
    wait_for: values.PathText | None = None
    """A host path to wait for."""
    timeout: values.StepTime = 10.0
    """The time limit of this step, at most 28s."""
    repeat: Annotated[Literal["start", "holder"], Field(alias="every")] = "holder"
    """start: at every container start; holder: once per pod that has the device."""
    one_of = ("run", "mode", "wait_for")


class DraNodes(ConfigModel):
    """The nodes on which resources are offered by Dynamic Resource Allocation (DRA)."""

    dra: Annotated[
        values.NodeNames,
        values.refuses(lambda globs: "no node; write backend: dra" if "true" in globs else None),
    ]
    """Globs of node names; on other nodes, a device plugin offers it."""


BackendChoice = Annotated[
    Annotated[Literal["devicePlugin", "dra"], Tag("word")] | Annotated[DraNodes, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict | DraNodes) else "word"),
]


class Resource(ConfigModel):
    """An extended resource: where its devices come from and what a container receives."""

    name: values.ResourceName
    """The extended resource name, such as example.com/serial."""
    sources: Annotated[tuple[SourceEntry, ...], NotEmpty]
    """Where the devices come from."""
    id: values.Templates | None = None
    """The ID of a device; of a list, the first whose variables all have a value."""
    group: values.TemplateText | None = None
    """The key by which several nodes become one device."""
    allocate: Annotated[Allocate, Field(validate_default=True)] = Allocate()
    """What a container receives."""
    inject: Literal["deviceSpecs", "cdi"] = "deviceSpecs"
    """How containers get device nodes and mounts: from kubelet, or by a CDI spec."""
    max_devices: values.Positive | None = None
    """The maximum number of devices; default: 10000 for devices found on the host."""
    min_devices: values.Count | None = None
    """The expected number of devices; default: the most since the file last changed."""
    overlap: Literal["allow", "deny"] = "deny"
    """Whether to offer nodes that an earlier resource also offers."""
    replicas: values.Positive = 1
    """How many times each device is advertised."""
    max_per_container: values.Positive | None = None
    """The maximum number of shares of one device for a container."""
    prefer: Literal["packed", "spread", "numa", "none"] = "none"
    """Which free devices a container gets; none: kubelet chooses (with replicas: spread)."""
    topology: values.TopologyChoice = "auto"
    """The NUMA node of the devices: from sysfs (auto), none, or a number."""
    remove_missing_after: values.Removal = 300.0
    """How long a vanished device stays in the list as unhealthy."""
    evict: bool = False
    """Whether DRA evicts pods that lose their device, so that they are replaced."""
    evict_after: values.Duration = 30.0
    """How long a device has to be lost before its pods are evicted."""
    health: Annotated[HealthChecks, shorthand(_health, Checks | HealthChecks)] | None = None
    """Health checks of the devices."""
    pre_start: Items[Step] = ()
    """Steps before a container starts."""
    node_names: values.NodeNames | None = None
    """Globs of node names; the resource is served only on these nodes."""
    backend: BackendChoice | None = None
    """How pods get devices: by a device plugin or DRA; default: that of the file."""

    @field_validator("allocate")
    @classmethod
    def _give_cdi_devices(cls, allocate: Allocate, info: ValidationInfo) -> Allocate:
        """Give what a vendor describes by its name alone, where nothing else is said."""
        if any(source.cdi is None for source in info.data.get("sources", ())):
            return allocate
        options = {name: getattr(allocate, name) for name in allocate.model_fields_set}
        return allocate.model_copy(update=_OF_VENDORS | options)

    @field_validator("min_devices")
    @classmethod
    def _check_min_devices(cls, least: int | None, info: ValidationInfo) -> int | None:
        most = info.data.get("max_devices")
        if least is not None and most is not None and least > most:
            raise ValueError(f"minDevices {least} is more than maxDevices {most}")
        return least

    @property
    def cdi_kind(self) -> str | None:
        """The kind of its devices, where vendors describe them: then it has no other source."""
        source = self.sources[0].cdi
        return source.kind if source is not None else None

    @property
    def is_physical(self) -> bool:
        """Whether devices of it are found on the host."""
        return any(not isinstance(source.kind, Static) for source in self.sources)

    @property
    def checks(self) -> Checks:
        """The health checks of its devices."""
        return self.health.checks if self.health is not None else ()

    @property
    def limit(self) -> int | None:
        """The maximum number of devices; ``None`` for tokens without ``maxDevices``."""
        return DEVICES_MAX if self.max_devices is None and self.is_physical else self.max_devices

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
    def templates(self) -> Iterator[PlacedTemplate]:
        """All templates, also names of variables and annotations."""
        return _templates(self, (), self)

    @functools.cached_property  # each scan asks
    def mentioned_variables(self) -> frozenset[str]:
        """The variables that templates mention."""
        return frozenset(name for _, template, _ in self.templates for name in template.names)

    def applies_to(self, node_name: str) -> bool:
        """Return whether the resource is served on a node."""
        globs = self.node_names
        return globs is None or matches_any(node_name, globs)

    def uses_dra(self, node_name: str | None = None) -> bool:
        """Return whether DRA offers it on a node, or on any at all."""
        if isinstance(self.backend, DraNodes):
            return node_name is None or matches_any(node_name, self.backend.dra)
        return self.backend == "dra"


def _templates(
    value: object, path: tuple[str | int, ...], mapping: ConfigModel
) -> Iterator[PlacedTemplate]:
    match value:
        case Template():
            yield path, value, mapping
        case ConfigModel():
            for name in type(value).model_fields:
                key = key_of(type(value), name)
                yield from _templates(getattr(value, name), (*path, key), value)
        case dict():
            for key, entry in value.items():
                if isinstance(entry, Text):
                    yield (*path, key), Template.parse(key), entry
                yield from _templates(entry, (*path, key), mapping)
        case tuple():
            for index, item in enumerate(value):
                yield from _templates(item, (*path, index), mapping)


class Config(ConfigModel):
    """A configuration file."""

    version: Literal["v1"]
    """The version of the configuration language."""
    backend: BackendChoice | None = None
    """How pods get devices of resources that do not say it; default: devicePlugin."""
    resources: Items[Resource]
    """The resources to serve."""
