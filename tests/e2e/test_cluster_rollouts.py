"""Rollouts while pods hold devices."""

import pytest

from tests.e2e import devices
from tests.e2e.pods import CRASHES, Pods, pod
from tests.e2e.release import COLA, DICE, DISK, SLOT, VALUES, Release

STRATEGIES = {"without surge": (0, 1), "with surge": (1, 0)}


@pytest.mark.parametrize(("surge", "unavailable"), STRATEGIES.values(), ids=STRATEGIES)
def test_rollout_with_or_without_surge_harms_no_pod(
    release: Release, pods: Pods, surge: int, unavailable: int
) -> None:
    pods.run(pod("holder", {COLA: 1, DICE: 1, SLOT: 1, DISK: 1}))
    held, before = pods.containers(), release.pod()["metadata"]["uid"]
    update = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    annotations = {"e2e.test/rollout": str(surge)}
    release.install(VALUES | {"updateStrategy": update, "podAnnotations": annotations})
    release.kubectl("rollout", "status", "daemonset/devhost", "--timeout=100s")
    release.wait()
    assert release.pod()["metadata"]["uid"] != before
    assert pods.containers() == held
    pods.run(pod("late", {COLA: 2, DICE: 1, SLOT: 5, DISK: 1}))
    assert pods.failed() == []


def test_profile_that_takes_over_a_node_knows_the_prepared_devices(
    release: Release, pods: Pods
) -> None:
    """A label moves the node to another DaemonSet."""
    cluster = release.cluster
    profile = {
        "name": "lab",
        "nodeSelector": {"e2e.test/profile": "lab"},
        "config": VALUES["config"],
    }
    release.install(VALUES | {"profiles": [profile]})
    release.wait()
    pods.run(pod("prepared", {DISK: 1}, command=CRASHES))
    disk = pods.env("prepared")["DISKS"]

    cluster.kubectl("label", "node", "--all", "e2e.test/profile=lab")
    try:
        cluster.until(
            "the profile's DaemonSet serves",
            lambda: release.pod()["metadata"]["labels"]["app.kubernetes.io/component"] == "lab",
        )
        release.wait()
        pods.execute("prepared", "touch", "/tmp/end")
        pods.wait_restarted("prepared")
        assert devices.steps_run(cluster) == {disk: 1}
        pods.run(pod("second", {DISK: 1}))
        assert pods.env("second")["DISKS"] != disk
    finally:
        cluster.kubectl("label", "node", "--all", "e2e.test/profile-")
