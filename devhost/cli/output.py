"""The output of commands: problems, tables, JSON.

Names of files and devices may have any characters. None that moves the cursor, turns the text
around or cannot be seen gets out of here as it is.
"""

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from devhost.cli import tables
from devhost.errors import Problem
from devhost.model.names import printable

if TYPE_CHECKING:
    from devhost.plan import Change
    from devhost.report import ResourceReport

_CANDIDATES_MAX = 20  # of a source
_COLUMNS = 80
_UNFOLDED = 2**31 - 1  # columns; the most that libyaml knows


def echo(line: str = "") -> None:
    """Print a line; on failure print an error and exit with status 1."""
    _print(printable(line))


def note(line: str) -> None:
    """Print a line to standard error."""
    click.echo(printable(line), err=True)


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

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast
    _print(yaml.dump(value, Dumper=dumper, sort_keys=False, width=_UNFOLDED).rstrip())


def print_warnings(texts: Iterable[str]) -> None:
    """Print warnings about the command line."""
    for text in texts:
        click.echo(f"warning: {text}", err=True)


def problems_json(problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the shape of ``validate -o json``."""
    valid = all(problem.severity != "error" for problem in problems)
    return {"valid": valid, "problems": [problem.as_json() for problem in problems]}


def fail(message: str) -> NoReturn:
    """Print an error and exit with status 1."""
    note(f"devhost: {message}")
    sys.exit(1)


def resource_hint(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for a resource that there is not, or an empty string."""
    from devhost.model.spelling import nearest

    # Most have the domain in common, which would make all of them near.
    by_last_part = {one.rpartition("/")[2]: one for one in known}
    near = nearest(name.rpartition("/")[2], by_last_part)
    return f"; did you mean '{by_last_part[near]}'?" if near else ""


def print_nothing(node_name: str) -> None:
    """Explain why there is no output."""
    note(f"devhost: no resources for node {node_name} (--node-name)")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: a heading, and a line for each row."""
    heading, *lines = tables.aligned(headings, [[printable(cell) for cell in row] for row in rows])
    _print(click.style(heading, bold=True) if on_a_terminal() and colors() else heading)
    for line in lines:
        _print(line)


def colors() -> bool:
    """Whether a terminal may be sent colors, if there is one."""
    return not os.environ.get("NO_COLOR") and moves_cursor()


def moves_cursor() -> bool:
    """Whether a terminal knows escape sequences, if there is one."""
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def on_a_terminal() -> bool:
    """Whether a person reads the output."""
    return bool(sys.stdout and sys.stdout.isatty())


def print_reports(
    reports: "Sequence[ResourceReport]",
    node_name: str,
    *,
    everything: bool = False,
    wide: bool = False,
) -> None:
    """Print what a host would advertise, as text; every candidate that was looked at, if asked."""
    if not reports:
        print_nothing(node_name)
    for number, report in enumerate(reports):
        if number:
            echo()
        shown = report.as_json()
        echo(f"{shown['name']}: {shown['allocatable']} of {shown['capacity']} allocatable")
        if shown["error"]:
            echo(f"  error: {shown['error']}")
        for warning in shown["warnings"]:
            echo(f"  warning: {warning}")
        if shown["devices"]:
            _print_devices(shown["devices"], wide=wide)
        for skipped in shown["skipped"]:
            echo(f"  skipped {skipped['candidate']}: {skipped['reason']}")
        for explained in shown.get("explain", ()):
            _print_explained(explained, everything=everything)
        if "allocation" in shown:
            print_allocation(shown["allocation"])


def _print_explained(explained: dict[str, Any], *, everything: bool) -> None:
    """Print what a source has looked at."""
    wrapped(f"sources[{explained['source']}]: {explained['summary']}", "  ", "    ")
    candidates = explained["candidates"]
    shown = candidates if everything else candidates[:_CANDIDATES_MAX]
    for one in shown:
        label = f"{'+' if one['taken'] else '-'} {one['candidate']}  "
        paths = ", ".join(one["paths"]) if one["taken"] else ""
        text = ": ".join(filter(None, (paths, "; ".join(one["reasons"]))))
        wrapped(f"{label}{text}", "  ", " " * min(len(label) + 2, 12))
    hidden = len(candidates) - len(shown) + explained["other"]
    if hidden:
        echo(f"  and {hidden} more{'' if everything else ' (--all)'}")


def wrapped(text: str, first: str, other: str) -> None:
    """Print a text in lines of at most 80 columns, or of a narrower terminal's.

    Args:
        text: The text.
        first: What the first line begins with.
        other: What the others begin with.
    """
    for line in textwrap.wrap(
        text,
        _columns(),
        initial_indent=first,
        subsequent_indent=other,
        break_on_hyphens=False,
        break_long_words=False,
    ):
        echo(line.rstrip())


def _columns() -> int:
    return min(_COLUMNS, shutil.get_terminal_size().columns) if on_a_terminal() else _COLUMNS


def _print_devices(devices: Sequence[dict[str, Any]], *, wide: bool) -> None:
    columns = {
        "DEVICE": [device["id"] for device in devices],
        "HEALTH": [device["health"] for device in devices],
        "NUMA": [",".join(map(str, device["numaNodes"])) for device in devices],
        "PATHS": [", ".join(device["paths"]) for device in devices],
        "REASON": [device["reason"] or "" for device in devices],
    }
    if not wide and not any(columns["NUMA"]):
        del columns["NUMA"]
    print_table(list(columns), list(zip(*columns.values(), strict=True)))


def print_allocation(allocation: dict[str, Any]) -> None:
    """Print what a container would receive."""
    if allocation["error"]:
        echo(f"  allocation: {allocation['error']}")
        return
    echo(f"  a container with {', '.join(allocation['deviceIds']) or 'no devices'} receives")
    for line in received(allocation):
        echo(f"    {line}")
    if "cdiSpec" in allocation:
        _print_cdi(allocation["cdiSpec"])
    for step in allocation["preStart"]:
        how = "once per pod" if step["every"] == "holder" else "at every start"
        value = step["value"] if isinstance(step["value"], str) else shlex.join(step["value"])
        echo(f"    before the start, {how}: {step['device']}: {step['step']} {value}")


def received(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a container receives, a line for each thing."""
    for name, value in answer["envs"].items():
        yield f"env {name}={value}"
    for device in answer["devices"]:
        paths = f"{device['hostPath']} as {device['containerPath']}"
        yield f"device {paths} ({device['permissions']})"
    for mount in answer["mounts"]:
        mode = "read-only" if mount["readOnly"] else "read-write"
        paths = f"{mount['hostPath']} at {mount['containerPath']}"
        yield f"mount {paths} ({mode})"
    for key, value in answer["annotations"].items():
        yield f"annotation {key}={value}"
    for name in answer["cdiDevices"]:
        yield f"cdi {name}"


def _print_cdi(spec: dict[str, Any]) -> None:
    """Print the edits of the devices of a CDI spec."""
    for device in spec["devices"]:
        edits = device["containerEdits"]
        for text in edits.get("env", ()):
            echo(f"      {device['name']}: env {text}")
        for node in edits.get("deviceNodes", ()):
            host = node.get("hostPath", node["path"])
            echo(f"      {device['name']}: device {host} as {node['path']} ({node['permissions']})")
        for mount in edits.get("mounts", ()):
            mode = "read-only" if "ro" in mount["options"] else "read-write"
            paths = f"{mount['hostPath']} at {mount['containerPath']}"
            echo(f"      {device['name']}: mount {paths} ({mode})")


def changes_json(changes: "Iterable[Change]") -> list[dict[str, Any]]:
    """Return the shape of ``plan --against -o json``, which is stable."""
    return [
        {"name": change.name, "action": change.action.value, "reasons": list(change.reasons)}
        for change in changes
    ]


def print_changes(changes: "Iterable[Change]") -> None:
    """Print what a change of the configuration would do, with one row per reason."""
    rows = [
        [change.name, change.action.value, reason]
        for change in changes
        for reason in change.reasons or ("",)
    ]
    print_table(["RESOURCE", "ACTION", "REASON"], rows)
