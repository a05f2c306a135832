"""Installing, upgrading and uninstalling with both Helms."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e import devices
from tests.e2e.cluster import Cluster, CommandError, names_of
from tests.e2e.pods import CRASHES, Pods, pod
from tests.e2e.release import (
    COIN,
    COLA,
    DICE,
    DISK,
    OFFERED,
    STATE,
    VALUES,
    Release,
    config,
    offered,
    sockets,
)
from tools.helm import CHART, PACKAGES

RADIO = "e2e.test/radio"
KINDS = "daemonsets,pods,configmaps,serviceaccounts,secrets"


@pytest.fixture(params=PACKAGES, ids=[f"helm{major}" for major in PACKAGES])
def fresh(cluster: Cluster, bare: None, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The only release on the node, by each Helm."""
    release = Release(cluster, request.param, f"by-helm{request.param}")
    try:
        release.install(VALUES)
        release.wait()
        yield release
    finally:
        release.uninstall()


def test_release_refuses_a_mistake_and_leaves_nothing_offered(fresh: Release, pods: Pods) -> None:
    cluster = fresh.cluster
    assert "Registered" in fresh.execute("devhost", "status")
    pods.run(pod("holder", {COLA: 1, DICE: 1}))

    # A mistake changes nothing.
    before = fresh.kubectl("get", "configmap", "devhost", "--output=jsonpath={.data}")
    wrong = VALUES | config({"name": COLA, "sauces": []})
    with pytest.raises(CommandError, match="sauces"):
        fresh.install(wrong)
    assert fresh.kubectl("get", "configmap", "devhost", "--output=jsonpath={.data}") == before

    # A running pod keeps what it has; the node offers nothing any more.
    running = pods.containers()
    fresh.uninstall()
    cluster.until(
        "nothing is allocatable",
        lambda: {healthy for _, healthy in offered(cluster, OFFERED).values()} == {0},
    )

    def left() -> list[str]:
        return names_of(cluster.items(KINDS, f"--namespace={fresh.namespace}"))

    # The pod's object outlives its container for a moment.
    cluster.until("nothing is left", lambda: left() == ["kube-root-ca.crt", "default"])
    assert [name for name in sockets(cluster) if name != "kubelet.sock"] == []
    assert pods.containers() == running
    assert pods.failed() == []


def test_release_installed_again_goes_on_with_what_the_former_left(
    fresh: Release, pods: Pods
) -> None:
    """State and CDI specs stay on the node, and by them containers of running pods start again."""
    cluster = fresh.cluster
    pods.run(pod("holder", {DISK: 1, COIN: 1}, command=CRASHES))
    disk = pods.env("holder")["DISKS"]
    fresh.uninstall()
    assert list(cluster.host(STATE).iterdir())
    assert list(cluster.host("/run/cdi").iterdir())
    fresh.install(VALUES)
    fresh.wait()
    pods.execute("holder", "touch", "/tmp/end")
    pods.wait_restarted("holder")
    assert pods.execute("holder", "sh", "-c", "ls /dev | grep -c coin") == "1\n"
    assert devices.steps_run(cluster) == {disk: 1}
    pods.run(pod("second", {DISK: 1}))
    assert pods.env("second")["DISKS"] != disk


@pytest.mark.parametrize("major", PACKAGES)
def test_release_that_the_node_would_not_serve_as_a_whole_is_not_installed(
    cluster: Cluster, bare: None, major: int
) -> None:
    release = Release(cluster, major, f"refused-by-helm{major}")
    radio = {"name": RADIO, "sources": [{"usb": "10c4:ea60"}]}
    values = VALUES | config(*VALUES["config"]["resources"], radio)
    text = "raw USB nodes need allow"
    try:
        with pytest.raises(CommandError, match=text):
            release.install(values)
        assert cluster.items("daemonsets", f"--namespace={release.namespace}") == []
        # Flux and Argo CD do not show what the Job has printed.
        assert text in release.kubectl("logs", "job/devhost-validation")
        assert text in release.kubectl("describe", "pods", "--selector=job-name=devhost-validation")
        release.install(values | {"validation": {"enabled": False}})
        release.wait()
    finally:
        release.uninstall()


def test_existing_configuration_is_validated_if_it_is_there(cluster: Cluster, bare: None) -> None:
    release = Release(cluster, max(PACKAGES), "existing")
    values = VALUES | {"config": {"existingConfigMap": "theirs"}}
    cluster.kubectl("create", "namespace", release.namespace)

    def hook() -> str:
        arguments = ("--dry-run=server", "--show-only=templates/validation.yaml", "--values=-")
        return release.helm("template", "devhost", str(CHART), *arguments, stdin=json.dumps(values))

    assert "existingConfigMap: theirs" in hook()
    release.kubectl("create", "configmap", "theirs", "--from-literal=config.yaml=resources: [")
    with pytest.raises(CommandError, match=r"config\.yaml of ConfigMap theirs: .*line 1"):
        hook()
    text = json.dumps(config({"name": RADIO, "sources": [{}]})["config"])
    patch = json.dumps({"data": {"config.yaml": text}})
    release.kubectl("patch", "configmap", "theirs", f"--patch={patch}")
    assert f"name: {RADIO}" in hook()
    try:
        with pytest.raises(CommandError, match=r"config\.resources\[0\]\.sources\[0\]: "):
            release.install(values)
    finally:
        release.uninstall()
