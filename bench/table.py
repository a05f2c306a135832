"""The table for people: medians, spread, ratio, floor and goal."""

from collections.abc import Iterator, Sequence
from typing import Final

from bench.figures import Figure, Figures
from bench.goals import goal_of
from bench.growth import growth
from bench.subjects import REFERENCE

FLOOR: Final = "machine"
_EVENT = "floor: inotify, another process tells p50"
_ECHO = "floor: Unix socket, there and back p50"
# What nothing can be quicker than, by the beginning of a figure's name.
_FLOORS: Final = {
    "device comes p50": _EVENT,
    "device goes p50": _EVENT,
    "Allocate p50": _ECHO,
    "GetPreferredAllocation p50": _ECHO,
}


def table(figures: Figures, subjects: Sequence[str]) -> str:
    """Return the table; `subjects` has devhost first."""
    main, others = subjects[0], [one for one in subjects if one != REFERENCE][1:]
    head = ["figure", "N x M", main, *others, REFERENCE, "ratio", "floor", "goal"]
    rows = [_row(figures, figure, main, others) for figure in figures.values]
    text = "\n".join(_aligned([head, *rows]))
    if grown := growth(figures, list(subjects)):
        grown.insert(0, ["growth: N = 1000 over N = 100", "", *subjects])
        text += "\n\n" + "\n".join(_aligned(grown))
    return text


def _row(figures: Figures, figure: Figure, main: str, others: Sequence[str]) -> list[str]:
    shape = str(figure.shape) if figure.shape else ""
    if FLOOR in figures.values[figure]:
        return [figure.what, shape, *[""] * (len(others) + 3), _spread(figures, figure, FLOOR), ""]
    floor = _FLOORS.get(figure.what)
    least = figures.median(Figure(floor, "ms"), FLOOR) if floor else None
    ratio = figures.ratio(figure, main, REFERENCE)
    return [
        figure.what,
        shape,
        *(_spread(figures, figure, one) for one in (main, *others, REFERENCE)),
        "" if ratio is None else f"{ratio:.2f}x",
        "" if least is None else f"{_number(least)} ms",
        _goal(figures, figure, main, ratio),
    ]


def _goal(figures: Figures, figure: Figure, main: str, ratio: float | None) -> str:
    goal, value = goal_of(figure.what, figure.shape), figures.median(figure, main)
    if goal is None or value is None:
        return ""
    met = goal.met(value, ratio)
    said = {True: "met", False: "not met", None: "not known"}[met]
    return f"{goal.text}: {said}"


def _spread(figures: Figures, figure: Figure, subject: str) -> str:
    runs = list(figures.values[figure].get(subject, {}).values())
    median = figures.median(figure, subject)
    if median is None:
        return "-"
    text = f"{_number(median)} {figure.unit}".rstrip()
    if len(runs) > 1 and min(runs) != max(runs):
        text += f" ({_number(min(runs))}…{_number(max(runs))})"
    return text


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
