"""Edits of the configuration while pods hold devices."""

from tests.e2e.pods import Pods, container, pod
from tests.e2e.release import COLA, DICE, OFFERED, SLOT, VALUES, Release, config, offered, sockets

MORE = "e2e.test/more"


def test_edit_by_values_leaves_other_resources_alone(release: Release, pods: Pods) -> None:
    pods.run(pod("holder", {COLA: 1, DICE: 1, SLOT: 1}))
    before, process, since = sockets(release.cluster), container(release.pod()), starts(release)

    cola, *rest = VALUES["config"]["resources"]
    edited = cola | {"allocate": {"env": {"DRINKS": "${id}"}}}
    release.install(VALUES | config(edited, *rest, {"name": MORE, "sources": [{"static": 4}]}))
    release.wait(OFFERED | {MORE: 4})

    after = sockets(release.cluster)
    assert before.items() < after.items(), "a resource has registered again"
    assert len(after) == len(before) + 1
    assert container(release.pod()) == process
    assert since.items() < starts(release).items()
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


def starts(release: Release) -> dict[str, str]:
    """Return since when each resource is registered."""
    return {resource["name"]: resource["since"] for resource in release.status()["resources"]}
