"""The queries about all nodes: the tables of the dashboard, the recording rules, the page."""

import re

import pytest

from tests.deploy.helm import Helm
from tests.deploy.monitoring import DOCUMENT, dashboard, of, ours, recorded
from tests.support.promql import Series, evaluate

pytestmark = pytest.mark.program("promql")

OLD, NEW = ("node-1", "one", "0.1.0"), ("node-2", "two", "0.2.0")


def target(node: str) -> dict[str, str]:
    return {"node": node, "pod": f"devhost-{node}", "instance": f"{node}:9110"}


def fleet() -> list[Series]:
    """Two nodes with two devices each, of which three are there; the first rejects its file."""
    series = []
    for minute, (node, hashed, version) in enumerate((OLD, NEW), 1):
        labels = target(node)
        series += [
            of("devhost_config_last_reload_successful", int(node == NEW[0]), **labels),
            of("devhost_config_last_reload_success_timestamp_seconds", minute, **labels),
            of("devhost_config_hash_info", 1, hash=hashed, **labels),
            of("devhost_build_info", 1, version=version, python="3.13.0", **labels),
            ours("devhost_devices", minute, health="Healthy", **labels),
            ours("devhost_devices", 0, health="Unhealthy", **labels),
            ours("devhost_devices_missing", 2 - minute, **labels),
            ours("devhost_devices_in_use", 1, **labels),
        ]
    return series


def found(*expressions: str) -> list[list[dict[str, str]]]:
    return [vectors[0] for vectors in evaluate(fleet(), expressions, 1)]


def test_dashboard_table_of_nodes_has_hash_and_version_of_those_chosen() -> None:
    (panel,) = (p for p in dashboard()["panels"] if p["title"] == "Nodes" and p["id"] == 16)
    text = panel["targets"][0]["expr"]
    both_nodes, single = found(*(text.replace("$node", chosen) for chosen in (".*", "node-1")))
    assert {(row["node"], row["hash"], row["version"]) for row in both_nodes} == {OLD, NEW}
    assert [row["node"] for row in single] == ["node-1"]


def test_recording_rules_sum_devices_over_nodes(helm: Helm) -> None:
    sums = {
        "resource_name:devhost_devices:sum": 3,
        "resource_name:devhost_devices:healthy": 3,
        "resource_name:devhost_devices_missing:sum": 1,
        "resource_name:devhost_devices_in_use:sum": 2,
    }
    assert recorded(helm).keys() == sums.keys()
    right = found(*(f"({recorded(helm)[name]}) == {value}" for name, value in sums.items()))
    assert right == [[{"resource_name": "example.com/a"}]] * len(sums)


def test_documented_queries_find_the_nodes() -> None:
    section = (
        DOCUMENT.read_text().partition("## Questions to Prometheus\n")[2].partition("\n## ")[0]
    )
    queries = re.findall(r"```promql\n(.*?)```", section, re.DOTALL)
    queries = [query.replace("example.com/zigbee", "example.com/a") for query in queries]
    old, where = found(*queries)
    assert [row["node"] for row in old] == [OLD[0]]
    assert {row["node"] for row in where} == {OLD[0], NEW[0]}
