"""Profiles: how they are merged into the values, and which nodes their DaemonSets are for."""

from typing import Any

from tests.deploy.helm import Helm
from tests.deploy.pods import container_of, mounts_of, pod_of
from tests.deploy.values import TOKENS, Values


def profile(**more: Any) -> Values:
    return {"name": "one", "nodeSelector": {"c": "d"}, "config": TOKENS} | more


def away(key: str, value: str) -> Values:
    return {"key": key, "operator": "NotIn", "values": [value]}


def test_profile_is_merged_at_every_level(helm: Helm) -> None:
    own = profile(
        allow={"exec": False},
        hostPaths=["/srv"],
        probes={"liveness": {"periodSeconds": 3}},
        resources={"limits": {"cpu": 1}},
        securityContext={"capabilities": {"add": ["X"]}},
        tolerations=[],
    )
    base: Values = {
        "config": TOKENS,
        "allow": {"paths": ["/dev/x"], "exec": True},
        "nodeSelector": {"a": "b"},
    }
    values = base | {"profiles": [own]}
    pod = pod_of(helm, values, "test-devhost-one")
    assert pod["nodeSelector"] == {"a": "b", "c": "d"}
    assert "tolerations" not in pod
    (container,) = pod["containers"]
    assert {"name": "DEVHOST_ALLOW_PATH", "value": "/dev/x"} in container["env"]
    assert "DEVHOST_ALLOW_EXEC" not in [one["name"] for one in container["env"]]
    assert "/srv" in mounts_of(helm, values, "test-devhost-one")
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/healthz", "port": "http"},
        "periodSeconds": 3,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
    }
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"cpu": 1, "memory": "256Mi"},
    }
    assert container["securityContext"]["capabilities"] == {"add": ["X"], "drop": ["ALL"]}
    # The others stay as they are.
    assert container_of(helm, values) == container_of(helm, base)


def test_null_in_a_profile_removes_what_it_would_inherit(helm: Helm) -> None:
    own = profile(
        probes={"startup": None, "liveness": {"timeoutSeconds": None}},
        resources={"limits": None},
        nodeSelector={"a": None, "c": "d"},
        podLabels={"a": None},
        updateStrategy={"type": "OnDelete", "rollingUpdate": None},
    )
    values: Values = {"config": TOKENS, "nodeSelector": {"a": "b"}, "podLabels": {"a": "b"}}
    rendered = helm.render(values | {"profiles": [own]})
    spec = rendered.one("DaemonSet", "test-devhost-one")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["template"]["spec"]["nodeSelector"] == {"c": "d"}
    assert "a" not in spec["template"]["metadata"]["labels"]
    assert "startupProbe" not in container
    assert "timeoutSeconds" not in container["livenessProbe"]
    assert set(container["resources"]) == {"requests"}


def test_affinity_of_a_profile_replaces_the_whole(helm: Helm) -> None:
    values: Values = {
        "affinity": {"podAffinity": {"a": 1}, "nodeAffinity": {"a": 1}},
        "profiles": [profile(affinity={"nodeAffinity": {"b": 2}})],
    }
    pod = pod_of(helm, values, "test-devhost-one")
    assert pod["affinity"] == {"nodeAffinity": {"b": 2}}


def test_affinity_keeps_the_charts_own_pods_off_the_nodes_of_profiles(helm: Helm) -> None:
    """Labels of a profile are joined by "and", so away from it is "or"; terms are joined by it."""
    present: Values = {"key": "z", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [present]}]}
    values: Values = {
        "config": TOKENS,
        "affinity": {
            "podAffinity": {},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        },
        "profiles": [
            profile(nodeSelector={"a": "1", "b": "2"}),
            profile(name="two", nodeSelector={"c": "3"}),
        ],
    }
    affinity = pod_of(helm, values)["affinity"]
    assert set(affinity) == {"podAffinity", "nodeAffinity"}
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [present, away("a", "1"), away("c", "3")]},
        {"matchExpressions": [present, away("b", "2"), away("c", "3")]},
    ]
    for name in ("one", "two"):
        assert pod_of(helm, values, f"test-devhost-{name}")["affinity"] == values["affinity"]
