"""A configuration that devhost writes for a person: resources, and comments that explain them."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from devhost.loading.yamltree import reads_as_string
from devhost.model.immutable import immutable
from devhost.model.names import printable

_PLAIN: Final = re.compile(r"[A-Za-z0-9$/_.*-][A-Za-z0-9$/_.*:{} -]*")
_COLUMNS: Final = 100


@immutable
class DraftEntry:
    """An entry of `resources`, and what to say about it; without a resource only that."""

    resource: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    active: bool = True  # else it is commented out


def text(header: Iterable[str], entries: Sequence[DraftEntry]) -> str:
    """Return a configuration file."""
    lines = [*_comments(header, ""), "version: v1"]
    if any(one.active and one.resource for one in entries):
        lines.append("resources:")
    else:
        lines += ["resources: []  # remove the brackets when there is an entry", ""]
    for number, entry in enumerate(entries):
        lines += [*([""] if number else []), *_comments(entry.comments, "  ")]
        shown = resource_lines(entry.resource) if entry.resource else ()
        lines += [f"  {'' if entry.active else '# '}{line}" for line in shown]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def resource_lines(resource: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of an entry of `resources`, as people write them."""
    mark = "- "
    for key, value in resource.items():
        for line in _block(key, value):
            yield mark + line
            mark = "  "


def _block(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{key}:"
        for name, one in value.items():
            yield from (f"  {line}" for line in _block(name, one))
    elif isinstance(value, list) and value:
        yield f"{key}:"
        for one in value:
            yield f"  - {_item(one)}"
    else:
        yield f"{key}: {_scalar(value, flow=False) if value != [] else '[]'}"


def _item(value: Any) -> str:
    """Return an item of a list: a mapping with one key needs no braces, a path no `glob`."""
    if isinstance(value, dict) and len(value) == 1:
        ((key, one),) = value.items()
        if key == "glob" and isinstance(one, str):
            return _scalar(one, flow=False)
        return f"{key}: {_flow(one)}"
    return _flow(value) if isinstance(value, dict | list) else _scalar(value, flow=False)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: object, *, flow: bool = True) -> str:
    """Return a scalar, quoted where YAML would read something else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = str(value)
    if isinstance(value, int):
        return shown
    plain = bool(_PLAIN.fullmatch(shown)) and not (flow and set(shown) & set("{}"))
    plain = plain and ": " not in shown and shown.strip() == shown and not shown.endswith(":")
    if plain and shown[0] not in "*-" and reads_as_string(shown):
        return shown
    return "".join(
        one if one.isprintable() else f"\\U{ord(one):08x}"
        for one in json.dumps(shown, ensure_ascii=False)
    )


def _comments(texts: Iterable[str], indent: str) -> Iterator[str]:
    for one in texts:
        yield from textwrap.wrap(
            printable(one),
            _COLUMNS,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [f"{indent}#"]
