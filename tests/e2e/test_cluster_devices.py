"""Unplugging and replugging devices."""

from tests.e2e import devices
from tests.e2e.pods import Pods, pod
from tests.e2e.release import COLA, DEVICES, DICE, Release, offered


def test_a_file_is_unplugged_and_plugged_in(release: Release, pods: Pods) -> None:
    cluster = release.cluster
    pods.run(pod("holder", {COLA: 1}))
    held = pods.containers()
    name = pods.env("holder")["COLAS"]
    cluster.host(f"{DEVICES}/colas/{name}").unlink()
    cluster.until("it is unhealthy", lambda: offered(cluster, [COLA]) == {COLA: (3, 2)})
    cluster.until("the pod's status says so", lambda: health(pods, "holder") == {name: "Unhealthy"})
    devices.plug_file(cluster, f"{DEVICES}/colas/{name}")
    release.wait()
    cluster.until("the pod's status says so", lambda: health(pods, "holder") == {name: "Healthy"})
    assert pods.containers() == held


def test_a_node_is_unplugged_and_plugged_in(release: Release, pods: Pods) -> None:
    cluster = release.cluster
    pods.run(pod("holder", {DICE: 1}))
    held = pods.containers()
    for name in ("dice0", "dice1"):
        cluster.host(f"/dev/{name}").unlink()
    cluster.until("both are unhealthy", lambda: offered(cluster, [DICE]) == {DICE: (2, 0)})
    for name in ("dice0", "dice1"):
        devices.plug_node(cluster, name)
    release.wait()
    pods.run(pod("second", {DICE: 1}))
    containers = pods.containers()
    del containers["second"]
    assert containers == held


def test_a_directory_disappears_and_comes_back(release: Release) -> None:
    cluster = release.cluster
    colas = cluster.host(f"{DEVICES}/colas")
    colas.rename(colas.with_name("away"))
    cluster.until("all are unhealthy", lambda: offered(cluster, [COLA]) == {COLA: (3, 0)})
    colas.with_name("away").rename(colas)
    release.wait()


def health(pods: Pods, name: str) -> dict[str, str]:
    """Return what a pod's status says of its devices."""
    (container,) = pods.get(name)["status"]["containerStatuses"]
    return {
        resource["resourceID"]: resource["health"]
        for status in container.get("allocatedResourcesStatus", [])
        for resource in status["resources"]
    }
