"""The kinds of devices that applications want, each with all that it needs: see kinds.yaml."""

import functools
import importlib.resources
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from devhost.config import yaml_tree
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles
from devhost.model.device import HostDevice


class KindRow(BaseModel):
    """A part of kinds.yaml; the comment at its top explains the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resources: tuple[dict[str, Any], ...]
    about: str = ""
    init: Literal["always", "named", "never"] = "always"
    whole: bool = False
    libraries: tuple[str, ...] = ()
    note: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """A resource of a row."""

    resource: Mapping[str, Any]
    row: KindRow

    @property
    def name(self) -> str:
        """The name of its resource without a domain; empty for that of the product."""
        return str(self.resource.get("name", ""))


@functools.cache
def rows() -> Mapping[str, KindRow]:
    """Return the rows by name."""
    text = importlib.resources.files("devhost.drafts").joinpath("kinds.yaml").read_text("utf-8")
    return TypeAdapter(dict[str, KindRow]).validate_python(yaml_tree.parse(text).data)


def find_devices(files: HostFiles) -> Iterator[tuple[DeviceKind, HostDevice]]:
    """Yield the devices of a host that are of a kind: each node of the first that finds it. Blocks.

    Raises `OSError` if the host cannot be read.
    """
    kinds = [
        DeviceKind(resource, row)
        for row in rows().values()
        if row.init != "never"
        for resource in row.resources
    ]
    entries = [
        DraftEntry({**kind.resource, "name": f"example.com/{number}"})
        for number, kind in enumerate(kinds)
    ]
    reports = draft.report_entries(entries, files)
    by_kind = zip(kinds, (report.snapshot.devices.values() for report in reports), strict=True)
    return itertools.chain.from_iterable(
        ((kind, device) for device in devices if device.healthy) for kind, devices in by_kind
    )
