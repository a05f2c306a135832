"""Kills of the node's programs while pods hold devices."""

from functools import partial

import pytest

from tests.e2e.pods import Pods, container, container_id, kill, pod
from tests.e2e.release import BOOK, COIN, COLA, DICE, DISK, OFFERED, SLOT, Release, sockets

KILLS = 20
ONE_OF_EACH = dict.fromkeys((BOOK, COIN, COLA, DICE, DISK, SLOT), 1)

# The resource of a pod that comes after a kill, by the number of the kill. Each is requested once:
# kubelet counts the devices of an ended pod in its checkpoint until it knows all pods
# (UpdateAllocatedDevices in k8s.io/kubernetes v1.36.3 pkg/kubelet/cm/devicemanager/manager.go).
LATE = {5: COLA, 10: DICE, 15: COIN, 20: SLOT}


@pytest.fixture
def holding(release: Release, pods: Pods) -> dict[str, tuple[str, str, int]]:
    """Two pods that hold devices of all resources."""
    pods.run(pod("holder", ONE_OF_EACH), pod("other", {COLA: 1, SLOT: 1}))
    return pods.containers()


def test_kubelet_killed_twenty_times_has_all_resources_again(
    release: Release, pods: Pods, holding: dict[str, tuple[str, str, int]]
) -> None:
    """Each time all resources are registered again, and no pod fails or restarts."""
    cluster = release.cluster
    devhost = container_id(release.pod())
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


def test_devhost_killed_serves_again(
    release: Release, pods: Pods, holding: dict[str, tuple[str, str, int]]
) -> None:
    before = release.pod()
    kill(release.cluster, before)
    count = container(before)["restartCount"] + 1
    release.cluster.until(
        "devhost is started again", lambda: container(release.pod())["restartCount"] == count
    )
    release.wait()
    assert pods.containers() == holding
    pods.run(pod("late", {COLA: 1, DISK: 1}))
    assert pods.failed() == []
