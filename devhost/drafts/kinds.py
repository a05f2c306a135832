"""The kinds of devices that applications want, each with all that it needs: see kinds.yaml."""

import functools
import importlib.resources
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from devhost.config import messages, yaml_tree
from devhost.config.checks import resource_checks
from devhost.config.documents import Document
from devhost.config.loader import read
from devhost.config.yaml_errors import TreeError, decode, lines
from devhost.config.yaml_tree import Path, Tree, TreeProblem
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.errors import ConfigError
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.values import ConfigModel

_DOMAIN: Final = "example.com"


class KindRow(ConfigModel):
    """A part of kinds.yaml; the comment at its top explains the keys."""

    resources: list[dict[str, Any]]
    about: str = ""
    init: Literal["always", "named", "never"] = "always"
    whole: bool = False
    per_driver: bool = False
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
        own = _parse(decode(read(file)), file)
    except TreeError as error:
        at = error.line, error.column
        raise ConfigError([Document([], error).problem("error", file, (), str(error), at)]) from None
    return {**own, **{name: row for name, row in rows().items() if name not in own}}


def _parse(text: str, file: str) -> Rows:
    tree, parsed = yaml_tree.parse(text), dict[str, KindRow]()
    document = Document(lines(text), tree)
    if problems := [
        document.problem("error", file, path, message, at)
        for path, message, at in _problems(tree, parsed)
    ]:
        raise ConfigError(problems)
    return parsed


def _problems(tree: Tree, parsed: dict[str, KindRow]) -> Iterator[TreeProblem]:
    """Yield what is wrong with a file of kinds, and collect its rows by name."""
    reported = set[Path]()
    for path, message, at in messages.tree_problems(tree):
        reported.add(path)
        yield path, message, at
    if not isinstance(tree.data, dict):
        yield (), "should be kinds by their names", (1, 1)
        return
    for name, data in tree.data.items():
        base: Path = (name,)
        try:
            row = parsed[name] = KindRow.model_validate(data)
            for number, resource in enumerate(row.resources):
                base = name, "resources", number
                if "/" in str(resource.get("name")) and row.init != "never":
                    message = "a name without a domain: `init --domain` adds that"
                    yield (*base, "name"), message, tree.position((*base, "name"))[:2]
                yield from _resource_problems(base, resource, tree)
        except ValidationError as error:
            details = error.errors(include_url=False)
            root = base, Resource if base[1:] else KindRow
            yield from messages.shape_problems(details, base, tree, reported, root)


def _resource_problems(base: Path, data: Mapping[str, Any], tree: Tree) -> Iterator[TreeProblem]:
    """Yield what is wrong with a resource; raise a `ValidationError` if it has another shape."""
    name = str(data.get("name", "name"))
    name = name if "/" in name else f"{_DOMAIN}/{name}"
    resource = Resource.model_validate({**data, "name": name})
    for problem in resource_checks.check([(base, resource)], None):
        if problem.severity == "error":
            path = tree.existing(problem.path)
            yield path, problem.message, tree.position(path)[:2]


def find_devices(files: HostFiles, rows: Rows) -> Iterator[tuple[DeviceKind, HostDevice]]:
    """Yield the devices of a host that are of a kind: each node of the first that finds it. Blocks.

    Raises `OSError` if the host cannot be read.
    """
    kinds = [
        DeviceKind(resource, row)
        for row in rows.values()
        if row.init != "never"
        for resource in row.resources
    ]
    entries = [
        DraftEntry({**kind.resource, "name": f"{_DOMAIN}/{number}"})
        for number, kind in enumerate(kinds)
    ]
    reports = draft.report_entries(entries, files)
    by_kind = zip(kinds, (report.snapshot.devices.values() for report in reports), strict=True)
    return itertools.chain.from_iterable(
        ((kind, device) for device in devices if device.healthy) for kind, devices in by_kind
    )
