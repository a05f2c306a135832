"""Each alert of the chart fires when it should: alerts.txt has the cases."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import NAMESPACE, Helm
from tests.deploy.monitoring import DOCUMENT, MINUTES, of, rules
from tests.support.promql import Series, evaluate

pytestmark = pytest.mark.program("promql")


# What kube-state-metrics says of the DaemonSet.
DESIRED = {"namespace": NAMESPACE, "daemonset": "test-devhost"}


def series_of(line: str) -> Series:
    name, labels, words = re.fullmatch(r"(\w+)(?:\{(.*)\})? (.*)", line).groups()  # type: ignore[union-attr]
    values: list[float | None] = []
    for word in words.split():
        value, _, count = word.partition("x")
        if word.startswith("+"):
            values += [max(0, minute - int(word)) for minute in range(MINUTES)]
        else:
            values += [None if value == "-" else float(value)] * int(count or 1)
    if name.startswith("kube_"):
        return Series({"__name__": name, **DESIRED}, values * MINUTES)
    pairs = (pair.split("=") for pair in (labels or "").split(",") if pair)
    return of(name, *values, **dict(pairs))


def parsed(case: str) -> tuple[list[Series], dict[str, int]]:
    """Return the series of a case, and from which minute on which alerts fire."""
    _, *lines = case.splitlines()
    fires = (line.split() for line in lines if line.startswith("Devhost"))
    series = [series_of(line) for line in lines if not line.startswith("Devhost")]
    return series, {alert: int(minute) for alert, minute in fires}


_, *CASES = Path(__file__).with_name("alerts.txt").read_text().split("\n== ")
WELL = parsed(CASES[0])[0]


def identity(series: Series) -> dict[str, str]:
    return {label: value for label, value in series.labels.items() if label != "hash"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition("\n")[0])
def test_alerts_fire(helm: Helm, case: str) -> None:
    changed, expected = parsed(case)
    same = [series for series in WELL if identity(series) not in map(identity, changed)]
    assert firing(rules(helm), [*same, *changed]) == expected


def firing(shipped: Sequence[Any], series: Sequence[Series]) -> dict[str, int]:
    """Return by alert from which minute on it fires; as Prometheus counts ``for``."""
    expressions = [rule["expr"] for rule in shipped]
    minutes: dict[str, int] = {}
    for rule, vectors in zip(shipped, evaluate(series, expressions, MINUTES), strict=True):
        active: dict[frozenset[tuple[str, str]], int] = {}
        for minute, vector in enumerate(vectors):
            elements = {frozenset(element.items()) for element in vector}
            active = {element: active.get(element, minute) for element in elements}
            if any(minute - since >= int(rule["for"][:-1]) for since in active.values()):
                minutes.setdefault(rule["alert"], minute)
    return minutes


def test_alerts_are_each_tested_and_documented(helm: Helm) -> None:
    shipped = {rule["alert"] for rule in rules(helm)}
    assert shipped == {alert for case in CASES for alert in parsed(case)[1]}
    assert {rule["for"][-1] for rule in rules(helm)} == {"m"}
    documented = re.findall(r"^- `(Devhost\w+)`", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(shipped)
