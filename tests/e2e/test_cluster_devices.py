"""Unplugging and replugging devices."""

from tests.e2e import devices
from tests.e2e.pods import Pods, pod
from tests.e2e.release import COLA, DEVICES, DICE, Release, offered


def test_devices_unplugged_and_plugged_in_show_in_the_status_of_the_pod_and_are_offered_again(
    release: Release, pods: Pods
) -> None:
    """A file, and device nodes."""
    cluster = release.cluster
    pods.run(pod("holder", {COLA: 1, DICE: 1}))
    held = pods.containers()
    name = pods.env("holder")["COLAS"]
    cluster.host(f"{DEVICES}/colas/{name}").unlink()
    for node in ("dice0", "dice1"):
        cluster.host(f"/dev/{node}").unlink()
    unplugged = {COLA: (3, 2), DICE: (2, 0)}
    cluster.until("the devices are unhealthy", lambda: offered(cluster, unplugged) == unplugged)
    cluster.until("the pod's status says so", lambda: pods.health("holder")[name] == "Unhealthy")
    devices.plug_file(cluster, f"{DEVICES}/colas/{name}")
    for node in ("dice0", "dice1"):
        devices.plug_node(cluster, node)
    release.wait()
    cluster.until("the pod's status says so", lambda: pods.health("holder")[name] == "Healthy")
    pods.run(pod("second", {DICE: 1}))
    assert held.items() < pods.containers().items()
