"""The notes of an installation: how to go on, and what the values do not allow yet."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import Helm
from tests.deploy.values import TOKENS, Values
from tools.helm import CHART

PROFILE: Values = {"name": "one", "nodeSelector": {"a": "b"}, "config": TOKENS}


def resource(**keys: Any) -> Values:
    return {
        "config": {
            "version": "v1",
            "resources": [{"name": "e.com/x", "sources": ["/dev/x"]} | keys],
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
    assert "as the Job test-devhost-validation does before each upgrade" in notes
    assert "devhost validate --strict --enforce FILE" in notes
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


DEVICE_METRICS: Values = {"config": TOKENS, "metrics": {"devices": True}, "profiles": [PROFILE]}
AWAY: Values = {"name": "one", "affinity": {"nodeAffinity": {}}, "config": TOKENS}
# Values, and what each warning says.
WARNINGS: list[tuple[Values, list[str]]] = [
    (DEVICE_METRICS, []),
    (resource(inject="cdi", sources=[{"directory": "/etc/x"}], health="readable"), []),
    (resource() | {"deviceAccess": {"privileged": True}}, ["is privileged"]),
    ({"config": TOKENS, "profiles": [AWAY]}, ["profile one selects nodes by affinity"]),
    ({"profiles": [AWAY]}, []),
    ({"metrics": {"prometheusRule": {"enabled": True}}}, ["metrics.podMonitor"]),
]


def test_notes_with_dra_say_what_it_is_to_be_handled_with(helm: Helm) -> None:
    notes = helm.notes({"config": TOKENS, "cdi": {"enabled": True}, "dra": {"enabled": True}})
    assert "  devhost deviceclasses --dra-driver=test-devhost FILE\n" in notes
    assert "Delete the pods that have devices before you uninstall" in notes
    assert "Show the devices of the nodes, without those that DRA offers:" in notes
    assert "deviceclasses" not in helm.notes({"config": TOKENS})


@pytest.mark.parametrize(("values", "expected"), WARNINGS)
def test_notes_warn_of_missing_values(helm: Helm, values: Values, expected: list[str]) -> None:
    lines = warnings(helm.notes(values))
    assert len(lines) == len(expected), lines
    assert [line for line, text in zip(lines, expected, strict=True) if text not in line] == []


def test_notes_warn_where_mounts_are_not_read_only_recursively(helm: Helm, tmp_path: Path) -> None:
    """Only `helm template` takes a version of Kubernetes, and it does not show notes."""
    chart = tmp_path / "devhost"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "shown.yaml").write_text(
        "kind: Shown\nmetadata: {name: x}\nnotes: |\n"
        '  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
    )
    for version, count in (("1.30.9", 1), ("1.31.0", 0)):
        notes = helm.run("template", "test", str(chart), f"--kube-version={version}", "-n=devhost")
        assert notes.count("WARNING: Mounts can be read-only recursively") == count


def test_notes_warn_of_the_namespace_default(helm: Helm) -> None:
    (warning,) = warnings(helm.notes({}, namespace="default"))
    assert "default" in warning
