"""Each alert of the chart fires when it should, and none does when all is well."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.deploy.helm import NAMESPACE, Helm
from tests.deploy.monitoring import DOCUMENT, MINUTES, SECOND, of, ours, rules
from tests.support.promql import Series, evaluate

pytestmark = pytest.mark.program("promql")


def after(minutes: int, *values: float | None, before: float = 0) -> list[float | None]:
    """Return values that begin after some minutes."""
    return [before] * minutes + list(values)


def once_a_minute(start: int) -> list[float]:
    """Return a counter that grows from a minute on."""
    return [max(0, minute - start) for minute in range(MINUTES)]


def wanted(nodes: int) -> Series:
    """Return what kube-state-metrics says of the DaemonSet."""
    labels = {"namespace": NAMESPACE, "daemonset": "test-devhost"}
    name = "kube_daemonset_status_desired_number_scheduled"
    return Series({"__name__": name, **labels}, [nodes] * MINUTES)


WELL = [
    wanted(nodes=1),
    of("up", 1),
    of("devhost_config_last_reload_successful", 1),
    of("devhost_config_hash_info", 1, hash="one"),
    of("devhost_config_hash_info", 1, hash="one", **SECOND),
    ours("devhost_registered", 1),
    ours("devhost_registrations_total", 1, result="ok"),
    ours("devhost_registrations_total", 0, result="error"),
    ours("devhost_devices", 2, health="Healthy"),
    ours("devhost_devices", 0, health="Unhealthy"),
    ours("devhost_devices_expected", 2),
    ours("devhost_devices_missing", 0),
    ours("devhost_allocations_total", *once_a_minute(0), result="ok"),
    ours("devhost_allocations_total", 0, result="refused"),
    ours("devhost_discovery_errors_total", 0),
    of("devhost_dra_prepare_seconds_count", *once_a_minute(0), result="ok"),
    of("devhost_dra_prepare_seconds_count", 0, result="error"),
    of("devhost_log_lines_dropped_total", 0),
]


def unplugged(of_two: int) -> list[Series]:
    """Return what the metrics say when devices vanish in minute 10."""
    return [
        ours("devhost_devices", *after(10, 2 - of_two, before=2), health="Healthy"),
        ours("devhost_devices_missing", *after(10, of_two)),
    ]


# By what happens: the series that are different, and from which minute on which alerts fire.
CASES: dict[str, tuple[list[Series], dict[str, int]]] = {
    "all is well": ([], {}),
    "the pod does not answer": ([of("up", *after(10, 0, before=1))], {"DevhostDown": 15}),
    "a node has no pod": ([wanted(nodes=2)], {"DevhostPodMissing": 15}),
    "no node has a pod": ([of("up", None)], {"DevhostPodMissing": 15}),
    "a bad configuration": (
        [of("devhost_config_last_reload_successful", *after(10, 0, before=1))],
        {"DevhostConfigReloadFailed": 15},
    ),
    "an edit that does not arrive": (
        [of("devhost_config_hash_info", 1, hash="two", **SECOND)],
        {"DevhostConfigDiffers": 15},
    ),
    "kubelet does not have the resource": (
        [ours("devhost_registered", *after(10, 0, before=1))],
        {"DevhostResourceNotRegistered": 15},
    ),
    "the second pod of an update that stopped waits for the first": (
        [ours("devhost_registered", 0, pod="second")],
        {},
    ),
    "another plugin registers the same resource": (
        [ours("devhost_registrations_total", *once_a_minute(10), result="ok")],
        {"DevhostRegistrationsRepeat": 26},
    ),
    "one of two devices is unplugged": (unplugged(1), {"DevhostDevicesMissing": 20}),
    "all devices are unplugged": (unplugged(2), {"DevhostDevicesMissing": 20}),
    "a removed resource drains": (
        [
            ours("devhost_devices", *after(10, None, before=2), health="Healthy"),
            ours("devhost_devices", *after(10, None), health="Unhealthy"),
            ours("devhost_devices_expected", *after(10, 0, before=2)),
        ],
        {},
    ),
    "a device that is gone after a restart": (
        [
            ours("devhost_devices", *after(10, 1, before=2), health="Healthy"),
            ours("devhost_devices_expected", *after(10, 1, before=2)),
        ],
        {"DevhostFewerDevices": 20},
    ),
    "a minimum that was never there": (
        [ours("devhost_devices", 0, health="Healthy"), ours("devhost_devices_missing", 2)],
        {"DevhostDevicesMissing": 10},
    ),
    "a node without the devices": (
        [ours("devhost_devices", 0, health="Healthy"), ours("devhost_devices_expected", 0)],
        {},
    ),
    "one of two devices is broken": (
        [
            ours("devhost_devices", *after(10, 1, before=2), health="Healthy"),
            ours("devhost_devices", *after(10, 1), health="Unhealthy"),
        ],
        {"DevhostDeviceUnhealthy": 25},
    ),
    "all devices are broken, and none is expected": (
        [
            ours("devhost_devices", *after(10, 0, before=2), health="Healthy"),
            ours("devhost_devices", *after(10, 2), health="Unhealthy"),
            ours("devhost_devices_expected", 0),
        ],
        {"DevhostNoHealthyDevices": 20},
    ),
    "a device that is plugged in again": (
        [
            ours("devhost_devices", *after(10, 1, 1, 2, before=2), health="Healthy"),
            ours("devhost_devices_missing", *after(10, 1, 1, 0)),
        ],
        {},
    ),
    "a pod is refused": (
        [ours("devhost_allocations_total", *after(10, 1), result="refused")],
        {"DevhostAllocateErrors": 10},
    ),
    "a claim fails for good": (
        [of("devhost_dra_prepare_seconds_count", *once_a_minute(10), result="error")],
        {"DevhostClaimErrors": 21},
    ),
    "a claim fails at first": (
        [of("devhost_dra_prepare_seconds_count", *after(10, 1, 2), result="error")],
        {},
    ),
    "the log is not read": (
        [of("devhost_log_lines_dropped_total", *after(10, 3))],
        {"DevhostLogLinesDropped": 10},
    ),
    "a source fails for good": (
        [ours("devhost_discovery_errors_total", *once_a_minute(10))],
        {"DevhostDiscoveryErrors": 26},
    ),
    "a source fails once": ([ours("devhost_discovery_errors_total", *after(10, 1))], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_alerts_fire(helm: Helm, case: str) -> None:
    changed, expected = CASES[case]
    same = [series for series in WELL if series.labels not in [change.labels for change in changed]]
    if case == "an edit that does not arrive":
        same = [series for series in same if series.labels.get("node") != "node-2"]
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
    assert shipped == {alert for _, expected in CASES.values() for alert in expected}
    assert {rule["for"][-1] for rule in rules(helm)} == {"m"}
    documented = re.findall(r"^- `(Devhost\w+)`", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(shipped)
