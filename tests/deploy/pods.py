"""Parts of what is rendered."""

from typing import Any

from tests.deploy.helm import Helm
from tests.deploy.values import Values

PLUGINS = "/var/lib/kubelet/device-plugins"
STATE = "/var/lib/kubelet/plugins/devhost"
SYSFS = tuple(f"/sys/{part}" for part in ("block", "bus", "class", "dev", "devices"))


def pod_of(helm: Helm, values: Values, name: str = "test-devhost") -> Any:
    return helm.render(values).one("DaemonSet", name)["spec"]["template"]["spec"]


def container_of(helm: Helm, values: Values, name: str = "test-devhost") -> Any:
    (container,) = pod_of(helm, values, name)["containers"]
    return container


def mounts_of(helm: Helm, values: Values, name: str = "test-devhost") -> dict[str, Any]:
    """The host paths that a pod sees, and how: type, place, read-only, propagation."""
    pod = pod_of(helm, values, name)
    volumes = {
        volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume
    }
    return {
        volumes[mount["name"]]["path"]: (
            volumes[mount["name"]]["type"],
            mount["mountPath"],
            "recursively" if "recursiveReadOnly" in mount else bool(mount.get("readOnly")),
            mount.get("mountPropagation"),
        )
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] in volumes
    }
