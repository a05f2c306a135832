"""The chart's dashboard and rules, and series of metrics for them."""

import json
from typing import Any

from tests.deploy.helm import NAMESPACE, Helm
from tests.deploy.values import Values
from tests.support.promql import Series
from tools.helm import CHART, ROOT

SWITCHED_ON: Values = {
    "metrics": {name: {"enabled": True} for name in ("podMonitor", "prometheusRule", "dashboard")}
}
DOCUMENT = ROOT / "docs" / "status.md"
MINUTES = 60
TARGET = {
    "job": f"{NAMESPACE}/test-devhost",
    "namespace": NAMESPACE,
    "instance": "10.0.0.1:9110",
    "pod": "test-devhost-1",
    "node": "node-1",
    "app_kubernetes_io_component": "default",
}


def dashboard() -> Any:
    return json.loads((CHART / "dashboards" / "devhost.json").read_text())


def rules(helm: Helm) -> list[Any]:
    alerts, _ = helm.render(SWITCHED_ON).one("PrometheusRule")["spec"]["groups"]
    return list(alerts["rules"])


def recorded(helm: Helm) -> dict[str, str]:
    """Return the expressions of the recording rules by name."""
    _, sums = helm.render(SWITCHED_ON).one("PrometheusRule")["spec"]["groups"]
    return {rule["record"]: rule["expr"] for rule in sums["rules"]}


def of(name: str, *values: float | None, **labels: str) -> Series:
    """Return a series of a target: the values minute by minute, the last one from then on."""
    spread = [values[min(minute, len(values) - 1)] for minute in range(MINUTES)]
    return Series({"__name__": name, **TARGET, **labels}, spread)


def ours(name: str, *values: float | None, **labels: str) -> Series:
    """Return a series of a resource."""
    return of(name, *values, resource_name="example.com/a", **labels)
