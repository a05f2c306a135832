"""A configuration that devhost writes for a person: resources, and comments that explain them."""

import io
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from devhost.model.immutable import immutable
from devhost.model.names import printable

_COLUMNS: Final = 96


@immutable
class DraftEntry:
    """An entry of `resources`, and what to say about it; without a resource only that."""

    resource: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    active: bool = True  # else it is commented out


def text(header: Iterable[str], entries: Sequence[DraftEntry], *, values: bool = False) -> str:
    """Return a configuration file, or values of the chart that have it."""
    above, indent = ("config:", "  ") if values else ("version: v1", "")
    lines = [*_comments(header), above]
    if any(one.active and one.resource for one in entries):
        lines.append(f"{indent}resources:")
    else:
        lines += [f"{indent}resources: []  # remove the brackets when there is an entry", ""]
    for number, entry in enumerate(entries):
        shown = resource_lines(entry.resource) if entry.resource else ()
        mark = "" if entry.active else "# "
        some = [*([""] if number else []), *_comments(entry.comments)]
        lines += [f"{indent}  {one}" for one in (*some, *(f"{mark}{line}" for line in shown))]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def resource_lines(resource: Mapping[str, Any]) -> list[str]:
    """Return the lines of an entry of `resources`; each item of a list in it is on one line."""
    node = yaml.SafeDumper(io.StringIO(), sort_keys=False).represent_data(resource)
    _set_style(node)
    entry = yaml.SequenceNode("tag:yaml.org,2002:seq", [node], flow_style=False)
    text: str = yaml.serialize(entry, Dumper=_Dumper, width=sys.maxsize)
    return text.splitlines()


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Begin the items of a list further right than its key."""
        super().increase_indent(flow)

    def analyze_scalar(self, scalar: str) -> Any:
        """Write 0403:6001 without quotes, also in braces."""
        found = super().analyze_scalar(scalar)
        if not set(scalar) & set("{}[],?") and not scalar.startswith(":"):
            found.allow_flow_plain = found.allow_block_plain
        return found


def _set_style(node: Any, *, flow: bool = False) -> None:
    if isinstance(node, yaml.CollectionNode):
        node.flow_style = flow
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _set_style(value, flow=flow)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _set_style(item, flow=True)
            if isinstance(item, yaml.MappingNode) and len(item.value) == 1:
                item.flow_style = flow  # needs no braces


def _comments(texts: Iterable[str]) -> Iterator[str]:
    for one in texts:
        yield from textwrap.wrap(
            printable(one),
            _COLUMNS,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or ["#"]
