"""What devhost's pod uses of the node, and what it can access there."""

import json
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.init import SYSCTLS
from tests.e2e.pods import Pods, pod
from tests.e2e.release import VALUES, Release
from tools.helm import PACKAGES

# Prints what the pod sees of the host's sysfs, whether the links in it lead anywhere, and what is
# mounted writable there, or is a cgroup anywhere.
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
    """Not even where the runtime knows no recursive read-only mounts."""
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
        found = json.loads(release.kubectl("logs", "look"))
    finally:
        release.kubectl("delete", "pod", "look")
    assert found == {
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
        release.install(
            {"image": VALUES["image"], "config": {"version": "v1", "resources": resources}}
        )
        release.wait(many)
        pods.run(pod("holder", dict.fromkeys(list(many)[:20], 1)))
        cluster.kill("kubelet")
        cluster.run("kubelet")
        cluster.until("it is noticed", lambda: release.noticed(1))
        release.wait(many)
        peak, limit = memory(release)
        assert release.pod()["status"]["containerStatuses"][0]["restartCount"] == 0
        assert peak < limit
    finally:
        release.uninstall()


def memory(release: Release) -> tuple[int, int]:
    """Return the most bytes that devhost had, and its limit, from its cgroup."""
    (status,) = release.pod()["status"]["containerStatuses"]
    container = status["containerID"].removeprefix("containerd://")
    (cgroup,) = release.cluster.cgroup("memory").rglob(container)
    names = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")
    if (cgroup / "memory.peak").exists():
        names = ("memory.peak", "memory.max")
    peak, limit = (int((cgroup / name).read_text()) for name in names)
    return peak, limit


def test_machine_of_the_cluster_keeps_its_settings(cluster: Cluster) -> None:
    """The kubelet writes sysctls that belong to no namespace: here, to files in their place."""
    # The file in its place is what the kubelet wants, whether the machine has that already or not.
    assert int(cluster.host("/proc/sys/vm/overcommit_memory").read_text()) == 1
    assert {name: Path("/proc/sys", name).read_text() for name in SYSCTLS} == cluster.sysctls
