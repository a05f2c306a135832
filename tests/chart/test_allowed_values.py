"""What the commands take values to allow is what the chart makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from devhost.loading.loader import load_all
from tests.chart.helm import Helm, RefusedError
from tests.chart.values import TOKENS

_FLAGS = ("PATH", "DEVICE", "RESOURCE", "CDI", "ANNOTATION")
_ATTRIBUTES = ("paths", "devices", "resources", "cdi", "annotations")


def _by_chart(helm: Helm, values: dict[str, Any]) -> dict[str, dict[str, str]] | None:
    """Return the variables of each DaemonSet, or ``None`` if the chart refuses the values."""
    try:
        found = helm.render(values).of("DaemonSet")
    except RefusedError:
        return None
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: {
            variable["name"].removeprefix("DEVHOST_ALLOW_"): variable["value"]
            for variable in one["spec"]["template"]["spec"]["containers"][0]["env"]
            if variable["name"].startswith("DEVHOST_ALLOW_")
        }
        for one in found
    }


def _by_commands(file: Path, values: dict[str, Any]) -> dict[str, dict[str, str]] | None:
    file.write_text(json.dumps(values))
    loaded = load_all(str(file))
    if any(one.config is None for one in loaded):
        return None
    result = {}
    for one in loaded:
        lists = [getattr(one.policy, f"allow_{name}") for name in _ATTRIBUTES]
        flags = {flag: " ".join(globs) for flag, globs in zip(_FLAGS, lists, strict=True) if globs}
        result[one.profile] = flags | ({"EXEC": "true"} if one.policy.allow_exec else {})
    return result


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ({"allow": {"paths": None, "exec": None, "cdi": []}}, True),
        ({"allow": {"devices": ["gpu", "/dev/dri/*"], "cdi": ["NVIDIA_*"], "exec": True}}, True),
        ({"allow": None}, False),
        ({"allow": {"path": None}}, False),
        ({"allow": {"resources": ["a.b/*"]}}, False),
        ({"allow": {"paths": ["/dev/a b"]}}, False),
        ({"of profile": {"paths": ["/dev/sdc"]}}, True),
        ({"of profile": {"paths": [], "exec": False}}, True),
        ({"of profile": {}}, True),
        ({"of profile": {"paths": None}}, False),
        ({"of profile": None}, False),
        ({"config": {"version": "v1", "resources": []}, "of profile": {}}, True),
    ],
    ids=str,
)
def test_the_commands_agree_with_the_chart(
    tmp_path: Path, helm: Helm, values: dict[str, Any], taken: bool
) -> None:
    values = {"config": TOKENS, "allow": {"paths": ["/dev/sdb"], "exec": True}} | values
    if "of profile" in values:
        profile = {"name": "a", "nodeSelector": {"a": "b"}, "config": TOKENS}
        values["profiles"] = [profile | {"allow": values.pop("of profile")}]
    by_commands = _by_commands(tmp_path / "values.yaml", values)
    assert by_commands == _by_chart(helm, values)
    assert (by_commands is not None) == taken


@pytest.mark.parametrize(
    "glob",
    [
        *("/srv/data", "/srv/data/*", "/srv/data*", "/srv/data/../x/*", "/opt/a", "/proc/x"),
        *("/sys/kernel/*", "/sys/class/*", "*", "?srv/*", "/device/x", "/dev/sd[b-z]"),
    ],
)
def test_the_commands_warn_where_the_chart_refuses(helm: Helm, tmp_path: Path, glob: str) -> None:
    values = {"allow": {"paths": [glob]}, "hostPaths": ["/srv/data/", "/opt"], "config": TOKENS}
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    (loaded,) = load_all(str(tmp_path / "values.yaml"))
    warned = any("that the chart mounts" in one.message for one in loaded.problems)
    assert warned == (_by_chart(helm, values) is None)
