"""Writes the tables of bounds in docs/security.md: ``python -m tools.bounds``.

They are those of `devhost.model.limits`, with the comments there, and a few others that stay with
their code.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devhost.model import limits

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "security.md"
_BEGIN, _END = "<!-- bounds: python -m tools.bounds -->\n", "<!-- end of bounds -->\n"
_HEADING: Final = re.compile(r"# ── (.*) ──+")
_CONSTANT: Final = re.compile(r"([A-Z_]+)(?:: Final)?[^=]* = [^#]*(?:#(.*))?")

_OTHERS: Final = (
    ("loading.syntax.SIZE_MAX", "bytes of a configuration file"),
    ("loading.yamltree.DEPTH_MAX", "levels of a configuration file"),
    ("loading.yamltree.NODES_MAX", "values in a configuration file"),
    ("loading.loader.PROBLEMS_MAX", "problems that are reported of a file"),
    ("model.values.DEVICES_MAX", "devices of a resource, unless `maxDevices` says another number"),
    ("model.values.SHARES_MAX", "IDs that a resource may declare"),
    ("kubelet.device_list.LIST_BYTES_MAX", "bytes of a list of devices that kubelet gets"),
    ("kubelet.podresources.ANSWER_BYTES_MAX", "bytes of an answer of pod-resources"),
    ("kubelet.servicer.ALLOCATE_TIMEOUT_S", "for the host to answer an Allocate"),
    ("observe.http.CONNECTIONS_MAX", "HTTP connections; a new one closes the oldest"),
    ("observe.http.HEAD_BYTES_MAX", "bytes of the head of an HTTP request"),
    ("observe.http.PATIENCE_S", "for an HTTP request and its response"),
    ("observe.logs.QUEUE_MAX", "lines of the log that wait to be written"),
    ("discovery.health.CONTENT_MAX", "bytes of a file that a health check reads"),
    ("watch.threads.ABANDONED_MAX", "calls of a resource that wait for a hanging filesystem"),
)


def tables() -> str:
    """Return the tables as Markdown.

    Raises:
        ValueError: A constant of `devhost.model.limits` is in none.
    """
    shown = {name for one in _parts() for name in one.names}
    if lost := [name for name in vars(limits) if name.isupper() and name not in shown]:
        raise ValueError(f"not in the form that is read here: {', '.join(lost)}")
    lines: list[str] = []
    in_table = False
    for one in (*_parts(), _Part("### Others"), *_others()):
        if one.names:
            lines += [] if in_table else ["", *_HEAD]
            names, values = "<br>".join(f"`{name}`" for name in one.names), "<br>".join(one.values)
            lines.append(f"| {names} | {values} | {one.text} |")
        else:
            lines += ["", one.text]
        in_table = bool(one.names)
    return "\n".join(lines).lstrip() + "\n"


_HEAD: Final = ("| bound | value | what it limits |", "| --- | --- | --- |")


@dataclass
class _Part:
    """Constants with what is said of them, or a heading or a paragraph."""

    text: str = ""
    names: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.text = f"{self.text} {text.strip()}".strip()


def _parts() -> Iterator[_Part]:
    """Yield what is in `devhost.model.limits`, in its order."""
    source = Path(limits.__file__).read_text(encoding="utf-8")
    part = _Part()
    for line in [*source.partition("Final\n")[2].splitlines(), ""]:
        if constant := _CONSTANT.fullmatch(line):
            part.names.append(constant[1])
            part.values.append(_shown(constant[1], getattr(limits, constant[1])))
            part.say(constant[2] or "")
            continue
        if part.names or (part.text and not line.startswith("#")):
            yield part
            part = _Part()
        if heading := _HEADING.fullmatch(line):
            yield _Part(f"### {heading[1].capitalize()}")
        elif line.startswith("#"):
            part.say(line.removeprefix("#"))


def _others() -> Iterator[_Part]:
    for path, text in _OTHERS:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(f"devhost.{module}"), name)
        yield _Part(text, [name], [_shown(name, value)])


def _shown(name: str, value: float) -> str:
    if name.endswith("_PER_S"):
        return f"{value:g} a second"
    if name.endswith("_S"):
        return f"{value:g} s"
    if "BYTES" in name or name in ("SIZE_MAX", "CONTENT_MAX"):
        unit = next(one for one in ((20, "MiB"), (10, "KiB"), (0, "B")) if value >= 1 << one[0])
        return f"{round(value / (1 << unit[0]))} {unit[1]}"
    return f"{value:,}"


def written(text: str) -> str:
    """Return the document with the tables of now."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{tables()}{_END}{after}"


def main() -> None:
    """Write the document."""
    fresh = written(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(fresh, encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT.name} written\n")


if __name__ == "__main__":
    main()
