"""Sources of devices: one class for each kind."""

from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, StrictStr, model_validator

from devhost.model.hardware import VFIO_NODE, Pci, Sysfs, Usb, device_option, sysfs_option
from devhost.model.mapping import Model
from devhost.model.values import (
    SHARES_MAX,
    AsTuple,
    Count,
    Duration,
    FileTypes,
    HostPath,
    NotEmpty,
    PathList,
    Paths,
    Strings,
    main_option,
)


def _static(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"ids" if isinstance(value, list) else "count": value}


class Directory(Model):
    """Each entry of a directory is a device."""

    path: HostPath
    """The path of the directory on the host."""
    recursive: bool = False
    """Include subdirectories; the ID of a device is then the path below the directory."""
    types: FileTypes = ("file",)
    """The file types that count as devices; links are resolved."""
    include: Strings | None = None
    """RE2 patterns; only names that one of them matches as a whole."""
    exclude: Strings = ()
    """RE2 patterns; no names that one of them matches as a whole."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Glob(Model):
    """Each path that matches is a device."""

    paths: Paths
    """Globs of host paths; `**` matches any directories."""
    exclude: Strings = ()
    """Globs of whole paths, or of names if they contain no '/'."""
    types: FileTypes | None = None
    """The file types that count as devices; links are resolved. Default: all but directories."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Dev(Model):
    """Each device node whose path below /dev matches is a device."""

    pattern: StrictStr
    """An RE2 pattern for the whole path below /dev; named groups become variables."""
    exclude: Strings = ()
    """RE2 patterns for the whole path below /dev."""
    types: FileTypes = ("char", "block")
    """The file types that count as devices; links are resolved."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Static(Model):
    """Tokens: devices without anything on the host."""

    count: Count | None = None
    """The number of devices; their IDs are 0, 1, and so on."""
    ids: Annotated[tuple[StrictStr, ...], AsTuple] | None = None
    """The IDs of the devices."""

    @model_validator(mode="after")
    def _one_option(self) -> Self:
        if (self.count is None) == (self.ids is None):
            raise ValueError("needs either count or ids")
        return self


class Exec(Model):
    """Each device that a command lists is a device."""

    command: Annotated[tuple[StrictStr, ...], NotEmpty]
    """The command, as a list of arguments."""
    interval: Duration = 60.0
    """The time between its end and its next start."""
    timeout: Duration = 10.0
    """The time limit for it."""


Kind = Directory | Glob | Dev | Static | Usb | Pci | Sysfs | Exec
KINDS: Final = ("directory", "glob", "dev", "static", "usb", "pci", "sysfs", "exec")


class Source(Model):
    """A source of devices: exactly one kind, and the options of its node."""

    directory: (
        Annotated[
            Directory,
            BeforeValidator(main_option("path"), json_schema_input_type=HostPath | Directory),
        ]
        | None
    ) = None
    """The entries of a directory."""
    glob: (
        Annotated[
            Glob,
            BeforeValidator(
                main_option("paths"), json_schema_input_type=HostPath | PathList | Glob
            ),
        ]
        | None
    ) = None
    """The paths that match."""
    dev: (
        Annotated[Dev, BeforeValidator(main_option("pattern"), json_schema_input_type=str | Dev)]
        | None
    ) = None
    """The device nodes below /dev that match."""
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
    """Tokens, without anything on the host."""
    usb: (
        Annotated[
            Usb,
            BeforeValidator(device_option, json_schema_input_type=str | list[str] | Usb),
        ]
        | None
    ) = None
    """The USB devices that match."""
    pci: (
        Annotated[
            Pci,
            BeforeValidator(device_option, json_schema_input_type=str | list[str] | Pci),
        ]
        | None
    ) = None
    """The PCI functions that match."""
    sysfs: (
        Annotated[Sysfs, BeforeValidator(sysfs_option, json_schema_input_type=str | Sysfs)] | None
    ) = None
    """The devices of a subsystem that match."""
    exec: (
        Annotated[
            Exec,
            BeforeValidator(main_option("command"), json_schema_input_type=list[str] | Exec),
        ]
        | None
    ) = None
    """The devices that a command lists."""
    role: StrictStr | None = Field(default=None, alias="as")
    """The name of this source's node in devices with several nodes."""
    optional: bool = False
    """Whether devices with several nodes are complete without this one."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        named = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(named) != 1:
            found = f", not {' and '.join(named)}" if named else ""
            raise ValueError(f"needs exactly one of {', '.join(KINDS)}{found}")
        return self

    @property
    def is_vfio(self) -> bool:
        """Whether its nodes are those of IOMMU groups."""
        choices = (self.pci.node or ()) if self.pci is not None else ()
        return any(choice.subsystem == VFIO_NODE for choice in choices)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names that its nodes have in templates: `as`, or their subsystems."""
        if self.role is not None:
            return (self.role,)
        match self.kind:
            case Usb(node=choices) | Pci(node=choices) if choices is not None:
                return tuple(choice.subsystem for choice in choices)
            case Sysfs(subsystem=subsystem):
                return (subsystem,)
        return ()

    @property
    def kind(self) -> Kind:
        """The kind of the source."""
        named = (getattr(self, name) for name in KINDS)
        kind: Kind | None = next((one for one in named if one is not None), None)
        assert kind is not None, "validated"  # noqa: S101
        return kind

    @property
    def finds_links(self) -> bool:
        """Whether it finds links, judging by the names that udev gives their directories."""
        match self.kind:
            case Directory(path=path):
                return "/by-" in path
            case Glob(paths=paths):
                return any("/by-" in path for path in paths)
            case Dev(pattern=text):
                return "/by-" in text
            case _:
                return False


def _source(value: object) -> object:
    if isinstance(value, str):
        if value.startswith("/"):
            return {"glob": value}
        kind, _, rest = value.partition(" ")
        if kind in KINDS and rest:
            raise ValueError(f"{value!r} is not a source; missing ':' after {kind!r}")
        raise ValueError(
            f"{value!r} is not a source; write a path that begins with '/', or the kind of source, "
            "such as 'dev: kvm'"
        )
    return value


SourceEntry = Annotated[Source, BeforeValidator(_source, json_schema_input_type=HostPath | Source)]
