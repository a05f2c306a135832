"""The output of commands: lines, tables, JSON, problems of configurations.

Names of files and devices may have any characters. None that moves the cursor, turns the text
around or cannot be seen gets out of here as it is.
"""

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Final, NoReturn, TextIO

import click

from devhost.backends.share_ids import offered_id
from devhost.cli.options import DEFAULT_CONFIG
from devhost.errors import Excerpt, Problem
from devhost.model.names import printable

_COLUMNS_MIN: Final = 40
_CELL_MIN: Final = 8
_WORDS_MIN: Final = 24
_GAP: Final = "   "  # between columns
_TAB: Final = "    "
_COLORS: Final = {"error": "red", "warning": "yellow", "note": "blue"}


def echo(*lines: str) -> None:
    """Print lines; on failure print an error and exit with status 1."""
    for line in lines:
        _print(printable(line))


def note(line: str) -> None:
    """Print a line to standard error."""
    click.echo(printable(line), err=True)


def fail(message: str) -> NoReturn:
    """Print an error and exit with status 1."""
    note(f"devhost: {message}")
    sys.exit(1)


def exit_without_config(file: str) -> NoReturn:
    """Exit with status 1; where there is no file at the default path, name what writes one."""
    if file == DEFAULT_CONFIG and not os.path.lexists(file):
        note("devhost: `devhost init -o FILE` writes a configuration for this host")
    sys.exit(1)


def print_warnings(texts: Iterable[str]) -> None:
    """Print warnings about the command line."""
    for text in texts:
        note(f"warning: {text}")


def _print(text: str) -> None:
    if sys.stdout is None:
        fail("standard output is closed")
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # the reader has closed the pipe: click exits silently
    except OSError as error:
        # Otherwise flushing the buffer at exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"cannot write to standard output: {error.strerror}")


def print_json(value: Any) -> None:
    """Print JSON, in ASCII."""
    _print(json.dumps(value, indent=2))


def print_value(value: Any, output: str) -> None:
    """Print a value as JSON or YAML, in ASCII."""
    if output == "json":
        print_json(value)
        return
    import yaml

    plain = json.loads(json.dumps(value))  # else what is in it twice becomes an alias
    _print(yaml.dump(plain, Dumper=yaml.CSafeDumper, sort_keys=False, width=2**31 - 1).rstrip())


def check_names(wanted: Iterable[str], names: Collection[str], where: str = "") -> None:
    """Exit with status 1 and a suggestion if a wanted name is not that of a resource."""
    from devhost.model.spelling import nearest

    # Most have the domain in common, which would make all of them near.
    by_last_part = {name.rpartition("/")[2]: name for name in names}
    for name in sorted({*wanted}.difference(names)):
        near = by_last_part.get(nearest(name.rpartition("/")[2], by_last_part))
        hint = f"; did you mean '{near}'?" if near else ""
        fail(f"no resource {name}{where}{hint}")


def print_nothing(node_name: str, *, listed: bool) -> None:
    """Explain why there is no output, with or without resources in the file."""
    reason = f"no resources for node {node_name} (--node-name)"
    note(f"devhost: {reason if listed else 'no resources in the file; see `devhost init`'}")


# ── a terminal ──


def moves_cursor() -> bool:
    """Whether a terminal knows escape sequences, if there is one."""
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _columns() -> int:
    """Return how many columns the terminal has."""
    return max(shutil.get_terminal_size().columns, _COLUMNS_MIN)


# ── tables as kubectl prints them: a line for each row, folded only where a terminal is narrower ──


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, with something in every cell but the last of a row."""
    table = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    table = [[*(cell or "-" for cell in row[:-1]), row[-1]] for row in table]
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    if sys.stdout is not None and sys.stdout.isatty():
        room = _columns() - len(_GAP) * (len(widths) - 1)
        while sum(widths) > room and max(widths) > _CELL_MIN:
            # The last one first, which has words.
            widths[-1 if widths[-1] > _WORDS_MIN else widths.index(max(widths))] -= 1
    for row in table:
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            padded = (
                text + " " * (width - cells(text)) for text, width in zip(line, widths, strict=True)
            )
            _print(_GAP.join(padded).rstrip())


def _fold(cell: str, width: int) -> list[str]:
    """Return the lines of a cell, at most so wide."""
    if cells(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width if cell.isascii() else width // 2, break_on_hyphens=False)


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    spacing = (char for char in text if unicodedata.category(char) not in ("Mn", "Me"))
    return sum(2 if unicodedata.east_asian_width(char) in ("W", "F") else 1 for char in spacing)


def print_resource(
    shown: Mapping[str, Any], held: Mapping[str, str] | None = None, *, wide: bool
) -> None:
    """Print a resource of `-o json`, and the pods that have each device, where that is known."""
    shares = "shares " if shown["capacity"] > len(shown["devices"]) else ""
    counts = f"{shown['allocatable']} of {shown['capacity']} {shares}allocatable"
    if shown.get("missing"):
        counts += f", {shown['missing']} missing"
    state = f"{shown['state']} since {shown['since']}, " if "state" in shown else ""
    echo(f"{shown['name']}: {state}{counts}")
    for heading in ("reason", "error"):
        if shown.get(heading):
            echo(f"  {heading}: {shown[heading]}")
    if (dra := shown.get("dra")) is not None:
        claims = ", ".join(dra.get("claims", ())) or "none"
        detail = f"slices: {len(dra['slices'])}" if "slices" in dra else f"claims: {claims}"
        echo(f"  by DRA: driver {dra['driver']}, pool {dra['pool']}, {detail}")
    for warning in shown["warnings"]:
        echo(f"  warning: {warning}")
    if shown["devices"]:
        _print_devices(shown["devices"], held, wide=wide)
    for skipped in shown["skipped"]:
        echo(f"  skipped {skipped['candidate']}: {skipped['reason']}")


def pods_by_device(holders: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the pods that have each device or a share of it."""
    by_device: dict[str, set[str]] = {}
    for advertised_id, names in holders.items():
        by_device.setdefault(offered_id(advertised_id).device, set()).update(names)
    return {device_id: ", ".join(sorted(names)) for device_id, names in by_device.items()}


def _print_devices(
    devices: Sequence[Mapping[str, Any]], held: Mapping[str, str] | None, *, wide: bool
) -> None:
    columns = {
        "DEVICE": [device["id"] for device in devices],
        "HEALTH": [device["health"] for device in devices],
        "HELD BY": [(held or {}).get(device["id"], "") for device in devices],
        "NUMA": [",".join(map(str, device["numaNodes"])) for device in devices],
        "PATHS": [", ".join(device["paths"]) for device in devices],
        "CHECKED": [(device.get("checked") or {}).get("at", "") for device in devices],
        "REASON": [device["reason"] or _last_check(device.get("checked")) for device in devices],
    }
    if held is None:
        del columns["HELD BY"]
    if not wide:
        del columns["CHECKED"]
        columns = {heading: column for heading, column in columns.items() if any(column)}
    print_table(list(columns), zip(*columns.values(), strict=True))


def _last_check(checked: Mapping[str, Any] | None) -> str:
    """Return the result of the last checks of a device that is healthy in spite of it, or ""."""
    if checked is None:
        return ""
    if checked["unknown"]:
        return f"not checked: {checked['unknown']}"
    return f"last check failed: {checked['failure']}" if checked["failure"] else ""


def print_slice_devices(slices: Sequence[Mapping[str, Any]]) -> None:
    """Print the devices of ResourceSlices, with what a claim can select them by."""
    rows = []
    for device in (device for content in slices for device in content["spec"]["devices"]):
        texts = [
            f"{name}={value}"
            for name, typed in device["attributes"].items()
            for value in typed.values()
            if name != "resource"  # the same for all
        ]
        capacity = device.get("capacity", {}).items()
        texts += [f"{name}: {quantity['value']}" for name, quantity in capacity]
        texts += [f"tainted: {taint['key']}={taint['value']}" for taint in device.get("taints", ())]
        rows.append((device["name"], ", ".join(texts)))
    if rows:
        print_table(["IN SLICES", "ATTRIBUTES"], rows)


def allocation_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a container receives, a line for each thing."""
    for name, value in answer["envs"].items():
        yield f"env {name}={value}"
    for device in answer["devices"]:
        paths = f"{device['hostPath']} as {device['containerPath']}"
        yield f"device {paths} ({device['permissions']})"
    for mount in answer["mounts"]:
        mode = "read-only" if mount["readOnly"] else "read-write"
        yield f"mount {mount['hostPath']} at {mount['containerPath']} ({mode})"
    for key, value in answer["annotations"].items():
        yield f"annotation {key}={value}"
    for name in answer["cdiDevices"]:
        yield f"cdi {name}"
    document = answer.get("cdiSpec") or {}  # none if no device has anything for it
    for device in document.get("devices", ()):
        yield f"  {device['name']}: {json.dumps(device['containerEdits'])}"


# ── problems: for people on a terminal, one line each for everything else ──


def print_problems(problems: Sequence[Problem], *, err: bool = True) -> None:
    """Print problems: with their source on a terminal, else ``file:line:column: …`` each."""
    stream: TextIO | None = sys.stderr if err else sys.stdout
    write = note if err else echo
    if stream is None or not stream.isatty():
        for problem in problems:
            write(str(problem))
    elif problems:
        colored = moves_cursor() and not os.environ.get("NO_COLOR")
        color = None if colored else False  # where it is False, click takes colors out
        for problem in problems:
            text = "\n".join(format_problem(problem, _columns()))
            click.echo(f"{text}\n", err=err, color=color)
        click.echo(click.style(summary(problems), bold=True), err=err, color=color)


def format_problem(problem: Problem, columns: int) -> Iterator[str]:
    """Yield the lines for a terminal: what is wrong, where, and the source line with a mark."""

    def tinted(text: str) -> str:
        return click.style(text, fg=_COLORS[problem.severity], bold=True)

    severity = f"{problem.severity}:"
    where = f"{problem.file}:{problem.line}:{problem.column}:"
    yield f"{printable(where)} {tinted(severity)} {printable(problem.message)}"
    if problem.path or problem.resource:
        of = f" of {problem.resource}" if problem.resource else ""
        yield printable(f"    in {problem.path}{of}")
    if problem.excerpt is not None:
        line = str(problem.excerpt.line or "")
        gutter = max(len(line), 4)
        source, begin, length = _fit_excerpt(problem.excerpt, columns - gutter - 3)
        yield f"{line:>{gutter}} | {source}"
        yield f"{'':{gutter}} | {' ' * begin}{tinted('^' * length)}"


def summary(problems: Sequence[Problem]) -> str:
    """Return ``3 errors, 1 warning in 2 files``."""
    counter = sorted(Counter(problem.severity for problem in problems).items())
    counts = [f"{count} {severity}{'s' * (count > 1)}" for severity, count in counter]
    files = {problem.file for problem in problems}
    where = f"{len(files)} files" if len(files) > 1 else printable(files.pop())
    return f"{', '.join(counts)} in {where}"


def _fit_excerpt(excerpt: Excerpt, columns: int) -> tuple[str, int, int]:
    """Return the part of a source line that fits, and begin and length of the mark below it."""
    ends = (0, excerpt.start, excerpt.end, len(excerpt.text))
    before, marked, after = (
        printable(excerpt.text[begin:end].replace("\t", _TAB)) for begin, end in pairwise(ends)
    )
    if cells(before + marked + after) > columns and len(before) > columns // 3:
        before = f"…{before[-columns // 3 :]}"
    line = before + marked + after
    while cells(line) > columns:
        line = f"{line[:-2]}…"
    begin = cells(before)
    return line, begin, max(min(cells(marked), cells(line) - begin), 1)
