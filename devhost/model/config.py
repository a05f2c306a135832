"""The configuration as values: one class for each mapping of the YAML file.

What is checked here is the *shape*: keys, types, and what one value alone must look like.
The JSON Schema says the same, because both come from these classes. What takes more than
one value to judge is in `devhost.loading.checks`.

A scalar or list where a mapping is expected stands for its main option. The validators that
carry this shorthand name what they accept, so that the schema accepts it too. Nulls are
refused by the loader, so ``None`` here always means "left out".
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictInt,
    StrictStr,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from devhost.model import names
from devhost.template import TEMPLATE_PATTERN, Template

SHARES_MAX: Final = 100_000  # devices times replicas; a list of the kubelet holds 4 MiB
PRE_START_TIMEOUT_MAX_S: Final = 28.0  # the kubelet gives up at 30

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_SCHEMA: Final = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"}
_PATH_PATTERN: Final = r"^/(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f]*$"
_PERMISSIONS: Final = re.compile(r"(?!.*(.).*\1)[rwm]+")


class Model(BaseModel):
    """A mapping of the file: immutable, camelCase keys, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True
    )


# ── single values ──────────────────────────────────────────────────────────────────────


def _text(check: Callable[[str], str | None]) -> PlainValidator:
    """Validate a string by a function that returns what is wrong with it."""

    def validate(value: object) -> str:
        text = _string(value)
        if problem := check(text):
            raise ValueError(problem)
        return text

    return PlainValidator(validate)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("should be a string")  # noqa: TRY004 (pydantic collects ValueErrors)
    return value


def _template(value: object) -> Template:
    return Template.parse(_string(value))


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("should be a duration, such as 500ms, 30s or 5m")
    return float(match[1]) * _SECONDS[match[2]]


def _removal(value: object) -> float:
    if value == "never":
        return math.inf
    try:
        return _duration(value)
    except ValueError:
        raise ValueError("should be a duration, such as 5m, or never") from None


def _topology(value: object) -> int | Literal["auto", "none"]:
    if value == "auto" or value == "none":  # noqa: PLR1714 (narrows the type)
        return value
    if type(value) is int and value >= 0:
        return value
    raise ValueError("should be auto, none or the number of a NUMA node")


def _permissions(value: str) -> str | None:
    if _PERMISSIONS.fullmatch(value):
        return None
    return f"{value!r} should be one or more of the letters r (read), w (write), m (mknod)"


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _main_option(key: str) -> Callable[[object], object]:
    """Return a function that reads a scalar or list as ``{key: …}``."""
    return lambda value: value if isinstance(value, dict) else {key: value}


def _static(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"ids" if isinstance(value, list) else "count": value}


def _source(value: object) -> object:
    if isinstance(value, str):
        if value.startswith("/"):
            return {"glob": value}
        raise ValueError(
            f"{value!r} is no source: a path begins with '/', any other source names its kind, "
            "such as 'dev: kvm'"
        )
    return value


ResourceName = Annotated[
    str,
    _text(names.resource_name_problem),
    WithJsonSchema({"type": "string", "pattern": names.RESOURCE_NAME_PATTERN}),
]
HostPath = Annotated[
    str, _text(names.path_problem), WithJsonSchema({"type": "string", "pattern": _PATH_PATTERN})
]
TemplateText = Annotated[
    Template,
    PlainValidator(_template),
    WithJsonSchema({"type": "string", "pattern": TEMPLATE_PATTERN}),
]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
Removal = Annotated[
    float,
    PlainValidator(_removal),
    WithJsonSchema({"anyOf": [{"const": "never"}, _DURATION_SCHEMA]}),
]
TopologyChoice = Annotated[
    int | Literal["auto", "none"],
    PlainValidator(_topology),
    WithJsonSchema({"anyOf": [{"enum": ["auto", "none"]}, {"type": "integer", "minimum": 0}]}),
]
Permissions = Annotated[
    str,
    _text(_permissions),
    WithJsonSchema({"type": "string", "pattern": r"^(?!.*(.).*\1)[rwm]+$"}),
]
FileType = Literal["file", "directory", "char", "block", "socket", "symlink"]
Positive = Annotated[StrictInt, Field(ge=1, le=SHARES_MAX)]

# A list in the file is a tuple here; one text alone is a list of one.
_List: Final = Field(strict=False)
_NotEmpty: Final = Field(strict=False, min_length=1)
_PathList = Annotated[list[HostPath], Field(min_length=1)]
Strings = Annotated[
    tuple[StrictStr, ...],
    _List,
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]
Paths = Annotated[
    tuple[HostPath, ...],
    _NotEmpty,
    BeforeValidator(_listed, json_schema_input_type=HostPath | _PathList),
]
Templates = Annotated[
    tuple[TemplateText, ...],
    _NotEmpty,
    BeforeValidator(
        _listed,
        json_schema_input_type=TemplateText | Annotated[list[TemplateText], Field(min_length=1)],
    ),
]
FileTypes = Annotated[
    tuple[FileType, ...],
    _NotEmpty,
    BeforeValidator(
        _listed, json_schema_input_type=FileType | Annotated[list[FileType], Field(min_length=1)]
    ),
]


# ── sources ────────────────────────────────────────────────────────────────────────────


class Directory(Model):
    """Each entry of a directory is a device."""

    path: HostPath
    """The directory on the host."""
    recursive: bool = False
    """Look below it too; a device's ID is then the path below the directory."""
    types: FileTypes = ("file",)
    """What counts as a device, judged through links."""
    include: Strings | None = None
    """RE2 patterns; only names that match one of them as a whole."""
    exclude: Strings = ()
    """RE2 patterns; no names that match one of them as a whole."""
    in_use: bool = False
    """Offer block devices that are mounted, swapped on or held."""


class Glob(Model):
    """Each path that matches is a device."""

    paths: Paths
    """Glob patterns on host paths; `**` stands for any directories."""
    exclude: Strings = ()
    """Glob patterns on the whole path, or on the name where they have no '/'."""
    types: FileTypes | None = None
    """What counts as a device, judged through links; anything unless told."""
    in_use: bool = False
    """Offer block devices that are mounted, swapped on or held."""


class Dev(Model):
    """Each device node below /dev whose path there matches is a device."""

    pattern: StrictStr
    """An RE2 pattern that matches the whole path below /dev; named groups become variables."""
    exclude: Strings = ()
    """RE2 patterns on the whole path below /dev."""
    types: FileTypes = ("char", "block")
    """What counts as a device, judged through links."""
    in_use: bool = False
    """Offer block devices that are mounted, swapped on or held."""


class Static(Model):
    """Nothing physical: tokens, slots."""

    count: Annotated[StrictInt, Field(ge=0, le=SHARES_MAX)] | None = None
    """So many devices, with the IDs 0, 1, and so on."""
    ids: Annotated[tuple[StrictStr, ...], _List] | None = None
    """The devices' IDs."""

    @model_validator(mode="after")
    def _one_option(self) -> Self:
        if (self.count is None) == (self.ids is None):
            raise ValueError("needs either count or ids")
        return self


Kind = Directory | Glob | Dev | Static
KINDS: Final = ("directory", "glob", "dev", "static")


class Source(Model):
    """Where devices come from: exactly one kind, and what is said of its node."""

    directory: (
        Annotated[
            Directory,
            BeforeValidator(_main_option("path"), json_schema_input_type=HostPath | Directory),
        ]
        | None
    ) = None
    """Each entry of a directory."""
    glob: (
        Annotated[
            Glob,
            BeforeValidator(
                _main_option("paths"), json_schema_input_type=HostPath | _PathList | Glob
            ),
        ]
        | None
    ) = None
    """Each path that matches."""
    dev: (
        Annotated[
            Dev, BeforeValidator(_main_option("pattern"), json_schema_input_type=str | Dev)
        ]
        | None
    ) = None
    """Each device node below /dev that matches."""
    static: (
        Annotated[
            Static,
            BeforeValidator(
                _static,
                json_schema_input_type=Annotated[int, Field(ge=0, le=SHARES_MAX)]
                | list[str]
                | Static,
            ),
        ]
        | None
    ) = None
    """Nothing physical."""
    role: StrictStr | None = Field(default=None, alias="as")
    """The name of this source's node in a device of several nodes."""
    optional: bool = False
    """A device of several nodes is complete without this one."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        named = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(named) != 1:
            found = f", not {' and '.join(named)}" if named else ""
            raise ValueError(f"needs exactly one of {', '.join(KINDS)}{found}")
        return self

    @property
    def kind(self) -> Kind:
        """The one kind that the source names."""
        kind = self.directory or self.glob or self.dev or self.static
        assert kind is not None, "validated"  # noqa: S101
        return kind


# ── what a container receives ──────────────────────────────────────────────────────────


class Text(Model):
    """The value of an environment variable or annotation."""

    value: TemplateText
    """A value that mentions a device variable is joined over the devices."""
    separator: StrictStr = ","
    """What stands between the devices' values."""
    optional: bool = False
    """Leave it out, rather than the device, where a variable has no value."""


class DeviceNode(Model):
    """A device node that the container receives."""

    host_path: TemplateText
    """The node on the host."""
    container_path: TemplateText | None = None
    """Where it is in the container; the same path unless told."""
    permissions: Permissions = "rw"
    """Of r (read), w (write) and m (mknod)."""
    optional: bool = False
    """Leave it out where the host does not have it."""


class Mount(Model):
    """A path of the host that is mounted into the container."""

    host_path: TemplateText
    """The path on the host."""
    container_path: TemplateText | None = None
    """Where it is in the container; the same path unless told."""
    read_only: bool = True
    """Mounted without write access."""
    optional: bool = False
    """Leave it out where the host does not have it."""


TextEntry = Annotated[
    Text, BeforeValidator(_main_option("value"), json_schema_input_type=TemplateText | Text)
]
DeviceEntry = Annotated[
    DeviceNode,
    BeforeValidator(_main_option("hostPath"), json_schema_input_type=TemplateText | DeviceNode),
]
MountEntry = Annotated[
    Mount, BeforeValidator(_main_option("hostPath"), json_schema_input_type=TemplateText | Mount)
]


class Allocate(Model):
    """What a container receives for the devices that it is given."""

    env: dict[StrictStr, TextEntry] = Field(default_factory=dict)
    """Environment variables: name to value."""
    devices: Annotated[tuple[DeviceEntry, ...], _List] | None = None
    """Device nodes; left out: every node of the devices, as it is."""
    mounts: Annotated[tuple[MountEntry, ...], _List] = ()
    """Mounts of host paths."""
    annotations: dict[StrictStr, TextEntry] = Field(default_factory=dict)
    """Annotations for the container runtime."""
    cdi: Annotated[tuple[TemplateText, ...], _List] = ()
    """Fully qualified CDI device names."""


# ── the rest of a resource ─────────────────────────────────────────────────────────────


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
    exec: Annotated[tuple[TemplateText, ...], _NotEmpty] | None = None
    """A command that exits 0."""

    @model_validator(mode="after")
    def _one_probe(self) -> Self:
        if (self.file is None) == (self.exec is None):
            raise ValueError("needs exactly one of file, exec")
        return self


Check = Annotated[
    Annotated[Literal["readable", "writable"], Tag("word")] | Annotated[Probe, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict) else "word"),
]


class HealthChecks(Model):
    """How a device's health is found out, beside that it exists."""

    checks: Annotated[tuple[Check, ...], _List] = ()
    """All must pass."""
    interval: Duration = 30.0
    """Between two rounds."""
    timeout: Duration = 5.0
    """For one check."""
    failures: Positive = 1
    """So many failed rounds make a device unhealthy."""
    recoveries: Positive = 1
    """So many good rounds make it healthy again."""


class Step(Model):
    """A step before a container starts: exactly one of run, mode, waitFor."""

    run: Annotated[tuple[TemplateText, ...], _NotEmpty] | None = None
    """A command, as a list of arguments."""
    mode: Annotated[StrictStr, Field(pattern=r"^[0-7]{3,4}$")] | None = None
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
    sources: Annotated[
        tuple[
            Annotated[Source, BeforeValidator(_source, json_schema_input_type=HostPath | Source)],
            ...,
        ],
        _NotEmpty,
    ]
    """Where devices come from."""
    id: Templates | None = None
    """A device's ID; of a list, the first whose variables all have a value."""
    group: TemplateText | None = None
    """Joins candidates of equal key into one device."""
    allocate: Allocate = Allocate()
    """What a container receives."""
    max_devices: Positive | None = None
    """Offer at most so many devices."""
    overlap: Literal["allow", "deny"] = "deny"
    """Whether to offer nodes that an earlier resource offers."""
    replicas: Positive = 1
    """Advertise each device so many times."""
    max_per_container: Positive | None = None
    """Hand out at most so many shares of one device to a container."""
    prefer: Literal["packed", "spread", "numa", "none"] = "none"
    """Which of the free devices a container gets."""
    topology: TopologyChoice = "auto"
    """The NUMA node of the devices: from the host, none, or a number."""
    remove_missing_after: Removal = 300.0
    """How long a vanished device stays in the list, as unhealthy."""
    health: (
        Annotated[
            HealthChecks,
            BeforeValidator(_main_option("checks"), json_schema_input_type=list[Check] | HealthChecks),
        ]
        | None
    ) = None
    """Checks of the devices' health."""
    pre_start: Annotated[tuple[Step, ...], _List] = ()
    """Steps before a container starts."""
    node_names: Strings | None = None
    """Globs; the resource is served only on nodes with such a name."""


class Config(Model):
    """A configuration file."""

    version: Literal["v1"]
    """The version of the language."""
    resources: Annotated[tuple[Resource, ...], _List]
    """The resources that this host serves."""
