"""A frame of ``devhost try``: the devices as kubelet sees them, answers, and the prompt."""

import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, Group
from rich.text import Text

from devhost.cli import tables
from devhost.cli.prompt import Prompt
from devhost.host.status import reported
from devhost.model.names import printable
from devhost.standin.trial import Trial

_ANSWERS_MAX: Final = 500  # lines
_ID_MAX: Final = 36  # columns; a longer ID moves the rest of its line
_HEALTHY: Final = "Healthy"
_UNKNOWN: Final[Mapping[str, Any]] = {"devices": (), "warnings": (), "error": None}

Line = tuple[str, str]  # a text, and its style


class View:
    """What a person sees of a trial.

    Args:
        trial: The host and its kubelet.
        title: The first line.
        addresses: What is served where.
        prompt: The line that is being written.
    """

    def __init__(self, trial: Trial, title: str, addresses: Sequence[str], prompt: Prompt) -> None:
        self._trial, self._title, self._addresses = trial, title, addresses
        self._prompt = prompt
        self._answers: deque[Line] = deque(maxlen=_ANSWERS_MAX)
        self._down, self._back = 0, 0  # lines of the devices, and of the answers

    def say(self, text: str, style: str = "") -> None:
        """Add a line to the answers, and show it."""
        self._answers.append((text, style))
        self._back = 0

    def scroll_devices(self, lines: int) -> None:
        """Show devices further down."""
        self._down += lines

    def scroll_answers(self, lines: int) -> None:
        """Show earlier answers."""
        self._back += lines

    def names(self) -> list[str]:
        """Return the resources that kubelet or devhost knows."""
        runners = (runner.name for runner in self._trial.host.runners)
        return sorted({*self._trial.kubelet.resources(), *runners})

    def frame(self, width: int, height: int) -> tuple[list[str], tuple[int, int]]:
        """Return the lines of a terminal's size, with colors, and the cursor: column and line."""
        top = list(self._top())
        room = max(height - len(top) - 3, 2)  # two rules and the prompt
        devices, answers = list(self._devices(width)), list(self._said(width))
        devices = self._window(devices, max(room - min(len(answers), room // 2), 1))
        answers = self._latest(answers, room - len(devices))
        later = f" {self._back} more lines: Ctrl-F " if self._back else ""
        rules = ("─" * width, "dim"), (f"──{later}".ljust(width, "─"), "dim")
        entered = f"> {self._prompt.text}"
        cursor = len(entered) - len(self._prompt.text) + self._prompt.cursor
        cut, room_left = cursor, width - 1  # the beginning of a long line is not seen
        while cut and (room_left := room_left - cell_len(entered[cut - 1])) >= 0:
            cut -= 1
        lines = [*top, *devices, rules[0], *answers, rules[1], (entered[cut:], "")][-height:]
        return _styled(lines, width), (cell_len(entered[cut:cursor]), len(lines) - 1)

    def _top(self) -> Iterator[Line]:
        yield printable(self._title), "bold"
        for address in self._addresses:
            yield address, "cyan"
        source = self._trial.host.source
        if source is not None and (count := len(source.status.problems)):
            problems = f"{count} problem{'s' * (count != 1)}"
            yield f"The file has {problems}: its last valid version is served", "red"

    def _devices(self, width: int) -> Iterator[Line]:
        kubelet, names = self._trial.kubelet, self.names()
        resources, runners = kubelet.resources(), self._trial.host.runners
        reports = {one.name: reported(one, one.snapshot).as_json() for one in runners}
        pods = {
            (name, device): pod
            for pod, held in kubelet.held().items()
            for name, ids in held.items()
            for device in ids
        }
        lengths = (cell_len(printable(one)) for name in names for one in kubelet.devices(name))
        column = min(max(lengths, default=0), _ID_MAX)
        for name in names:
            if name in resources:
                capacity, allocatable = resources[name]
                yield f"{name}: {allocatable} of {capacity} allocatable", "bold"
            else:
                yield f"{name}: not registered", "bold yellow"
            report = reports.get(name, _UNKNOWN)
            for text in filter(None, (report["error"], *report["warnings"])):
                yield from _folded("  ", printable(text), width, "yellow")
            reasons = {device["id"]: device["reason"] or "" for device in report["devices"]}
            for device, health in kubelet.devices(name).items():
                pod = pods.get((name, device), "")
                label = printable(device)
                start = f"  {label}{' ' * (column - cell_len(label))}  {health:9}  {pod:7}  "
                style = "red" if health != _HEALTHY else "green" if pod else ""
                yield from _folded(start, printable(reasons.get(device, "")), width, style)

    def _window(self, devices: list[Line], most: int) -> list[Line]:
        """Return as many lines as are seen, which say how many are above and below."""
        self._down = max(0, min(self._down, len(devices) - most))
        shown = devices[self._down : self._down + most]
        below = len(devices) - self._down - len(shown)
        if below and len(shown) > 2:
            shown[-1] = f"  … {below + 1} more lines: PgDn", "dim"
        if self._down and len(shown) > 2:
            shown[0] = f"  … {self._down + 1} lines above: PgUp", "dim"
        return shown

    def _said(self, width: int) -> Iterator[Line]:
        for text, style in self._answers:
            plain = printable(text)
            indent = plain[: len(plain) - len(plain.lstrip())]
            yield from _folded(indent, plain.lstrip(), width, style)

    def _latest(self, answers: list[Line], most: int) -> list[Line]:
        self._back = max(0, min(self._back, len(answers) - most))
        end = len(answers) - self._back
        shown = answers[max(0, end - most) : end]
        return shown + [("", "")] * (most - len(shown))


def _styled(lines: Sequence[Line], width: int) -> list[str]:
    texts = [Text(set_cell_size(text, width).rstrip(), style) for text, style in lines]
    shown = io.StringIO()  # not stdout, where even a captured text ends with a write
    console = Console(
        file=shown, width=width, force_terminal=True, highlight=False, legacy_windows=False
    )
    console.print(Group(*texts), no_wrap=True, overflow="crop")
    return shown.getvalue().removesuffix("\n").split("\n")


def _folded(start: str, text: str, width: int, style: str) -> Iterator[Line]:
    """Break a text into lines, all but the first indented to where it begins."""
    room = width - cell_len(start)
    if text and room < width // 4:  # too narrow: below its start
        yield start.rstrip(), style
        start, room = "    ", width - 4
    room = max(room, 10)
    lines = [part for line in tables.wrap(text, room) for part in chop_cells(line, room)]
    for line in lines or [""]:
        yield f"{start}{line}".rstrip(), style
        start = " " * cell_len(start)
