"""A configuration that devhost writes for a person: resources, and comments that explain them."""

import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml
from pydantic import ValidationError

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import ResourceReport, report
from devhost.drafts.rights import Rights, rights_of_report
from devhost.hostfs.files import HostFiles, describe_read_error, is_wild
from devhost.model.config import Resource
from devhost.model.names import printable

DOMAIN: Final = "example.com"  # of resources, unless a person says another one
_COLUMNS: Final = 96
# Strings that no reader of YAML takes for anything else, whatever its version: Go's, JavaScript's
# and Python's differ in what is a number, a truth value or a date.
_PLAIN: Final = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z/$][\w${}.*/-]*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """An entry of `resources` with comments above it, or comments alone.

    Attributes:
        active: Whether it is not commented out.
        rights: What a process has to be allowed for it.
    """

    resource: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    active: bool = True
    rights: Rights = field(default_factory=Rights)


def lost_entry(name: str, why: Exception | str) -> DraftEntry:
    """Return the comment that something is not carried over."""
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(why, OSError):  # what is below /dev cannot be read
        why = describe_read_error(why)
    return DraftEntry({}, (f"Not carried over: {name}: {why}",))


@dataclass(slots=True)
class NodeEntries:
    """The entries of the nodes with some labels."""

    name: str
    labels: Mapping[str, str]
    entries: list[DraftEntry] = field(default_factory=list)
    _starts: set[str] = field(default_factory=set)  # of the paths that they give
    _heads: set[str] = field(default_factory=set)  # which these begin with

    def add(self, entry: DraftEntry) -> None:
        """Add an entry, or why a file may not have it; nodes of an earlier one may be shared."""
        if entry.resource:
            name, loaded = entry.resource["name"], loads(render((), [entry]))
            errors = [problem.message for problem in loaded.problems if problem.severity == "error"]
            if any(former.resource.get("name") == name for former in self.entries):
                errors = ["a second resource of this name"]
            if errors:
                entry = lost_entry(name, errors[0])
            elif self._share(loaded.require().resources[0]):
                entry = replace(entry, resource={**entry.resource, "overlap": "allow"})
        self.entries.append(entry)

    def _share(self, resource: Resource) -> bool:
        """Add what a resource gives; return whether a path before may match it, or is around it."""
        nodes = resource.allocate.devices or ()
        paths = [str(node.host_path) for node in nodes if not node.host_path.names]
        paths += [path for source in resource.sources if source.glob for path in source.glob.paths]
        is_shared = False
        for path in paths:
            start = re.split(r"[*?[]", path)[0] + "/" * (not is_wild(path))
            heads = {start[:length] for length in range(len(start) + 1)}
            is_shared |= start in self._heads or not heads.isdisjoint(self._starts)
            self._starts.add(start)
            self._heads |= heads
        return is_shared


def replicas(count: int) -> dict[str, int]:
    """Return the option that gives each device to so many containers; none for a single one."""
    return {"replicas": count} if count > 1 else {}


def unused_name(name: str, used: set[str]) -> str:
    """Return a name, with a number if it is used; add it to those."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    used.add(unused := next(name for name in names if name not in used))
    return unused


def render(
    header: Iterable[str],
    entries: Sequence[DraftEntry],
    *,
    values: bool = False,
    profiles: Sequence[NodeEntries] = (),
) -> str:
    """Return a configuration file, or values of the chart that have it, and what it needs."""
    above, indent = ("config:", "  ") if values else ("version: v1", "")
    lines = [*_comments(header), above, *_resources(entries, indent, values=values)]
    lines += ["", "profiles:"] if profiles else []
    for profile in profiles:
        head = yaml_lines([{"name": profile.name, "nodeSelector": dict(profile.labels)}])
        lines += [f"  {line}" for line in [*head, "  config:", "    version: v1"]]
        lines += _resources(profile.entries, " " * 6, values=values)
        entries = [*entries, *profile.entries]
    rights = needed_rights(entries)
    if values and rights.values():
        lines += ["", *yaml_lines(rights.values())]
    elif flags := rights.flags():
        lines += ["", "# It needs flags of `plan`, `try` and `run`:", f"# {flags}"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _resources(entries: Sequence[DraftEntry], indent: str, *, values: bool) -> list[str]:
    if any(entry.active and entry.resource for entry in entries):
        lines = [f"{indent}resources:"]
    else:
        lines = [f"{indent}resources: []  # remove the brackets when there is an entry"]
        lines += [""] * bool(entries)
    for number, entry in enumerate(entries):
        block = ([""] if number else []) + entry_lines(entry, values=values)
        lines += [f"{indent}  {line}" for line in block]
    return lines


def report_entries(entries: Sequence[DraftEntry], files: HostFiles) -> tuple[ResourceReport, ...]:
    """Return what each entry that is not commented out would offer on a host. Blocks."""
    return report(loads(render((), entries)).require(), files, Policy(trusted=True), "")


def with_rights(entries: Sequence[DraftEntry], files: HostFiles) -> list[DraftEntry]:
    """Return entries with what they need on a host. Blocks."""
    reports = iter(report_entries([entry for entry in entries if entry.resource], files))
    return [
        replace(entry, rights=rights_of_report(next(reports), files)) if entry.resource else entry
        for entry in entries
    ]


def needed_rights(entries: Iterable[DraftEntry]) -> Rights:
    """Return what a process has to be allowed for the entries that are not commented out."""
    parts = [entry.rights for entry in entries if entry.active]
    rights = dict.fromkeys(right for part in parts for right in part.rights)
    return Rights(tuple(rights), any(part.writes_specs for part in parts))


def entry_lines(entry: DraftEntry, *, values: bool = False, with_rights: bool = False) -> list[str]:
    """Return the lines of an entry: its comments, and its resource.

    They say what has to be allowed for it ``with_rights``, and where it is commented out.
    """
    mark, comments = "" if entry.active else "# ", entry.comments
    if with_rights or not entry.active:
        needed = entry.rights.text(values=values)
        comments += (f"It needs {needed}",) if needed else ()
    resource = yaml_lines([entry.resource]) if entry.resource else ()
    return [*_comments(comments), *(f"{mark}{line}" for line in resource)]


def yaml_lines(data: object) -> list[str]:
    """Return the lines of a value; what has no lists or mappings is on one line."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=sys.maxsize
    )
    return text.splitlines()


class _Dumper(yaml.SafeDumper):
    """Writes strings in quotes unless every reader takes them for strings without."""

    def choose_scalar_style(self) -> str:
        style: str = super().choose_scalar_style()
        scalar: Any = self.event
        is_text = scalar.implicit[1]
        return '"' if is_text and (style or not _PLAIN.fullmatch(scalar.value)) else style

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _comments(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            printable(text),
            _COLUMNS,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or ["#"]
