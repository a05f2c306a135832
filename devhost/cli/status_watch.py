"""``devhost status --watch``: the view of a terminal, or a line for each change."""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NoReturn, Protocol

import click

from devhost.cli import output as printer
from devhost.cli import status_output, tables
from devhost.cli.status_client import NotRunningError, StatusJson
from devhost.model.names import printable

POLL_S: Final = 1.0
_INTERRUPTED: Final = 130
_CLEAR: Final = "\x1b[H\x1b[2J"


class _View(Protocol):
    def show(self, status: StatusJson, problem: str) -> None:
        """Show what has changed.

        Args:
            status: The last status.
            problem: Why there is no newer one, if so.
        """


def follow(ask: Callable[[], StatusJson], output: str) -> NoReturn:
    """Show the status whenever it changes, until Ctrl-C.

    Raises:
        NotRunningError: No devhost answers at first. Later ones are waited for.
    """
    view = _view(output)
    try:
        status, problem = ask(), ""
        while True:
            view.show(status, problem)
            time.sleep(POLL_S)
            try:
                status, problem = ask(), ""
            except NotRunningError as error:
                problem = str(error)
    except KeyboardInterrupt:
        if printer.on_a_terminal():
            printer.echo()  # after the ^C
        sys.exit(_INTERRUPTED)


def _view(output: str) -> _View:
    if output in ("json", "yaml"):
        return _Documents(output)
    if printer.on_a_terminal() and printer.moves_cursor():
        return _Screen(wide=output == "wide")
    return _Changes()


class _Documents:
    """One document per change: a line of JSON, or YAML after `---`."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._last: StatusJson | None = None

    def show(self, status: StatusJson, problem: str) -> None:
        if problem or status == self._last:
            return
        self._last = status
        if self._output == "json":
            printer.print_lines([json.dumps(status)])
        else:
            printer.print_lines(["---"])
            printer.print_value(status, self._output)


class _Screen:
    """The whole status, or an overview where it does not fit."""

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._last = ""

    def show(self, status: StatusJson, problem: str) -> None:
        size = shutil.get_terminal_size()
        end = ["", printable(problem)] if problem else []
        lines = [*status_output.lines(status, wide=self._wide), *end]
        if _height(lines, size.columns) >= size.lines:
            lines = [*end[1:], *status_output.overview(status)]
        drawn = "\n".join(_fitting(lines, size))
        if drawn != self._last:
            self._last = drawn
            printer.print_lines([_CLEAR + drawn])


def _height(lines: list[str], columns: int) -> int:
    return sum(max(1, math.ceil(tables.cells(click.unstyle(one)) / columns)) for one in lines)


def _fitting(lines: list[str], size: os.terminal_size) -> list[str]:
    """Return the first lines, and how many more there are; the last line has the cursor."""
    kept = list(lines)
    while len(kept) > 1 and _height(kept, size.columns) + (len(kept) < len(lines)) >= size.lines:
        kept.pop()
    hidden = len(lines) - len(kept)
    return [*kept, f"and {hidden} more lines (devhost status NAME)"] if hidden else kept


class _Changes:
    """A line for each fact that is new, other than before, or gone."""

    def __init__(self) -> None:
        self._facts: dict[str, str] = {}

    def show(self, status: StatusJson, problem: str) -> None:
        facts = dict(_facts(status)) if not problem else {**self._facts, "devhost": problem}
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        for subject, text in facts.items():
            if self._facts.get(subject) != text:
                printer.echo(f"{now} {subject}: {text}" if text else f"{now} {subject}")
        for subject in self._facts.keys() - facts.keys():
            printer.echo(f"{now} {subject}: gone")
        self._facts = facts


def _facts(status: StatusJson) -> Iterator[tuple[str, str]]:
    """Yield what a status says, by subject."""
    yield "devhost", "ready" if status["ready"] else "not ready"
    names = tuple(f"{one['name']}: " for one in status["resources"])
    for trouble in status["troubles"]:
        if not trouble.startswith(names):  # those are seen below
            yield f"problem: {trouble}", ""
    for resource in status["resources"]:
        name, reason = resource["name"], resource["reason"] or resource["error"]
        text = status_output.summary(resource)
        yield name, f"{text}: {reason}" if reason else text
        holders = status_output.pods(resource["holders"])
        for device in resource["devices"]:
            words = [device["health"], device["reason"] or ""]
            if held := holders.get(device["id"]):
                words.append(f"held by {held}")
            yield f"{name} {device['id']}", ", ".join(filter(None, words))
