"""The chart installed with Helm, and the running devhost."""

import copy
import json
from collections.abc import Iterable
from typing import Final

from tests.e2e.cluster import NODE, Cluster, Json, without_deleted
from tests.e2e.images import DEVHOST, TAG
from tools import helm

PLUGINS: Final = "/var/lib/kubelet/device-plugins"
STATE: Final = "/var/lib/kubelet/plugins/devhost"
DEVICES: Final = "/run/e2e"  # the directories of the tests' devices
STEPS: Final = f"{PLUGINS}/e2e-steps"  # devhost's pod can write there

COLA, DICE, COIN, BOOK, SLOT, DISK = (
    f"e2e.test/{name}" for name in ("cola", "dice", "coin", "book", "slot", "disk")
)

PYTHON: Final = "/opt/devhost/bin/python3"
_STEP: Final = f"import sys; open('{STEPS}/' + sys.argv[1], 'a').write('x')"
_STATUS: Final = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:9111/status").read().decode())
"""

# One resource of each kind, and what the node offers with all devices plugged in.
VALUES: Final[Json] = {
    "image": {"repository": DEVHOST, "tag": TAG, "pullPolicy": "Never"},
    "config": {
        "version": "v1",
        "resources": [
            {
                "name": COLA,
                "sources": [{"directory": f"{DEVICES}/colas"}],
                "allocate": {"env": {"COLAS": "${id}"}},
            },
            {
                "name": DICE,
                "sources": [{"dev": "dice[0-9]+"}],
                "id": "${name}",
                "allocate": {
                    "devices": [{"hostPath": "${path}", "containerPath": "/dev/die${index}"}]
                },
            },
            {"name": COIN, "sources": [{"dev": "coin[0-9]+"}], "id": "${name}", "inject": "cdi"},
            {
                "name": BOOK,
                "sources": [{"directory": f"{DEVICES}/books"}],
                "allocate": {"mounts": [{"hostPath": "${path}", "containerPath": "/book${index}"}]},
            },
            {
                "name": SLOT,
                "sources": [{"static": 2}],
                "replicas": 3,
                "allocate": {"env": {"SLOTS": "${id}"}},
            },
            {
                "name": DISK,
                "sources": [{"directory": f"{DEVICES}/disks"}],
                "preStart": [{"run": [PYTHON, "-c", _STEP, "${id}"]}],
                "allocate": {"env": {"DISKS": "${id}"}},
            },
        ],
    },
    "hostPaths": [DEVICES],
    "allow": {"paths": [f"{DEVICES}/books/*"], "exec": True},
    "cdi": {"enabled": True},
    "validation": {"strict": False},  # there is a warning that books are mounted by their names
}
OFFERED: Final = {COLA: 3, DICE: 2, COIN: 2, BOOK: 2, SLOT: 6, DISK: 2}


def config(*resources: Json) -> Json:
    """Return the values of a configuration."""
    return {"config": {"version": "v1", "resources": resources}}


class Release:
    """An installation in a namespace of its own.

    Attributes:
        values: The installed values; none after a failure.
    """

    def __init__(self, cluster: Cluster, major: int, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.values: Json | None = None
        self._helm = str(helm.build(major))

    def install(self, values: Json) -> None:
        """Install or upgrade, and wait until the pods are ready."""
        if values != self.values:
            self.values = None
            self.helm(
                *("upgrade", "--install", "--wait", "--timeout=100s", "--create-namespace"),
                *("--reset-values", "devhost", str(helm.CHART), "--values=-"),
                stdin=json.dumps(values),
            )
            self.values = copy.deepcopy(values)

    def uninstall(self) -> None:
        """Remove the release, and the Job of a refused release; nothing may be installed."""
        self.helm("uninstall", "devhost", "--wait", "--ignore-not-found")
        self.kubectl("delete", "jobs", "--all", "--cascade=foreground")
        self.values = None

    def helm(self, *arguments: str, stdin: str = "") -> str:
        namespace = f"--namespace={self.namespace}"
        return self.cluster.command(self._helm, *arguments, namespace, stdin=stdin)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def pod(self) -> Json:
        """Return the only pod of devhost that is not being deleted."""
        (pod,) = without_deleted(self.pods())
        return pod

    def pods(self) -> list[Json]:
        """Return the pods of devhost."""
        labels = "--selector=app.kubernetes.io/name=devhost"
        return self.cluster.items("pods", f"--namespace={self.namespace}", labels)

    def execute(self, *command: str) -> str:
        """Run a command in the pod."""
        return self.kubectl("exec", self.pod()["metadata"]["name"], "--", *command)

    def status(self) -> Json:
        """Return devhost's /status, which only the pod itself can ask for."""
        status: Json = json.loads(self.execute(PYTHON, "-c", _STATUS))
        return status

    def well(self) -> bool:
        """Whether devhost reports no trouble and each resource has one stream."""
        status = self.status()
        streams = {resource["streams"] for resource in status["resources"]}
        return not status["troubles"] and streams == {1}

    def noticed(self, restarts: int) -> bool:
        """Whether devhost has noticed so many restarts of the kubelet."""
        return int(self.status()["kubelet"]["restarts"]) >= restarts

    def offers(self, expected: dict[str, int]) -> bool:
        """Whether the node offers these numbers, all healthy, and devhost reports no trouble."""
        healthy = {name: (count, count) for name, count in expected.items()}
        return offered(self.cluster, expected) == healthy and self.well()

    def wait(self, expected: dict[str, int] = OFFERED) -> None:
        self.cluster.until(f"the node offers {expected}", lambda: self.offers(expected))


def offered(cluster: Cluster, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return (capacity, allocatable) of resources from the node's status."""
    status = cluster.get("node", NODE)["status"]
    return {
        name: (int(status["capacity"].get(name, 0)), int(status["allocatable"].get(name, 0)))
        for name in names
    }


def sockets(cluster: Cluster) -> dict[str, int]:
    """Return the sockets in kubelet's directory; each registration creates a new one."""
    return {
        path.name: path.stat().st_ino
        for path in cluster.host(PLUGINS).iterdir()
        if path.is_socket()
    }
