"""Edits of the configuration while pods hold devices."""

import copy

from tests.e2e.pods import Pods, pod
from tests.e2e.release import COLA, DICE, OFFERED, SLOT, VALUES, Release, offered, sockets

MORE = "e2e.test/more"


def test_edit_by_values_leaves_other_resources_alone(release: Release, pods: Pods) -> None:
    pods.run(pod("holder", {COLA: 1, DICE: 1, SLOT: 1}))
    before, process = sockets(release.cluster), release.pod()["status"]["containerStatuses"]
    since = {one["name"]: one["since"] for one in release.status()["resources"]}

    edited = copy.deepcopy(VALUES)
    cola, *_ = edited["config"]["resources"]
    cola["allocate"]["env"] = {"DRINKS": "${id}"}
    edited["config"]["resources"].append({"name": MORE, "sources": [{"static": 4}]})
    release.install(edited)
    release.wait(OFFERED | {MORE: 4})

    after = sockets(release.cluster)
    assert before.items() < after.items(), "a resource has registered again"
    assert len(after) == len(before) + 1
    assert release.pod()["status"]["containerStatuses"] == process
    now = {one["name"]: one["since"] for one in release.status()["resources"]}
    assert since.items() < now.items()
    pods.run(pod("second", {COLA: 1}))
    assert "DRINKS" in pods.env("second")
    assert "COLAS" in pods.env("holder")

    # What is removed leaves the node, and the others stay again.
    release.install(VALUES)
    release.cluster.until(
        "the new resource is gone", lambda: offered(release.cluster, [MORE]) == {MORE: (0, 0)}
    )
    release.cluster.until("its socket is gone", lambda: sockets(release.cluster) == before)
    assert pods.failed() == []
