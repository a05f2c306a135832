"""The configuration from values to devhost: through Helm, the ConfigMap and the loader."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import load_bytes
from devhost.model.config import Config
from tests.chart.helm import Helm
from tests.chart.pods import SYSFS
from tests.chart.values import EVERYTHING, EXAMPLES, TOKENS, Values, example
from tests.support.examples import ALL_EXAMPLES

# Texts that YAML 1.1 or 1.2 would take for something else if they were not quoted.
HARD = [
    *("=", "<<"),
    *("0403", "046d", "0x1f", "0o17", "1:30", "1_000", "1e3", ".5", "+1", "1.0", "08"),
    *("yes", "off", "n", "Y", "null", "~", "", " ", "true", "2001-01-01", "*a", "&a"),
    *("a: b", "a #b", "- a", "{a}", "[a]", "'", '"', "!x", "%a", "@a", "`a`", "|", ">", "a\\b"),
    *(
        "{{ .Values.x }}",
        "ä€😀",
        "a\tb",
        " a ",
        "x" * 300,
        "a b " * 60,
        "line\nline\n",
        "\n",
        "#",
        "?",
    ),
]


def served(helm: Helm, values: Values, name: str = "test-devhost") -> bytes:
    """What lies in the pod's /etc/devhost/config.yaml."""
    data = helm.render(values).one("ConfigMap", name)["data"]
    assert set(data) == {"config.yaml"}
    return str(data["config.yaml"]).encode()


def loaded(raw: bytes) -> Config:
    found = load_bytes(raw, "config.yaml", Policy(("*",), allow_exec=True))
    assert found.config is not None, found.problems
    return found.config


@pytest.mark.parametrize("path", ALL_EXAMPLES, ids=lambda path: path.stem)
def test_an_example_means_the_same_in_values(each_helm: Helm, path: Path) -> None:
    assert loaded(served(each_helm, example(path))) == loaded(path.read_bytes())


def test_what_the_defaults_serve_is_valid(helm: Helm) -> None:
    assert loaded(served(helm, {})).resources == ()


def test_texts_arrive_as_they_are(each_helm: Helm) -> None:
    env = {f"TEXT_{index}": text.replace("$", "$$") for index, text in enumerate(HARD)}
    resource = TOKENS["resources"][0] | {"allocate": {"env": env}}
    config = TOKENS | {"resources": [resource]}
    as_json = json.dumps(config, ensure_ascii=False).encode()
    assert loaded(served(each_helm, {"config": config})) == loaded(as_json)


@pytest.mark.parametrize("number", [0, 1, 100000, 1000000, 4294967294])
def test_numbers_arrive_as_they_are(each_helm: Helm, number: int) -> None:
    node = {"hostPath": "/dev/x", "uid": number, "gid": number}
    resource = TOKENS["resources"][0] | {"allocate": {"devices": [node]}, "inject": "cdi"}
    (rendered,) = loaded(
        served(each_helm, {"config": TOKENS | {"resources": [resource]}})
    ).resources
    assert rendered.allocate.devices is not None
    (device,) = rendered.allocate.devices
    assert (device.uid, device.gid) == (number, number)


def test_keys_for_anchors_are_kept(helm: Helm) -> None:
    assert b"x-common:" in served(helm, EVERYTHING | {"fullnameOverride": "", "profiles": []})


def test_a_profile_serves_its_own(helm: Helm) -> None:
    values: Values = {
        "config": example(EXAMPLES[0])["config"],
        "profiles": [{"name": "one", "nodeSelector": {"a": "b"}, "config": TOKENS}],
    }
    assert loaded(served(helm, values, "test-devhost-one")).resources[0].name == "e.com/t"
    assert loaded(served(helm, values)) == loaded(EXAMPLES[0].read_bytes())


def test_somebody_elses_configmap_is_mounted_and_none_is_made(helm: Helm) -> None:
    rendered = helm.render({"config": {"existingConfigMap": "theirs"}})
    assert rendered.of("ConfigMap") == []
    for pod in (
        rendered.one("DaemonSet")["spec"]["template"]["spec"],
        rendered.one("Pod")["spec"],
    ):
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
        assert volume["configMap"] == {"name": "theirs"}


def test_what_is_rendered_finds_devices_below_the_mounts(helm: Helm, tmp_path: Path) -> None:
    """From values to what a container would receive, with the host as the pod's mounts show it."""
    cola = next(path for path in EXAMPLES if path.stem == "cola")
    values: Values = example(cola) | {"hostPaths": ["/etc/colas"]}
    host, pod = tmp_path / "host", tmp_path / "pod"
    make_host(host)
    place(helm, values, host, pod)
    (found,) = dry_run(served(helm, values), pod / "host", {"myway5.com/cola": "1"})
    assert found["error"] is None
    assert found["allocation"]["envs"] == {"COLA_DEVICES": "cherry"}


def test_what_is_not_mounted_is_not_found(helm: Helm, tmp_path: Path) -> None:
    cola = next(path for path in EXAMPLES if path.stem == "cola")
    host, pod = tmp_path / "host", tmp_path / "pod"
    make_host(host)
    place(helm, example(cola), host, pod)
    (found,) = dry_run(served(helm, example(cola)), pod / "host", {})
    assert found["devices"] == []


def make_host(host: Path) -> None:
    for path in ("/etc/colas", "/dev", *SYSFS):
        (host / path.lstrip("/")).mkdir(parents=True)
    (host / "etc" / "colas" / "cherry").touch()


def place(helm: Helm, values: Values, host: Path, pod: Path) -> None:
    """Make a pod's tree: links to the parts of a host where the container has mounts of it."""
    spec = helm.render(values).one("DaemonSet")["spec"]["template"]["spec"]
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["mountPath"].startswith("/host"):
            source = host / paths[mount["name"]].lstrip("/")
            target = pod / mount["mountPath"].lstrip("/")
            assert source.is_dir(), f"the pod would wait for {source}"
            target.mkdir(parents=True)
            for entry in source.iterdir():
                (target / entry.name).hardlink_to(entry)


def dry_run(raw: bytes, root: Path, wanted: dict[str, str]) -> Sequence[dict[str, Any]]:
    reports = report(loaded(raw), HostFiles(str(root)), Policy(), "node", wanted)
    return [one.as_json() for one in reports]
