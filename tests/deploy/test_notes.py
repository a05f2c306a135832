"""What an installation says: how to go on, and what the values do not allow yet."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import Helm
from tests.deploy.values import TOKENS, Values
from tools.helm import CHART

PROFILE: Values = {"name": "one", "nodeSelector": {"a": "b"}, "config": TOKENS}


def resource(**more: Any) -> Values:
    return {
        "config": {
            "version": "v1",
            "resources": [{"name": "e.com/x", "sources": ["/dev/x"]} | more],
        }
    }


def warnings(notes: str) -> list[str]:
    return [line for line in notes.splitlines() if line.startswith("WARNING: ")]


def test_notes_tell_how_to_go_on(helm: Helm) -> None:
    notes = helm.notes(resource() | {"profiles": [PROFILE]})
    assert "test-devhost serves:\n  e.com/x\ntest-devhost-one serves:\n  e.com/t\n" in notes
    assert (
        "kubectl label --overwrite namespace devhost-system "
        "pod-security.kubernetes.io/enforce=privileged" in notes
    )
    assert r"ALLOCATABLE:.status.allocatable.e\.com/x" in notes
    assert "            e.com/x: 1\n" in notes
    assert "exec daemonset/test-devhost -- devhost status" in notes
    assert "helm test -n devhost-system test" in notes
    assert warnings(notes) == []


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "test-devhost serves no resources yet: add them to config.resources"),
        ({"existingConfigMap": "theirs"}, "the ConfigMap theirs"),
    ],
)
def test_notes_without_resources_say_so(helm: Helm, config: Values, text: str) -> None:
    assert text in helm.notes({"config": config})


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ({"directory": "/etc/colas"}, "/etc/colas"),
        ("/srv/a/*.tok", "/srv/a"),
        ({"glob": ["/srv/[ab]", "/dev/x*", "/opt/b/*"]}, "/opt/b, /srv"),
        ({"glob": {"paths": "/srv/**/x"}}, "/srv"),
        ({"directory": "/device"}, "/device"),
        ({"directory": "/sys/class/x"}, None),
        ({"directory": "/sys/kernel/x"}, "/sys/kernel/x"),
        ({"dev": "x"}, None),
        ({"static": 3}, None),
    ],
)
def test_warning_names_host_paths_that_are_not_mounted(
    helm: Helm, source: Any, missing: str | None
) -> None:
    said = warnings(helm.notes(resource(sources=[source])))
    if missing is None:
        assert said == []
    else:
        (warning,) = said
        assert f"test-devhost uses {missing}, which is not mounted" in warning


@pytest.mark.parametrize("values", [{"hostPaths": ["/etc"]}, {"hostRoot": {"enabled": True}}])
def test_warning_is_absent_for_mounted_host_paths(helm: Helm, values: Values) -> None:
    assert warnings(helm.notes(resource(sources=[{"directory": "/etc/colas"}]) | values)) == []


def test_warning_of_a_profile_respects_its_own_mounts(helm: Helm) -> None:
    config = resource(sources=[{"directory": "/etc/colas"}])["config"]
    profile = PROFILE | {"config": config}
    (warning,) = warnings(helm.notes({"profiles": [profile]}))
    assert "hostPaths (of the profile)" in warning
    assert warnings(helm.notes({"profiles": [profile | {"hostPaths": ["/etc"]}]})) == []


@pytest.mark.parametrize(
    ("more", "allowed", "said"),
    [
        ({"health": "readable"}, {"deviceAccess": {"privileged": True}}, "deviceAccess.privileged"),
        (
            {"health": {"checks": [{"file": {"path": "/run/${name}/x", "matches": "a"}}]}},
            {"hostPaths": ["/run"]},
            "uses /run,",
        ),
        (
            {"preStart": [{"waitFor": "/run/a/${name}", "every": "start"}]},
            {"hostPaths": ["/run/a"]},
            "uses /run/a,",
        ),
        (
            {"preStart": [{"mode": "0660", "every": "start"}]},
            {"deviceAccess": {"writable": True}},
            "deviceAccess.writable",
        ),
        ({"inject": "cdi"}, {"cdi": {"enabled": True}}, "cdi.enabled"),
    ],
)
def test_warning_names_what_the_values_do_not_allow(
    helm: Helm, more: Values, allowed: Values, said: str
) -> None:
    (warning,) = warnings(helm.notes(resource(**more)))
    assert said in warning
    left = warnings(helm.notes(resource(**more) | allowed))
    assert [one for one in left if "is privileged" not in one] == []


def test_warning_where_mounts_are_not_read_only_recursively(helm: Helm, tmp_path: Path) -> None:
    """Only `helm template` takes a version of Kubernetes, and it does not show notes."""
    chart = tmp_path / "devhost"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "shown.yaml").write_text(
        "kind: Shown\nmetadata: {name: x}\nnotes: |\n"
        '  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
    )
    for version, count in (("1.30.9", 1), ("1.31.0", 0)):
        said = helm.run("template", "test", str(chart), f"--kube-version={version}", "-n=devhost")
        assert said.count("WARNING: Mounts can be read-only recursively") == count


def test_warning_of_device_metrics_without_pod_resources(helm: Helm) -> None:
    unasked = {"podResources": {"enabled": False}}
    values: Values = {"config": TOKENS, "metrics": {"devices": True}, "profiles": [PROFILE]}
    said = warnings(helm.notes(values | unasked))
    assert len(said) == 2
    assert all("metrics.devices requires podResources.enabled" in one for one in said)
    holders = {"podResources": {"enabled": True}}
    (warning,) = warnings(helm.notes(values | unasked | {"profiles": [PROFILE | holders]}))
    assert "test-devhost does not know" in warning
    assert warnings(helm.notes(values)) == []


def test_warning_where_pod_resources_are_disabled(helm: Helm) -> None:
    step = resource(preStart=[{"waitFor": "/dev/y"}])
    assert warnings(helm.notes(step | {"podResources": {"enabled": False}})) == []
    assumed = {"podResources": {"enabled": False, "assumeFree": True}}
    (warning,) = warnings(helm.notes(resource() | assumed))
    assert "drain the nodes before such an edit" in warning


def test_warning_of_the_namespace_default(helm: Helm) -> None:
    (warning,) = warnings(helm.notes({}, namespace="default"))
    assert "default" in warning


def test_warning_of_profiles_that_cannot_be_kept_apart(helm: Helm) -> None:
    profile = {"name": "one", "affinity": {"nodeAffinity": {}}, "config": TOKENS}
    (warning,) = warnings(helm.notes({"config": TOKENS, "profiles": [profile]}))
    assert "the profile one selects nodes by affinity" in warning.replace("The", "the")
    assert warnings(helm.notes({"profiles": [profile]})) == []


def test_warning_of_alerts_without_a_monitor(helm: Helm) -> None:
    (warning,) = warnings(helm.notes({"metrics": {"prometheusRule": {"enabled": True}}}))
    assert "metrics.podMonitor" in warning
