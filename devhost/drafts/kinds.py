"""The kinds of devices that applications want, each with all that it needs: see kinds.yaml."""

import functools
import importlib.resources
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from devhost.config import messages, yaml_tree
from devhost.config.checks import resource_checks
from devhost.config.documents import Document
from devhost.config.loader import loads, read
from devhost.config.yaml_errors import TreeError, decode, lines
from devhost.config.yaml_tree import Path
from devhost.drafts import draft
from devhost.drafts.draft import DOMAIN, DraftEntry
from devhost.errors import ConfigError, Problem
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.values import AsTuple, ConfigModel


class KindRow(ConfigModel):
    """A part of kinds.yaml; the comment at its top explains the keys."""

    resources: Annotated[tuple[dict[str, Any], ...], AsTuple]
    about: str = ""
    init: Literal["always", "named", "never"] = "always"
    whole: bool = False
    libraries: Annotated[tuple[str, ...], AsTuple] = ()
    note: str = ""
    reason: str = ""


Rows = Mapping[str, KindRow]


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
def rows() -> Rows:
    """Return the rows of kinds.yaml by name."""
    text = importlib.resources.files("devhost.drafts").joinpath("kinds.yaml").read_text("utf-8")
    return _parse(text, "kinds.yaml")


def load(file: str) -> Rows:
    """Return the rows of a user's file, then those of kinds.yaml with other names.

    Raises `OSError` if it cannot be read, and a `ConfigError` with every problem.
    """
    try:
        rows_of_file = _parse(decode(read(file)), file)
    except TreeError as error:
        problem = Problem("error", file, error.line, error.column, "", str(error))
        raise ConfigError([problem]) from None
    merged = {**rows_of_file, **rows(), **rows_of_file}  # in this order, and these values
    for problem in loads(draft.render((), [entry for _, entry in _entries(merged)])).problems:
        if problem.severity == "error":
            message = f"together with the kinds of devhost: {problem.message}"
            raise ConfigError([Problem("error", file, 1, 1, "", message)])
    return merged


def _parse(text: str, file: str) -> Rows:
    tree, rows = yaml_tree.parse(text), dict[str, KindRow]()
    if not isinstance(tree.data, dict):
        raise TreeError("should be kinds by their names", 1, 1)
    problems = [*messages.tree_problems(tree)]
    reported = {problem.path for problem in problems}
    for base, model, data in _parts(tree.data):
        try:
            value = model.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            problems += messages.shape_problems(details, base, tree, reported, model)
        else:
            if isinstance(value, KindRow):
                rows[str(*base)] = value
                continue
            for problem in resource_checks.check([(base, value)], None):
                if problem.severity == "error":
                    path = tree.existing(problem.path)
                    problems.append(problem._replace(path=path, on_key=False))
    if problems:
        problems.sort(key=tree.place)
        document = Document(lines(text), tree)
        raise ConfigError([document.problem(file, problem) for problem in problems])
    return rows


def _parts(data: Mapping[str, Any]) -> Iterator[tuple[Path, type[KindRow | Resource], Any]]:
    """Yield the rows of a file and their resources, with where they are and what they should be."""
    for name, row in data.items():
        yield (name,), KindRow, row
        resources = row.get("resources") if isinstance(row, dict) else None
        for index, resource in enumerate(resources if isinstance(resources, list) else ()):
            if isinstance(resource, dict):
                named = {**resource, "name": full_name(str(resource.get("name", "name")))}
                yield (name, "resources", index), Resource, named


def full_name(name: str, domain: str = DOMAIN) -> str:
    """Return the name of a resource with a domain, if it has none of its own."""
    return name if "/" in name else f"{domain}/{name}"


def _entries(rows: Rows) -> list[tuple[DeviceKind, DraftEntry]]:
    """Return the kinds of a host's devices, with entries that find these."""
    kinds = [
        DeviceKind(resource, row)
        for row in rows.values()
        if row.init != "never"
        for resource in row.resources
    ]
    return [
        (kind, DraftEntry({**kind.resource, "name": f"{DOMAIN}/{number}"}))
        for number, kind in enumerate(kinds)
    ]


def find_devices(files: HostFiles, rows: Rows) -> Iterator[tuple[DeviceKind, HostDevice]]:
    """Yield the devices of a host that are of a kind: each node of the first that finds it. Blocks.

    Raises `OSError` if the host cannot be read.
    """
    entries = _entries(rows)
    reports = draft.report_entries([entry for _, entry in entries], files)
    for (kind, _), report in zip(entries, reports, strict=True):
        yield from ((kind, device) for device in report.snapshot.devices.values() if device.healthy)
