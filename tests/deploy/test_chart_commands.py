"""The commands of the pods, with the environment that the chart gives them."""

from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.deploy.helm import Helm
from tests.deploy.values import Values

SHOWN: Final[Values] = {"hostPaths": ["/srv", "/opt"], "validation": {"strict": False}}
ALLOWED: Final[Values] = {
    "allow": {"paths": ["/srv/*", "/opt/?"], "devices": ["/opt/?", "/dev/sd?"], "exec": True}
}
TRUSTED: Final = [
    pytest.param({"sources": [{"dev": {"pattern": "sdz", "types": "block"}}]}, id="block device"),
    pytest.param({"allocate": {"devices": [{"hostPath": "/opt/x"}]}}, id="device elsewhere"),
    pytest.param({"allocate": {"mounts": ["/opt/x"]}}, id="mount"),
    pytest.param({"preStart": [{"run": ["true"], "every": "start"}]}, id="command"),
]


def said(
    container: Any, *arguments: str, monkeypatch: pytest.MonkeyPatch, root: Path
) -> tuple[int, str]:
    """Run a command of devhost with the environment of a container."""
    with monkeypatch.context() as patch:
        for entry in container.get("env", []):
            if "value" in entry:
                patch.setenv(entry["name"], entry["value"])
        patch.setenv("DEVHOST_ROOT", str(root))
        done = CliRunner().invoke(main, arguments)
        return done.exit_code, done.output


@pytest.mark.parametrize("keys", TRUSTED)
def test_commands_in_the_pods_refuse_what_the_values_do_not_allow(
    helm: Helm, keys: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = {"name": "e.com/x", "sources": [{"static": 1}]} | keys
    config = {"version": "v1", "resources": [resource]}
    for allow in ({}, ALLOWED):
        rendered = helm.render({"config": config} | SHOWN | allow)
        pods = [document["spec"]["template"]["spec"] for document in rendered.of("DaemonSet")]
        pods += [document["spec"]["template"]["spec"] for document in rendered.of("Job")]
        (runs,), (validates,) = (pod["containers"] for pod in pods)
        file, values = tmp_path / "config.yaml", tmp_path / "values.yaml"
        for path, name in ((file, "test-devhost"), (values, "test-devhost-validation")):
            path.write_text(rendered.one("ConfigMap", name)["data"][path.name])
        *arguments, _ = validates["args"]
        status, validated = said(
            validates, *arguments, str(values), monkeypatch=monkeypatch, root=tmp_path
        )
        _, planned = said(runs, "plan", str(file), monkeypatch=monkeypatch, root=tmp_path)
        assert (status == 0) is bool(allow), validated
        assert ("allow: {" in validated) is not bool(allow)
        assert ("--allow-" in planned) is not bool(allow)
