"""The commands of the pods, run with the environment that the chart gives them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chart.helm import Helm
from tests.chart.pods import container_of
from tests.chart.values import Values

ALLOWED: Values = {
    "paths": ["/srv/*", "/opt/?", "/dev/sd*"],
    "devices": ["/opt/?"],
    "exec": True,
}
SHOWN: Values = {"hostPaths": ["/srv", "/opt"]}
TRUSTED = [
    pytest.param({"sources": [{"dev": {"pattern": "sdz", "types": "block"}}]}, id="block device"),
    pytest.param({"allocate": {"devices": [{"hostPath": "/opt/x"}]}}, id="device elsewhere"),
    pytest.param({"allocate": {"mounts": ["/opt/x"]}}, id="mount"),
    pytest.param({"preStart": [{"run": ["true"], "every": "start"}]}, id="command"),
]


def resource(more: Values) -> Values:
    one = {"name": "e.com/x", "sources": [{"static": 1}]}
    return {"config": {"version": "v1", "resources": [one | more]}}


def environment_of(container: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def devhost(*args: object, env: dict[str, str]) -> tuple[int, str]:
    """Run devhost to its end; return its status, and all that it said."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("DEVHOST_")}
    done = subprocess.run(
        [sys.executable, "-m", "devhost", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
        env=own | env,
        timeout=250,
    )
    return done.returncode, done.stdout + done.stderr


def served(helm: Helm, values: Values, directory: Path) -> Path:
    file = directory / "config.yaml"
    file.write_text(helm.render(values).one("ConfigMap", "test-devhost")["data"]["config.yaml"])
    return file


def of_helm_test(helm: Helm, values: Values, file: Path) -> tuple[int, str]:
    """Run the pod of `helm test`."""
    (container,) = helm.render(values).one("Pod")["spec"]["containers"]
    *args, _ = container["args"]
    return devhost(*args, file, env=environment_of(container))


@pytest.mark.parametrize("more", TRUSTED)
def test_validate_and_plan_in_the_pods_refuse_what_run_refuses(
    helm: Helm, more: Values, tmp_path: Path
) -> None:
    values = resource(more) | SHOWN
    file = served(helm, values, tmp_path)
    environment = environment_of(container_of(helm, values)) | {"DEVHOST_ROOT": str(tmp_path)}
    status, said = devhost("run", file, f"--plugin-dir={tmp_path}", env=environment)
    assert (status, "need" in said and "--allow-" in said) == (1, True)
    status, said = of_helm_test(helm, values, file)
    assert (status, "need" in said and "--allow-" in said) == (1, True)
    status, said = of_helm_test(helm, values | {"allow": ALLOWED}, file)
    assert status == 0, said
    root = {"DEVHOST_ROOT": str(tmp_path)}
    for allow, warns in (({}, True), (ALLOWED, False)):
        container = container_of(helm, values | {"allow": allow})
        _, said = devhost("plan", file, env=environment_of(container) | root)
        assert ("--allow-" in said) is warns, said
