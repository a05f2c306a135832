"""Where devices come from: one class for each kind of source."""

from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, StrictStr, model_validator

from devhost.model.mapping import Model
from devhost.model.values import (
    SHARES_MAX,
    AsTuple,
    Count,
    FileTypes,
    HostPath,
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
    """The directory on the host."""
    recursive: bool = False
    """Include what is below; a device's ID is then its path relative to the directory."""
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
    """What counts as a device, judged through links; left out: all but directories."""
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

    count: Count | None = None
    """So many devices, with the IDs 0, 1, and so on."""
    ids: Annotated[tuple[StrictStr, ...], AsTuple] | None = None
    """The devices' IDs."""

    @model_validator(mode="after")
    def _one_option(self) -> Self:
        if (self.count is None) == (self.ids is None):
            raise ValueError("needs either count or ids")
        return self


Kind = Directory | Glob | Dev | Static
KINDS: Final = ("directory", "glob", "dev", "static")


class Source(Model):
    """Where devices come from: exactly one kind, and options of its node."""

    directory: (
        Annotated[
            Directory,
            BeforeValidator(main_option("path"), json_schema_input_type=HostPath | Directory),
        ]
        | None
    ) = None
    """Each entry of a directory."""
    glob: (
        Annotated[
            Glob,
            BeforeValidator(
                main_option("paths"), json_schema_input_type=HostPath | PathList | Glob
            ),
        ]
        | None
    ) = None
    """Each path that matches."""
    dev: (
        Annotated[Dev, BeforeValidator(main_option("pattern"), json_schema_input_type=str | Dev)]
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


def _source(value: object) -> object:
    if isinstance(value, str):
        if value.startswith("/"):
            return {"glob": value}
        raise ValueError(
            f"{value!r} is no source: a path begins with '/', any other source names its kind, "
            "such as 'dev: kvm'"
        )
    return value


SourceEntry = Annotated[Source, BeforeValidator(_source, json_schema_input_type=HostPath | Source)]
