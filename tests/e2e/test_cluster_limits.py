"""Limits of devhost's pod: its memory, and its access to the node."""

import json

from tests.e2e.cluster import Cluster
from tests.e2e.pods import Pods, container, container_id, pod
from tests.e2e.release import VALUES, Release, config
from tools.helm import PACKAGES

# Prints the directories of the host's sysfs in the pod, whether a link in there leads to its target,
# and which mounts of it, or of any cgroup, are writable.
LOOK = """
import json, os
mounts = [line.split() for line in open("/proc/self/mounts")]
print(json.dumps({
    "parts": sorted(os.listdir("/host/sys")),
    "links": os.path.exists("/host/sys/dev/char/1:3/subsystem/null/dev"),
    "writable": [
        place
        for _, place, kind, options, *_ in mounts
        if (place.startswith("/host/sys") or kind.startswith("cgroup"))
        and "rw" in options.split(",")
    ],
}))
"""


def test_pod_of_devhost_sees_sysfs_without_a_writable_cgroup(release: Release) -> None:
    """Nor where the runtime has no recursive read-only mounts."""
    daemonset = release.cluster.get("daemonset", "devhost", f"--namespace={release.namespace}")
    spec = daemonset["spec"]["template"]["spec"] | {"restartPolicy": "Never"}
    (container,) = spec["containers"]
    for mount in container["volumeMounts"]:
        mount.pop("recursiveReadOnly", None)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        del container[probe]
    container |= {"command": ["/opt/devhost/bin/python3", "-c", LOOK], "args": []}
    metadata = {"name": "look", "namespace": release.namespace}
    release.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        release.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/look")
        access = json.loads(release.kubectl("logs", "look"))
    finally:
        release.kubectl("delete", "pod", "look")
    assert access == {
        "parts": ["block", "bus", "class", "dev", "devices"],
        "links": True,
        "writable": [],
    }


def test_pod_of_devhost_with_a_hundred_resources_stays_below_its_memory(
    cluster: Cluster, pods: Pods
) -> None:
    release = Release(cluster, max(PACKAGES), "hundred")
    many = {f"e2e.test/many-{number}": 4 for number in range(100)}
    resources = [{"name": name, "sources": [{"static": 4}]} for name in many]
    try:
        release.install({"image": VALUES["image"]} | config(*resources))
        release.wait(many)
        pods.run(pod("holder", dict.fromkeys(list(many)[:20], 1)))
        cluster.restart("kubelet")
        cluster.until("the restart is noticed", lambda: release.noticed(1))
        release.wait(many)
        peak, limit = memory(release)
        assert container(release.pod())["restartCount"] == 0
        assert peak < limit
    finally:
        release.uninstall()


def memory(release: Release) -> tuple[int, int]:
    """Return the peak and the limit of devhost's memory in bytes, from its cgroup."""
    (cgroup,) = release.cluster.cgroup("memory").rglob(container_id(release.pod()))
    names = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")
    if (cgroup / "memory.peak").exists():
        names = ("memory.peak", "memory.max")
    peak, limit = (int((cgroup / name).read_text()) for name in names)
    return peak, limit
