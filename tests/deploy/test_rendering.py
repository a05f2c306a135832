"""The rendered chart: three sets of values, and what each switch changes."""

import copy
import os
from pathlib import Path
from typing import Final

import pytest
import yaml
from click import Command, Option

from devhost.cli.run_command import command
from devhost.cli.validate_command import command as validate_command
from tests.deploy.helm import NAMESPACE, Helm
from tests.deploy.values import EVERYTHING, EXAMPLES, REFUSED, SETS, TOKENS, Values, example
from tools.helm import CHART, PACKAGES, RefusedError

GOLDEN: Final = Path(__file__).with_name("golden")
CLUSTER_SCOPED: Final = {
    *("ClusterRole", "ClusterRoleBinding", "DeviceClass"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}


@pytest.mark.parametrize("values", SETS)
def test_values_are_rendered_as_in_the_golden_file(helm: Helm, values: str) -> None:
    """`DEVHOST_TEST_WRITE=1` writes it; the content of ConfigMaps and alerts has its own tests."""
    golden = GOLDEN / f"{values}.yaml"
    documents = [dict(document) for document in helm.render(SETS[values]).documents]
    for document in documents:
        if document["kind"] in {"ConfigMap", "PrometheusRule"}:
            document.pop("spec", None)
            document.pop("data", None)
    if os.environ.get("DEVHOST_TEST_WRITE"):
        golden.write_text(yaml.safe_dump_all(documents, width=100, default_flow_style=None))
    assert documents == list(yaml.safe_load_all(golden.read_text()))


@pytest.mark.parametrize("values", SETS)
def test_lint_finds_nothing(helm: Helm, values: str) -> None:
    helm.run("lint", "--strict", str(CHART), "--kube-version=1.28.0", values=SETS[values])


@pytest.mark.slow
@pytest.mark.parametrize("values", SETS)
def test_older_helm_renders_the_same(helm: Helm, values: str) -> None:
    older = Helm(min(PACKAGES))
    assert older.render(SETS[values]).documents == helm.render(SETS[values]).documents


@pytest.mark.parametrize("values", SETS)
def test_flags_and_variables_are_those_of_devhost(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    kinds: dict[str, Command] = {"DaemonSet": command, "Job": validate_command}
    for owner, of in [(owner, kinds[kind]) for kind in kinds for owner in rendered.of(kind)]:
        (container,) = owner["spec"]["template"]["spec"]["containers"]
        flags = [word for word in container["args"] if word.startswith("--")]
        words = [word for word in container["args"] if not word.startswith("--")]
        options = {name for param in of.params if isinstance(param, Option) for name in param.opts}
        assert {flag.partition("=")[0] for flag in flags} <= options
        validated = ["validate", "/etc/devhost/values.yaml"]
        run = (["run", "/etc/devhost/config.yaml"], ["/etc/devhost/config.yaml"])
        assert words in ((validated,) if of is validate_command else run)
        variables = {entry["name"] for entry in container.get("env", [])}
        assert {name for name in variables if name.startswith("DEVHOST_")} <= {
            param.envvar for param in of.params
        }


@pytest.mark.parametrize("values", SETS)
def test_selectors_find_their_own_pods_and_names_are_short(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    labels, of_hook = (
        [pod_labels["spec"]["template"]["metadata"]["labels"] for pod_labels in rendered.of(kind)]
        for kind in ("DaemonSet", "Job")
    )
    for index, daemonset in enumerate(rendered.of("DaemonSet")):
        selector = daemonset["spec"]["selector"]["matchLabels"].items()
        chosen = [at for at, pod in enumerate(labels + of_hook) if selector <= pod.items()]
        assert chosen == [index]
    for monitor in rendered.of("PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        assert all(selector <= pod_labels.items() for pod_labels in labels)
        assert not any(selector <= pod_labels.items() for pod_labels in of_hook)
    for document in rendered.documents:
        is_clusters = document["kind"] in CLUSTER_SCOPED
        assert document["metadata"].get("namespace") == (None if is_clusters else NAMESPACE)
        assert len(document["metadata"]["name"]) <= (253 if is_clusters else 63)
        assert all(len(value) <= 63 for value in document["metadata"]["labels"].values())


def test_older_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(RefusedError, match=r"1\.28\.0-0"):
        helm.render({}, "1.27")


@pytest.mark.parametrize(("values", "message"), REFUSED["contradictions"])
def test_contradicting_values_are_refused(helm: Helm, values: Values, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        helm.render(values)
    assert message in str(refused.value)
    assert "(devhost/templates/values/check.yaml:" in str(refused.value)


def test_edit_of_resources_rolls_no_pod(helm: Helm) -> None:
    before = helm.render(EVERYTHING)
    edited = copy.deepcopy(EVERYTHING)
    edited["config"]["resources"] = example(EXAMPLES[0])["config"]["resources"]
    edited["config"]["x-new"] = {"a": 1}
    edited["profiles"][0]["config"] = example(EXAMPLES[1])["config"]
    after = helm.render(edited)
    changed = {key for key, text in before.texts.items() if after.texts[key] != text}
    assert [kind for kind, _ in changed] == ["ConfigMap"] * 3
    daemonset = ("DaemonSet", "test-devhost")
    first = helm.render({"config": TOKENS})
    assert helm.render({}).texts[daemonset] == first.texts[daemonset]


def test_specs_of_vendors_are_mounted_for_a_source_that_reads_them(helm: Helm) -> None:
    resources = [{"name": "a.b/c", "sources": [source]} for source in ("/dev/a", {"cdi": "v.c/d"})]
    config = {"version": "v1", "resources": resources}
    cdi = {"enabled": True, "specDirs": ["/opt/cdi/", "/usr/cdi"]}
    mount = {"mountPath": "/host/opt/cdi", "name": "cdi-specs-0", "readOnly": True}
    for section in (config, {"existingConfigMap": "other"}):
        values = {"config": section, "cdi": cdi, "hostPaths": ["/usr/cdi"]}
        (daemonset,) = helm.render(values).of("DaemonSet")
        (container,) = daemonset["spec"]["template"]["spec"]["containers"]
        assert {"name": "DEVHOST_CDI_DIRS", "value": "/opt/cdi/ /usr/cdi"} in container["env"]
        assert mount in container["volumeMounts"]
        assert "cdi-specs-1" not in str(daemonset)
    values = {"config": config | {"resources": resources[:1]}, "cdi": cdi}
    (daemonset,) = helm.render(values).of("DaemonSet")
    assert "cdi-specs" not in str(daemonset)


@pytest.mark.parametrize("kubernetes", ["1.28", "1.30"])
def test_mounts_on_older_kubernetes_are_not_recursive(helm: Helm, kubernetes: str) -> None:
    (daemonset,) = helm.render({}, kubernetes).of("DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert not [mount for mount in container["volumeMounts"] if "recursiveReadOnly" in mount]
