"""Results of PromQL expressions: the Go program in tests/support/go, built once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.goprogram import Oracle

ORACLE = Oracle("promql", "promql", "github.com/prometheus/prometheus")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Series:
    """A time series with a value for each minute; ``None`` where there is no sample."""

    labels: Labels
    values: Sequence[float | None]


def evaluate(
    series: Sequence[Series], expressions: Sequence[str], minutes: int
) -> list[list[list[dict[str, str]]]]:
    """Evaluate expressions at 0, 1, … minutes; return the labels of what each yields."""
    results: list[list[list[dict[str, str]]]] = ORACLE.ask(
        {
            "series": [{"labels": dict(s.labels), "values": list(s.values)} for s in series],
            "expressions": list(expressions),
            "minutes": minutes,
        }
    )
    return results
