"""Kills of kubelet while pods hold devices."""

from functools import partial

from tests.e2e.pods import Pods, container_id, pod
from tests.e2e.release import BOOK, COIN, COLA, DICE, DISK, OFFERED, SLOT, Release, sockets

KILLS = 20
ONE_OF_EACH = dict.fromkeys((BOOK, COIN, COLA, DICE, DISK, SLOT), 1)

# The resource of a pod that comes after a kill, by the number of the kill. Each is requested once:
# kubelet counts the devices of an ended pod in its checkpoint until it knows all pods
# (UpdateAllocatedDevices in k8s.io/kubernetes v1.36.3 pkg/kubelet/cm/devicemanager/manager.go).
LATE = {5: COLA, 10: DICE, 15: COIN, 20: SLOT}


def test_kubelet_killed_twenty_times_has_all_resources_again(release: Release, pods: Pods) -> None:
    """Each time all resources are registered again, and no pod fails or restarts."""
    cluster = release.cluster
    pods.run(pod("holder", ONE_OF_EACH), pod("other", {COLA: 1, SLOT: 1}))
    devhost, holding = container_id(release.pod()), pods.containers()
    restarts = release.status()["kubelet"]["restarts"]
    for number in range(1, KILLS + 1):
        cluster.restart("kubelet")
        cluster.until("the kill is noticed", partial(release.noticed, restarts + number))
        release.wait()
        if number in LATE:
            pods.run(pod("late", {LATE[number]: 1}))
            pods.delete("late")
        assert pods.failed() == [], f"after kill {number}"
    assert pods.containers() == holding
    assert container_id(release.pod()) == devhost
    assert len(sockets(cluster)) == 1 + len(OFFERED)
