"""The DaemonSets: their manners and flags, when they are rolled, and which nodes they are for."""

import copy
from typing import Any

import pytest
from click import Option

from devhost.cli.run_command import command
from devhost.cli.validate_command import command as validate_command
from tests.chart.helm import NAMESPACE, Helm
from tests.chart.pods import PLUGINS, STATE, container_of, mounts_of, pod_of
from tests.chart.values import EVERYTHING, EXAMPLES, SETS, TOKENS, Values, example
from tools.helm import RefusedError

# ── rolling ──────────────────────────────────────────────────────────────────


def test_an_edit_of_resources_rolls_no_pod(each_helm: Helm) -> None:
    before = each_helm.render(EVERYTHING)
    edited = copy.deepcopy(EVERYTHING)
    edited["config"]["resources"] = example(EXAMPLES[0])["config"]["resources"]
    edited["config"]["x-new"] = {"a": 1}
    edited["profiles"][0]["config"] = example(EXAMPLES[1])["config"]
    after = each_helm.render(edited)
    changed = {key for key, text in before.texts.items() if after.texts[key] != text}
    assert {kind for kind, _ in changed} == {"ConfigMap"}
    assert len(changed) == 2


def test_no_resources_at_all_roll_no_pod(helm: Helm) -> None:
    before, after = helm.render({}), helm.render({"config": TOKENS})
    key = ("DaemonSet", "test-devhost")
    assert before.texts[key] == after.texts[key]


# ── manners ──────────────────────────────────────────────────────────────────


def test_a_pod_has_the_manners_of_a_node_daemon(helm: Helm) -> None:
    spec = helm.render({}).one("DaemonSet")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    assert pod["priorityClassName"] == "system-node-critical"
    assert "tolerations" not in pod
    assert pod["terminationGracePeriodSeconds"] == 10
    assert pod["hostUsers"] is True
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"memory": "256Mi"},
    }
    assert container["ports"] == [{"name": "http", "containerPort": 9110, "protocol": "TCP"}]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    for probe, path in {"startup": "healthz", "liveness": "healthz", "readiness": "readyz"}.items():
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/{path}", "port": "http"}
    assert container["env"] == [
        {"name": "DEVHOST_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "DEVHOST_ROOT", "value": "/host"},
        {"name": "DEVHOST_LISTEN", "value": ":9110"},
        {"name": "DEVHOST_STATUS_LISTEN", "value": "127.0.0.1:9111"},
    ]


@pytest.mark.parametrize("values", SETS)
def test_devhost_knows_every_flag_that_it_is_given(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    for daemonset in rendered.of("DaemonSet"):
        (container,) = daemonset["spec"]["template"]["spec"]["containers"]
        first, config, *flags = container["args"]
        assert (first, config) == ("run", "/etc/devhost/config.yaml")
        assert {flag.partition("=")[0] for flag in flags} <= known(command)
        own = [one["name"] for one in container["env"] if one["name"].startswith("DEVHOST_")]
        variables = {one.envvar for one in command.params}
        assert variables >= set(own)
    for test in rendered.of("Pod"):
        (container,) = test["spec"]["containers"]
        first, *flags, config = container["args"]
        assert (first, config) == ("validate", "/etc/devhost/config.yaml")
        assert {flag.partition("=")[0] for flag in flags} <= known(validate_command)
        variables = {one.envvar for one in validate_command.params}
        assert variables >= {one["name"] for one in container.get("env", [])}


def known(of: Any) -> set[str]:
    return {name for one in of.params if isinstance(one, Option) for name in one.opts}


def test_flags_say_what_the_mounts_offer(helm: Helm) -> None:
    name = EVERYTHING["fullnameOverride"][:42].rstrip("-")
    args = container_of(helm, EVERYTHING, name)["args"]
    assert args == [
        "run",
        "/etc/devhost/config.yaml",
        f"--plugin-dir={PLUGINS}",
        "--state-dir=/data/devhost",
        f"--last-good={NAMESPACE}.{name}.yaml",
        "--log-level=debug",
        "--log-format=text",
        "--pod-resources=/data/kubelet/pod-resources/kubelet.sock",
        "--metrics-devices",
        "--cdi-dir=/etc/cdi",
        "--log-level=error",
    ]


def test_what_is_allowed_stands_in_the_environment(helm: Helm) -> None:
    """So all that is run in the pod knows it, and the pod of `helm test` does."""
    globs = {
        "paths": ["/dev/disk/*", "/dev/shm"],
        "devices": ["hidraw", "/dev/tpm*"],
        "resources": ["example.com/gpu"],
        "cdi": ["vendor.com/class=*"],
        "annotations": ["example.com/*"],
    }
    allowed = {
        "DEVHOST_ALLOW_PATH": "/dev/disk/* /dev/shm",
        "DEVHOST_ALLOW_DEVICE": "hidraw /dev/tpm*",
        "DEVHOST_ALLOW_RESOURCE": "example.com/gpu",
        "DEVHOST_ALLOW_CDI": "vendor.com/class=*",
        "DEVHOST_ALLOW_ANNOTATION": "example.com/*",
        "DEVHOST_ALLOW_EXEC": "true",
    }
    values: Values = {"allow": globs | {"exec": True}}
    (tested,) = helm.render(values).one("Pod")["spec"]["containers"]
    assert {one["name"]: one["value"] for one in tested["env"]} == allowed
    assert container_of(helm, values)["env"][-len(allowed) :] == tested["env"]
    (tested,) = helm.render({}).one("Pod")["spec"]["containers"]
    assert "env" not in tested


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({"registry": "r.example.com/", "tag": "1"}, "r.example.com/devhost:1"),
        ({"registry": "r:5000", "repository": "a/devhost"}, "r:5000/a/devhost:0.1.0"),
        ({"repository": "localhost/devhost"}, "localhost/devhost:0.1.0"),
        ({"pullPolicy": "Never"}, "devhost:0.1.0"),
        ({"tag": "1", "digest": f"sha256:{'a' * 64}"}, f"devhost@sha256:{'a' * 64}"),
    ],
)
def test_an_image_has_a_tag_or_a_digest(helm: Helm, image: Values, reference: str) -> None:
    rendered = helm.render({"image": image})
    (tested,) = rendered.one("Pod")["spec"]["containers"]
    assert [container_of(helm, {"image": image})["image"], tested["image"]] == [reference] * 2


@pytest.mark.parametrize(
    "image", [{}, {"repository": "library/devhost"}, {"tag": "1"}, {"pullPolicy": "Always"}]
)
def test_an_image_of_unknown_origin_is_refused(helm: Helm, image: Values) -> None:
    """Nodes would take it from whatever registry they search first, and run it as root."""
    with pytest.raises(RefusedError, match=r"set image.registry, or image.digest, or image.pullP"):
        helm.render({"image": image})


def test_a_plugin_in_python_takes_the_place_of_devhost(helm: Helm) -> None:
    """It has devhost's flags without `run`; `helm test` validates with devhost itself."""
    program = ["python3", "/plugins/vpcport.py"]
    values: Values = {"command": program, "args": []}
    usual, container = container_of(helm, {}), container_of(helm, values)
    assert "command" not in usual
    assert usual["args"][0] == "run"
    assert container["command"] == program
    assert container["args"] == usual["args"][1:]
    differing = {key for key in container if container[key] != usual.get(key)}
    assert differing == {"command", "args"}
    (tested,) = helm.render(values).one("Pod")["spec"]["containers"]
    assert tested["command"] == ["devhost"]


# ── names, labels, profiles ──────────────────────────────────────────────────


@pytest.mark.parametrize("values", SETS)
def test_each_daemonset_selects_its_own_pods_alone(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in rendered.of("DaemonSet")]
    labels += [one["metadata"]["labels"] for one in rendered.of("Pod")]
    for index, daemonset in enumerate(rendered.of("DaemonSet")):
        selector = daemonset["spec"]["selector"]["matchLabels"].items()
        assert [at for at, one in enumerate(labels) if selector <= one.items()] == [index]
    for monitor in rendered.of("PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        assert all(selector <= one.items() for one in labels)


def test_labels_of_the_user_do_not_replace_those_that_are_selected_by(helm: Helm) -> None:
    own = {"app.kubernetes.io/name": "mine", "app.kubernetes.io/component": "mine", "team": "x"}
    given = {"podLabels": own, "podAnnotations": {"kubectl.kubernetes.io/default-container": "y"}}
    template = helm.render(given).one("DaemonSet")["spec"]["template"]
    assert template["metadata"] == {
        "labels": {
            "app.kubernetes.io/name": "devhost",
            "app.kubernetes.io/instance": "test",
            "app.kubernetes.io/component": "default",
            "team": "x",
        },
        "annotations": {"kubectl.kubernetes.io/default-container": "y"},
    }


@pytest.mark.parametrize("values", SETS)
def test_names_and_labels_are_short_enough(helm: Helm, values: str) -> None:
    for document in helm.render(SETS[values]).documents:
        assert document["metadata"]["namespace"] == NAMESPACE
        assert len(document["metadata"]["name"]) <= (63 if document["kind"] != "Pod" else 253)
        assert all(len(value) <= 63 for value in document["metadata"]["labels"].values())


def test_a_profile_is_merged_into_the_values(helm: Helm) -> None:
    values: Values = {
        "allow": {"paths": ["/dev/x"], "exec": True},
        "nodeSelector": {"a": "b"},
        "profiles": [
            {
                "name": "one",
                "nodeSelector": {"c": "d"},
                "allow": {"exec": False},
                "hostPaths": ["/srv"],
                "config": TOKENS,
            }
        ],
    }
    pod = pod_of(helm, values, "test-devhost-one")
    assert pod["nodeSelector"] == {"a": "b", "c": "d"}
    (container,) = pod["containers"]
    assert {"name": "DEVHOST_ALLOW_PATH", "value": "/dev/x"} in container["env"]
    assert "DEVHOST_ALLOW_EXEC" not in [one["name"] for one in container["env"]]
    assert "/srv" in mounts_of(helm, values, "test-devhost-one")


def profile(**more: Any) -> Values:
    return {"name": "one", "nodeSelector": {"c": "d"}, "config": TOKENS} | more


def test_a_profile_is_merged_at_every_level(each_helm: Helm) -> None:
    own = profile(
        probes={"liveness": {"periodSeconds": 3}},
        resources={"limits": {"cpu": 1}},
        securityContext={"capabilities": {"add": ["X"]}},
        tolerations=[],
    )
    pod = pod_of(each_helm, {"config": TOKENS, "profiles": [own]}, "test-devhost-one")
    (container,) = pod["containers"]
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
    assert "tolerations" not in pod
    # The others stay as they are.
    assert container_of(each_helm, {"config": TOKENS, "profiles": [own]}) == container_of(
        each_helm, {"config": TOKENS}
    )


def test_null_removes_what_a_profile_would_inherit(each_helm: Helm) -> None:
    own = profile(
        probes={"startup": None, "liveness": {"timeoutSeconds": None}},
        resources={"limits": None},
        nodeSelector={"a": None, "c": "d"},
        podLabels={"a": None},
        updateStrategy={"type": "OnDelete", "rollingUpdate": None},
    )
    values: Values = {"config": TOKENS, "nodeSelector": {"a": "b"}, "podLabels": {"a": "b"}}
    rendered = each_helm.render(values | {"profiles": [own]})
    spec = rendered.one("DaemonSet", "test-devhost-one")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["template"]["spec"]["nodeSelector"] == {"c": "d"}
    assert "a" not in spec["template"]["metadata"]["labels"]
    assert "startupProbe" not in container
    assert "timeoutSeconds" not in container["livenessProbe"]
    assert set(container["resources"]) == {"requests"}
    (term,) = rendered.one("DaemonSet", "test-devhost")["spec"]["template"]["spec"]["affinity"][
        "nodeAffinity"
    ]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [away("c", "d")]}


def test_null_removes_from_the_values_too(each_helm: Helm) -> None:
    """Helm itself takes away only what the chart's own values have."""
    values: Values = {
        "podLabels": {"a": None},
        "nodeSelector": {"a": None},
        "probes": {"startup": None, "liveness": {"initialDelaySeconds": None}},
    }
    pod = pod_of(each_helm, values)
    assert "nodeSelector" not in pod
    assert "startupProbe" not in pod["containers"][0]
    assert "initialDelaySeconds" not in pod["containers"][0]["livenessProbe"]
    template = each_helm.render(values).one("DaemonSet")["spec"]["template"]
    assert "a" not in template["metadata"]["labels"]


def test_null_for_the_tests_makes_none(each_helm: Helm) -> None:
    assert not each_helm.render({"config": TOKENS, "tests": None}).of("Pod")


def test_a_priority_class_is_one_value(helm: Helm) -> None:
    values = {"config": TOKENS, "priorityClassName": "a\nhostNetwork: true"}
    pod = helm.render(values).one("DaemonSet")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == values["priorityClassName"]
    assert not pod.get("hostNetwork")


def test_a_profiles_affinity_replaces_the_whole(helm: Helm) -> None:
    values: Values = {
        "affinity": {"podAffinity": {"a": 1}, "nodeAffinity": {"a": 1}},
        "profiles": [profile(affinity={"nodeAffinity": {"b": 2}})],
    }
    pod = pod_of(helm, values, "test-devhost-one")
    assert pod["affinity"] == {"nodeAffinity": {"b": 2}}


def test_without_resources_of_its_own_the_chart_has_only_profiles(helm: Helm) -> None:
    rendered = helm.render(SETS["only profiles"])
    assert [one["metadata"]["name"] for one in rendered.of("DaemonSet")] == ["test-devhost-a"]


def test_profiles_share_the_state_but_not_the_last_good_configuration(helm: Helm) -> None:
    """A node that changes its profile still knows who has which device."""
    args = [
        argument
        for one in helm.render(EVERYTHING).of("DaemonSet")
        for argument in one["spec"]["template"]["spec"]["containers"][0]["args"]
    ]
    assert len({one for one in args if one.startswith("--state-dir=")}) == 1
    assert len({one for one in args if one.startswith("--last-good=")}) == 3


def test_pod_resources_are_asked_unless_disabled(helm: Helm) -> None:
    def flags(values: Values) -> set[str]:
        container = container_of(helm, {"config": TOKENS} | values, "test-devhost")
        return {one.partition("=")[0] for one in container["args"]}

    asked, assumed = "--pod-resources", "--assume-free"
    assert flags({}) & {asked, assumed} == {asked}
    assert flags({"podResources": {"assumeFree": True}}) & {asked, assumed} == {asked}
    off = {"enabled": False}
    assert flags({"podResources": off}) & {asked, assumed} == set()
    assert flags({"podResources": {**off, "assumeFree": True}}) & {asked, assumed} == {assumed}


def test_state_is_not_where_other_plugins_write(helm: Helm) -> None:
    """It proves which pod a device was prepared for."""

    def state(values: Values) -> str:
        (flag,) = [
            one for one in container_of(helm, values)["args"] if one.startswith("--state-dir=")
        ]
        path: str = flag.removeprefix("--state-dir=")
        assert mounts_of(helm, values)[path] == ("DirectoryOrCreate", path, False, None)
        return path

    assert state({}) == STATE
    assert state({"kubelet": {"rootDir": "/data/kubelet/"}}) == "/data/kubelet/plugins/devhost"
    # What a former version of the chart left there can still be used.
    assert state({"stateDir": f"{PLUGINS}/devhost-state"}) == f"{PLUGINS}/devhost-state"


def test_the_charts_own_pods_keep_off_the_nodes_of_profiles(helm: Helm) -> None:
    """Labels of a profile are joined by "and", so away from it is "or"; terms are joined by it."""
    values: Values = {
        "config": TOKENS,
        "affinity": {
            "podAffinity": {},
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "z", "operator": "Exists"}]}
                    ]
                }
            },
        },
        "profiles": [
            {"name": "one", "nodeSelector": {"a": "1", "b": "2"}, "config": TOKENS},
            {"name": "two", "nodeSelector": {"c": "3"}, "config": TOKENS},
        ],
    }
    affinity = pod_of(helm, values)["affinity"]
    assert set(affinity) == {"podAffinity", "nodeAffinity"}
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    present: Values = {"key": "z", "operator": "Exists"}
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [present, away("a", "1"), away("c", "3")]},
        {"matchExpressions": [present, away("b", "2"), away("c", "3")]},
    ]
    for name in ("one", "two"):
        assert pod_of(helm, values, f"test-devhost-{name}")["affinity"] == values["affinity"]


def away(key: str, value: str) -> Values:
    return {"key": key, "operator": "NotIn", "values": [value]}
