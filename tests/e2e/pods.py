"""Pods that request devices."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.e2e.cluster import Cluster, Json, names_of
from tests.e2e.images import BUSYBOX

NAMESPACE: Final = "work"
# The command of a container that exits with an error once /tmp/end exists in it.
CRASHES: Final = ("sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 1")


class Pods:
    """Pods in a namespace of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def run(self, *pods: Json) -> None:
        """Create pods, and wait until all of them run."""
        self.cluster.apply(*pods)
        for name in names_of(pods):
            self.wait_for(name, "condition=Ready")

    def wait_for(self, name: str, condition: str) -> None:
        self.kubectl("wait", f"--for={condition}", f"pod/{name}", "--timeout=100s")

    def wait_restarted(self, name: str) -> None:
        """Wait until a pod's container has started once more."""
        self.wait_for(name, "jsonpath={.status.containerStatuses[0].restartCount}=1")
        self.wait_for(name, "condition=Ready")

    def delete(self, *names: str) -> None:
        self.kubectl("delete", "pod", *names)

    def delete_all(self) -> None:
        self.kubectl("delete", "pods", "--all", "--force")

    def get(self, name: str) -> Json:
        return self.cluster.get("pod", name, f"--namespace={NAMESPACE}")

    def execute(self, name: str, *command: str) -> str:
        return self.kubectl("exec", name, "--", *command)

    def env(self, name: str) -> dict[str, str]:
        """Return the environment of a pod's container."""
        lines = self.execute(name, "env").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)

    def health(self, name: str) -> dict[str, str]:
        """Return the health of devices, from a pod's status."""
        return {
            device["resourceID"]: device["health"]
            for status in container(self.get(name)).get("allocatedResourcesStatus", ())
            for device in status["resources"]
        }

    def containers(self) -> dict[str, tuple[str, str, int]]:
        """Return the phase, the container and its restarts of each pod."""
        pods = self.cluster.items("pods", f"--namespace={NAMESPACE}")
        statuses = [container(pod) for pod in pods]
        return {
            pod["metadata"]["name"]: (
                pod["status"]["phase"],
                status.get("containerID", ""),
                status["restartCount"],
            )
            for pod, status in zip(pods, statuses, strict=True)
        }

    def failed(self) -> list[str]:
        """Name the pods of all namespaces that have failed, refused ones among them."""
        failed = "--field-selector=status.phase=Failed"
        return names_of(self.cluster.items("pods", "--all-namespaces", failed))


def container(pod: Json) -> Json:
    """Return the status of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    return dict(status)


def container_id(pod: Json) -> str:
    """Return the ID that containerd has for a pod's only container."""
    return str(container(pod)["containerID"]).removeprefix("containerd://")


def pod(
    name: str,
    limits: Mapping[str, int],
    *,
    command: Sequence[str] = ("sleep", "2147483647"),
    user: int = 0,
) -> Json:
    """Return a pod with one container that requests devices."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            # Not 0: then the API server forgets the pod before kubelet has stopped it.
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "securityContext": {"runAsUser": user},
            "containers": [
                {
                    "name": "main",
                    "image": BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": {"limits": dict(limits)},
                }
            ],
        },
    }
