"""Sources of devices: one class for each kind."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from devhost.model import values
from devhost.model.hardware_sources import VFIO_NODE, Globs, Pci, Sysfs, Usb
from devhost.model.values import ConfigModel, shorthand


def _static(value: object) -> object:
    if isinstance(value, dict):
        return value
    is_list = isinstance(value, list) or (isinstance(value, str) and not value.isdecimal())
    return {"ids" if is_list else "count": value}


class Directory(ConfigModel):
    """Each entry of a directory is a device."""

    main = "path"
    path: values.DirectoryPath
    """The path of the directory on the host."""
    recursive: bool = False
    """Include subdirectories; the ID of a device is then the path below the directory."""
    types: values.FileTypes = ("file",)
    """The file types that count as devices; links are resolved."""
    include: values.NameGlobs | None = None
    """Globs; only names that match one of them."""
    exclude: values.NameGlobs = ()
    """Globs; no names that match one of them."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Glob(ConfigModel):
    """Each path that matches is a device."""

    main = "paths"
    paths: values.PathGlobs
    """Globs of host paths; `**` matches any directories."""
    exclude: values.NameGlobs = ()
    """Globs of whole paths, or of names if they contain no '/'."""
    types: values.FileTypes | None = None
    """The file types that count as devices; links are resolved. Default: all but directories."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Dev(ConfigModel):
    """Each device node whose path below /dev matches is a device."""

    main = "pattern"
    pattern: values.DevPattern
    """An RE2 pattern for the whole path below /dev; named groups become variables."""
    exclude: values.NameGlobs = ()
    """Globs of whole paths below /dev, or of names if they contain no '/'."""
    types: values.FileTypes = ("char", "block")
    """The file types that count as devices; links are resolved."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""


class Static(ConfigModel):
    """Tokens: devices without anything on the host."""

    count: values.Count | None = None
    """The number of devices; their IDs are 0, 1, and so on."""
    ids: values.DeviceIds | None = None
    """The IDs of the devices."""
    one_of = ("count", "ids")


class Cdi(ConfigModel):
    """Each device of a kind in CDI specs is a device."""

    main = "kind"
    kind: values.CdiKind
    """The vendor and the class, such as nvidia.com/gpu."""
    name: Globs | None = None
    """Globs of names. One that stands for several devices, such as all, is named in full."""
    exclude: values.NameGlobs = ()
    """Globs; no devices that have a name that matches one of them."""


Kind = Directory | Glob | Dev | Static | Usb | Pci | Sysfs | Cdi
KINDS: Final = ("directory", "glob", "dev", "static", "usb", "pci", "sysfs", "cdi")
_PREFIXES: Final = ("usb", "pci", "attr", "cdi")  # of variables that these sources give


class Source(ConfigModel):
    """A source of devices: exactly one kind, and the options of its node."""

    directory: Directory | None = None
    """The entries of a directory."""
    glob: Glob | None = None
    """The paths that match."""
    dev: Dev | None = None
    """The device nodes below /dev that match."""
    static: (
        Annotated[Static, shorthand(_static, values.Count | values.DeviceIds | Static)] | None
    ) = None
    """Tokens, without anything on the host."""
    usb: Usb | None = None
    """The USB devices that match."""
    pci: Pci | None = None
    """The PCI functions that match."""
    sysfs: Sysfs | None = None
    """The devices of a subsystem that match."""
    cdi: Cdi | None = None
    """The devices that a vendor describes in CDI specs."""
    role: Annotated[values.Role | None, Field(alias="as")] = None
    """The name of this source's node in devices with several nodes."""
    optional: bool = False
    """Whether devices with several nodes are complete without this one."""
    one_of = KINDS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.role in _PREFIXES and isinstance(self.kind, Usb | Pci | Sysfs | Cdi):
            reserved = ", ".join(_PREFIXES)
            raise ValueError(f"as: {reserved} are names of variables already; choose another")
        if self.role is not None and isinstance(self.kind, Usb | Pci) and len(self.kind.node) > 1:
            first = self.kind.node[0].subsystem
            raise ValueError(f"'as' names one node, and there are several: ${{{first}.path}}, …")
        return self

    @property
    def is_vfio(self) -> bool:
        """Whether its nodes are those of IOMMU groups."""
        choices = self.pci.node if self.pci is not None else ()
        return any(choice.subsystem == VFIO_NODE for choice in choices)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names that its nodes have in templates: `as`, or their subsystems."""
        if self.role is not None:
            return (self.role,)
        match self.kind:
            case Usb(node=choices) | Pci(node=choices):
                return tuple(choice.subsystem for choice in choices)
            case Sysfs(subsystem=subsystem, node=None):
                return (subsystem,)
        return ()

    @property
    def kind(self) -> Kind:
        """The kind of the source."""
        kinds = (getattr(self, name) for name in KINDS)
        kind: Kind = next(kind for kind in kinds if kind is not None)  # validated
        return kind

    @property
    def finds_links(self) -> bool:
        """Whether it finds links, judging by the names that udev gives their directories."""
        match self.kind:
            case Directory(path=text) | Dev(pattern=text):
                return "/by-" in text
            case Glob(paths=paths):
                return any("/by-" in path for path in paths)
        return False


def _source(value: object) -> object:
    if isinstance(value, str):
        if value.startswith("/"):
            return {"glob": value}
        raise ValueError(
            f"{value!r} is not a source; write a path that begins with '/', or the kind of source, "
            "such as 'dev: kvm'"
        )
    return value


SourceEntry = Annotated[Source, shorthand(_source, values.PathGlob | Source)]
