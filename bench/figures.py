"""What was measured: a value for each figure, subject and run."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.scene import Shape


@dataclass(frozen=True)
class Figure:
    """What a value is of."""

    what: str
    unit: str
    shape: Shape | None = None


@dataclass
class Figures:
    """All values, in the order in which their figures came up; and what did not work."""

    values: dict[Figure, dict[str, dict[int, float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    conditions: list[dict[str, Any]] = field(default_factory=list)

    def median(self, figure: Figure, subject: str) -> float | None:
        runs = self.values.get(figure, {}).get(subject)
        return statistics.median(runs.values()) if runs else None

    def ratio(self, figure: Figure, subject: str, reference: str) -> float | None:
        """Return the median of the ratios of the runs that both have."""
        found = self.values.get(figure, {})
        ours, theirs = found.get(subject, {}), found.get(reference, {})
        both = [(ours[run], theirs[run]) for run in ours.keys() & theirs.keys()]
        ratios = [one / other for one, other in both if one >= 0 and other > 0]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "figure": figure.what,
                "unit": figure.unit,
                "resources": figure.shape.resources if figure.shape else None,
                "devices": figure.shape.devices if figure.shape else None,
                "shared": bool(figure.shape and figure.shape.shared),
                "runs": {subject: list(runs.values()) for subject, runs in subjects.items()},
                "median": {subject: self.median(figure, subject) for subject in subjects},
            }
            for figure, subjects in self.values.items()
        ]


@dataclass(frozen=True)
class Record:
    """Takes the values of one subject in one run."""

    figures: Figures
    subject: str
    run: int
    shape: Shape | None = None

    def add(self, what: str, value: float, unit: str) -> None:
        figure = Figure(what, unit, self.shape)
        self.figures.values.setdefault(figure, {}).setdefault(self.subject, {})[self.run] = value

    def add_latency(self, what: str, microseconds: Sequence[float]) -> None:
        self.add(f"{what} p50", statistics.median(microseconds) / 1000, "ms")
        self.add(f"{what} p99", percentile(microseconds, 0.99) / 1000, "ms")


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of all does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * part) - 1)]


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {key: after[key] - before[key] for key in after}
