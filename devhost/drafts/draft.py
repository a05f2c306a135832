"""A configuration that devhost writes for a person: resources, and comments that explain them."""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from devhost.model.names import printable

_COLUMNS: Final = 96
# Strings that no reader of YAML takes for anything else, whatever its version: Go's, JavaScript's
# and Python's differ in what is a number, a truth value or a date.
_PLAIN: Final = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z/$][\w${}.*/-]*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """An entry of `resources` with comments above it, or comments alone."""

    resource: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    active: bool = True  # else it is commented out


def render(header: Iterable[str], entries: Sequence[DraftEntry], *, values: bool = False) -> str:
    """Return a configuration file, or values of the chart that have it."""
    above, indent = ("config:", "  ") if values else ("version: v1", "")
    lines = [*_comments(header), above]
    if any(entry.active and entry.resource for entry in entries):
        lines.append(f"{indent}resources:")
    else:
        lines += [f"{indent}resources: []  # remove the brackets when there is an entry", ""]
    for number, entry in enumerate(entries):
        lines += [f"{indent}  {line}" for line in ([""] if number else []) + entry_lines(entry)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def entry_lines(entry: DraftEntry) -> list[str]:
    """Return the lines of an entry: its comments, and its resource."""
    mark = "" if entry.active else "# "
    resource = resource_lines(entry.resource) if entry.resource else ()
    return [*_comments(entry.comments), *(f"{mark}{line}" for line in resource)]


def resource_lines(resource: Mapping[str, Any]) -> list[str]:
    """Return the lines of an entry of `resources`; what has no lists or mappings is on one line."""
    text: str = yaml.dump(
        [resource], Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=sys.maxsize
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
