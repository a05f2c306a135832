"""The dashboard and the alerts speak of metrics that devhost has, and of no others."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.deploy.helm import NAMESPACE, Helm
from tests.deploy.monitoring import SWITCHED_ON, dashboard, recorded, rules
from tests.deploy.values import EVERYTHING
from tests.support.metrics import HISTOGRAMS, METRICS
from tests.support.promql import evaluate

# By the PodMonitor, its relabeling and its podTargetLabels, and by Prometheus itself.
TARGET = {"job", "namespace", "pod", "node", "app_kubernetes_io_component"}
KUBE_STATE_METRICS = {"kube_daemonset_status_desired_number_scheduled": {"namespace", "daemonset"}}


def expressions(helm: Helm) -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules(helm))
    yield from recorded(helm).values()


def test_expressions_use_only_metrics_of_devhost(helm: Helm) -> None:
    queries = [variable.get("definition", "") for variable in dashboard()["templating"]["list"]]
    for text in [*expressions(helm), *queries]:
        for name in re.findall(r"devhost_\w+", text):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in METRICS
            assert (name != base) == (base in HISTOGRAMS), f"{name} is asked for as it is not"


def test_each_metric_is_in_the_dashboard_or_an_alert(helm: Helm) -> None:
    text = " ".join(expressions(helm))
    assert [name for name in METRICS if name not in text] == []


def test_expressions_use_only_labels_of_their_metrics(helm: Helm) -> None:
    for expression in expressions(helm):
        bare = re.sub(r'"(\\.|[^"])*"', "", expression)
        named = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", bare))
        for listed in re.findall(r"by \(([^)]*)\)", bare):
            named |= set(re.split(r",\s*", listed))
        all_metrics = METRICS | KUBE_STATE_METRICS
        of = [
            labels
            for name, labels in all_metrics.items()
            if re.search(rf"\b{name}(_bucket|_count)?\b", expression)
        ]
        legal = set().union(*of) | TARGET | {"le"}
        assert named <= legal, expression


def test_dashboard_filters_each_metric_by_node() -> None:
    texts = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    assert [text for text in texts if re.search(r'devhost_\w+\b(?!{node=~"\$node")', text)] == []
    assert "node" in [variable["name"] for variable in dashboard()["templating"]["list"]]


@pytest.mark.program("promql")
def test_expressions_are_promql(helm: Helm) -> None:
    evaluate([], [re.sub(r"\$__\w+", "5m", expression) for expression in expressions(helm)], 1)


def test_alerts_have_a_severity_and_known_labels(helm: Helm) -> None:
    names = [rule["alert"] for rule in rules(helm)]
    assert len(names) == len(set(names)) >= 8
    (alerts, _) = helm.render(EVERYTHING).one("PrometheusRule")["spec"]["groups"]
    assert {rule["labels"]["team"] for rule in alerts["rules"]} == {"nodes"}
    for rule in rules(helm):
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        for text in rule["annotations"].values():
            used = set(re.findall(r"\$labels\.(\w+)", text))
            of = [METRICS[name] for name in METRICS if name in rule["expr"]]
            assert used <= set().union(*of) | TARGET


def test_alert_for_a_silent_pod_uses_the_job_of_the_monitor(helm: Helm) -> None:
    monitor = helm.render(SWITCHED_ON).one("PodMonitor")["metadata"]["name"]
    (down,) = [rule for rule in rules(helm) if rule["alert"] == "DevhostDown"]
    assert down["expr"] == f'up{{job="{NAMESPACE}/{monitor}"}} == 0'


def test_dashboard_is_rendered_unchanged(helm: Helm) -> None:
    made = helm.render(SWITCHED_ON).one("ConfigMap", "test-devhost-dashboard")
    assert json.loads(made["data"]["devhost.json"]) == dashboard()
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
