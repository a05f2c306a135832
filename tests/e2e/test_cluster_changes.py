"""Edits of the configuration while pods hold devices."""

import copy
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import Cluster, CommandError, Json
from tests.e2e.pods import Pods, pod
from tests.e2e.release import COLA, DICE, OFFERED, SLOT, VALUES, Release, offered, sockets
from tools.helm import PACKAGES

OURS, THEIRS, MORE = "e2e.test/ours", "e2e.test/theirs", "e2e.test/more"
CONFIGMAP = "own-configuration"


def test_edits_by_values_leave_other_resources_alone(release: Release, pods: Pods) -> None:
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


@pytest.fixture
def owned(cluster: Cluster, pods: Pods) -> Iterator[Release]:
    """A second release, with `existingConfigMap`."""
    release = Release(cluster, max(PACKAGES), "own")
    cluster.kubectl("create", "namespace", release.namespace)
    configure(release, resource(OURS), resource(THEIRS))
    values: Json = {
        "image": VALUES["image"],
        "config": {"existingConfigMap": CONFIGMAP},
    }
    try:
        release.install(values)
        release.wait({OURS: 2, THEIRS: 2})
        yield release
    finally:
        release.uninstall()


def resource(name: str, **more: Any) -> Json:
    return {"name": name, "sources": [{"static": 2}], **more}


def configure(release: Release, *resources: Json) -> None:
    write(release, yaml.safe_dump({"version": "v1", "resources": list(resources)}))


def write(release: Release, text: str) -> None:
    configmap = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIGMAP},
        "data": {"config.yaml": text},
    }
    release.kubectl("apply", "--filename=-", stdin=json.dumps(configmap))


def refused(release: Release, failures: int) -> bool:
    """Whether devhost has refused so many edits, and says what is wrong with the last one."""
    config = release.status()["config"]
    return config["failures"] == failures and bool(config["problems"])


BAD = {
    "not YAML": "version: v1\nresources: [",
    "an unknown key": "version: v1\nresources: [{name: e2e.test/ours, sauces: []}]",
    "more than is allowed": yaml.safe_dump(
        {
            "version": "v1",
            "resources": [resource(OURS), resource(THEIRS, allocate={"mounts": ["/etc"]})],
        }
    ),
}


def test_edits_of_the_configmap(owned: Release, pods: Pods) -> None:
    cluster = owned.cluster
    pods.run(pod("holder", {OURS: 1, THEIRS: 1}))
    before = sockets(cluster)
    container = owned.pod()["status"]["containerStatuses"]

    for failures, text in enumerate(BAD.values(), 1):
        write(owned, text)
        cluster.until("it is refused", partial(refused, owned, failures))
        with pytest.raises(CommandError, match=r"problems:\n.*configuration file"):
            owned.execute("devhost", "status")
        assert sockets(cluster) == before
        assert set(offered(cluster, [OURS, THEIRS]).values()) == {(2, 2)}
    pods.run(pod("meanwhile", {OURS: 1}))

    configure(owned, resource(OURS), resource(THEIRS), resource(MORE))
    owned.wait({OURS: 2, THEIRS: 2, MORE: 2})
    assert before.items() < sockets(cluster).items()

    # A resource that a pod holds drains: the pod keeps its device, and no other gets one.
    configure(owned, resource(OURS))
    cluster.until(
        "the held device alone is listed", lambda: offered(cluster, [THEIRS]) == {THEIRS: (1, 0)}
    )
    pods.delete("holder")
    cluster.until("it is gone", lambda: offered(cluster, [THEIRS]) == {THEIRS: (0, 0)})
    assert owned.pod()["status"]["containerStatuses"] == container
    assert pods.failed() == []
