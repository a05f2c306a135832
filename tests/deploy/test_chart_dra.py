"""The chart for Dynamic Resource Allocation: drivers, mounts, classes and rights."""

import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from devhost.backends.dra.plugin_watcher import DriverSockets
from devhost.cli import main
from tests.deploy.helm import Helm
from tests.deploy.values import SETS, TOKENS, Values
from tools.helm import CHART, IMAGE, ROOT, RefusedError

DRA: Final = SETS["dra"]
OF_DRA: Final = {
    *("ClusterRole", "ClusterRoleBinding", "DeviceClass"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}
# What follows a domain in an expression.
ATTRIBUTE: Final = re.compile(r"device\.attributes\[[^]]+\](.*)")
SAFE: Final = re.compile(r"\.\?\w+\.orValue\(")


def drivers(helm: Helm, values: Values) -> list[str]:
    """Return the names of the drivers of the pods."""
    flags = [flag for doc in helm.render(values).of("DaemonSet") for flag in arguments(doc)]
    return [flag.partition("=")[2] for flag in flags if flag.startswith("--dra-driver=")]


def arguments(daemon_set: Any) -> list[str]:
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    args: list[str] = container["args"]
    return args


def mounted(helm: Helm, values: Values) -> list[str]:
    """Return the paths of the host that the container of the first DaemonSet sees as they are."""
    spec = helm.render(values).of("DaemonSet")[0]["spec"]["template"]["spec"]
    paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    mounts = [(m["mountPath"], paths.get(m["name"])) for m in spec["containers"][0]["volumeMounts"]]
    return [here for here, there in mounts if here == there]


def test_nothing_of_it_is_rendered_unless_it_is_enabled(helm: Helm) -> None:
    off = DRA | {"dra": {"enabled": False}, "config": TOKENS}
    rendered = helm.render(off)
    assert {document["kind"] for document in rendered.documents} & OF_DRA == set()
    assert drivers(helm, off) == []
    assert rendered.one("NetworkPolicy")["spec"]["egress"] == []


def test_cluster_without_the_api_is_refused(helm: Helm, tmp_path: Path) -> None:
    """Helm cannot be told that a cluster lacks an API: here, the chart asks for another one."""
    chart = tmp_path / "devhost"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(
        helpers.read_text().replace('Has "resource.k8s.io/v1"', 'Has "resource.k8s.io/v9"')
    )
    with pytest.raises(
        RefusedError, match=r"does not have resource\.k8s\.io/v1; devhost needs Kub"
    ):
        helm.run("template", "test", str(chart), "--kube-version=1.37.0", values=DRA)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (DRA, ["test-devhost", "test-devhost-gpu"]),
        (DRA | {"dra": DRA["dra"] | {"driver": "own"}}, ["own", "own-gpu"]),
    ],
)
def test_each_daemon_set_has_its_own_driver(helm: Helm, values: Values, named: list[str]) -> None:
    assert drivers(helm, values) == named


def test_sockets_are_where_kubelet_sees_them(helm: Helm) -> None:
    values = DRA | {"kubelet": {"rootDir": "/data/kubelet/"}}
    sockets = DriverSockets(Path("/data/kubelet/"), drivers(helm, values)[0])
    assert str(sockets.registry) in mounted(helm, values)


@pytest.mark.parametrize("length", [54, 55])
def test_driver_is_refused_whose_sockets_have_too_long_paths(helm: Helm, length: int) -> None:
    name = "d" * length
    values = DRA | {"dra": DRA["dra"] | {"driver": name}, "profiles": []}
    if DriverSockets(Path("/var/lib/kubelet"), name).length_problem is None:
        assert drivers(helm, values) == [name]
    else:
        with pytest.raises(RefusedError, match="too long"):
            helm.render(values)


def test_classes_are_those_of_the_command(helm: Helm, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(DRA | {"image": IMAGE}))
    flags = [f"--dra-driver={name}" for name in drivers(helm, DRA)]
    done = CliRunner().invoke(main, ["deviceclasses", str(file), *flags])
    assert done.exit_code == 0, done.output
    printed = {doc["metadata"]["name"]: doc["spec"] for doc in yaml.safe_load_all(done.stdout)}
    rendered = {doc["metadata"]["name"]: doc["spec"] for doc in helm.render(DRA).of("DeviceClass")}
    extra = rendered.pop("elsewhere.example.com")
    assert extra["extendedResourceName"] == "example.com/elsewhere"
    assert printed == rendered
    assert "example.com/plugin" not in {c["extendedResourceName"] for c in rendered.values()}


def test_no_selector_fails_for_a_device_without_the_attribute() -> None:
    """That would end the scheduling of a pod on all nodes."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files += [
        path for name in ("config", "deploy", "devhost") for path in (ROOT / name).rglob("*.*")
    ]
    texts = [path.read_text() for path in files if path.suffix in {".md", ".yaml", ".py", ".txt"}]
    selectors = [end for text in texts for end in ATTRIBUTE.findall(text)]
    assert len(selectors) > 2
    assert {end for end in selectors if not SAFE.match(end)} == set()


def test_classes_can_be_made_by_another(helm: Helm) -> None:
    values = DRA | {"dra": DRA["dra"] | {"deviceClasses": {"create": False}}}
    assert helm.render(values).of("DeviceClass") == []


def test_rights_are_those_of_the_service_account_of_the_pods(helm: Helm) -> None:
    rendered = helm.render(DRA | {"serviceAccount": {"name": "own"}})
    (subject,) = rendered.one("ClusterRoleBinding")["subjects"]
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert {
        doc["spec"]["template"]["spec"]["serviceAccountName"] for doc in rendered.of("DaemonSet")
    } == {subject["name"]}
    policy = rendered.one("ValidatingAdmissionPolicy")
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    binding = rendered.one("ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
