"""Devices by Dynamic Resource Allocation: scheduler, kubelet, containerd and the chart's rights."""

import json
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from devhost.backends.dra.pool import device_name
from tests.e2e import devices
from tests.e2e.cluster import (
    NODE,
    Cluster,
    CommandError,
    Json,
    is_ready,
    names_of,
    without_deleted,
)
from tests.e2e.init import NODE_IP
from tests.e2e.pods import NAMESPACE, Pods, pod
from tests.e2e.release import DEVICES, PYTHON, STATE, VALUES, Release, config, offered, sockets
from tools.helm import PACKAGES

SERIAL: Final = "e2e.test/serial"
CLASS: Final = "serial.e2e.test"
SLICES: Final = "resourceslices.resource.k8s.io"
SLICES_PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
SHARED, VENDOR = "e2e.test/shared", "e2e.test/vendor"
RESOURCE: Final[Json] = {
    "name": SERIAL,
    "backend": "dra",
    "sources": [{"dev": "ttyFAKE(?P<port>[0-9]+)"}],
    "id": "fake-${port}",
    "allocate": {
        "devices": [{"hostPath": "${path}", "containerPath": "/dev/serial${index}"}],
        "env": {"SERIAL_PORTS": "/dev/serial${index}"},
    },
}
SERIALS: Final[Json] = {
    "image": VALUES["image"],
    "cdi": {"enabled": True},
    "dra": {"enabled": True},
    **config(RESOURCE),
    # The cluster has no proxy for its services.
    "extraArgs": [f"--api-server=https://{NODE_IP}:6443"],
    "validation": {"enabled": False},  # it would wait for a node
}


@pytest.fixture(scope="module")
def installed_dra(cluster: Cluster, installed: Release) -> Iterator[Release]:
    """A release with the driver `devhost`, the only one on the node."""
    installed.uninstall()
    release = Release(cluster, max(PACKAGES), "dra")
    yield release
    # Devices of claims that are left would be held for good.
    cluster.until("nothing is prepared", lambda: not records(cluster))
    release.uninstall()


@pytest.fixture
def serials(installed_dra: Release, pods: Pods) -> Release:
    """Four serial adapters, all free."""
    cluster = installed_dra.cluster
    devices.plug_all(cluster)
    installed_dra.install(SERIALS)
    expected = [f"fake-{name.removeprefix('ttyFAKE')}" for name in devices.SERIALS]
    cluster.until("the devices are published", lambda: published(cluster) == expected)
    cluster.until("nothing is prepared", lambda: not records(cluster) and installed_dra.well())
    return installed_dra


def offering(resource: Json) -> Json:
    """Return the values by which devhost offers a resource alone."""
    return SERIALS | config(resource | {"backend": "dra"})


# ── the state of cluster, node and pods ──


def published(cluster: Cluster) -> list[str]:
    """Return the names of the devices in all slices but the tainted ones."""
    return sorted(
        device["name"]
        for entry in cluster.items("resourceslices")
        for device in entry["spec"].get("devices", ())
        if not device.get("taints")
    )


def records(cluster: Cluster) -> list[Json]:
    """Return the records of claims in the state of the node."""
    return [json.loads(path.read_text()) for path in cluster.host(f"{STATE}/claims").glob("*.json")]


def nodes(pods: Pods, name: str) -> list[str]:
    """Return the numbers of the adapters in a pod."""
    return pods.execute(name, "sh", "-c", "stat -c %t:%T /dev/serial*").split()


def serial_pods(*names: str, count: int = 2) -> list[Json]:
    return [pod(name, {SERIAL: count}) for name in names]


# ── pods ──


def test_pod_that_asks_by_name_gets_its_devices(serials: Release, pods: Pods) -> None:
    pods.run(*serial_pods("reader"))
    shown = pods.execute("reader", "sh", "-c", "ls /dev/serial*; echo $SERIAL_PORTS")
    assert shown.split() == ["/dev/serial0", "/dev/serial1", "/dev/serial0,/dev/serial1"]

    def held() -> list[str]:
        (resource,) = serials.status()["resources"]
        return [name for names in resource["holders"].values() for name in names]

    serials.cluster.until("the pod is a holder", lambda: held() == [f"{NAMESPACE}/reader"] * 2)


@pytest.fixture
def beside_bare_devices(serials: Release) -> Iterator[Release]:
    """Devices as of a driver of another version, for all nodes; the scheduler tries them first."""
    bare = [
        {"name": "bare"},
        {"name": "typed", "attributes": {"resource": {"int": 1}, "port": {"bool": True}}},
    ]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "devhost", "allNodes": True, "pool": pool, "devices": bare}
    serials.cluster.apply(slice_of("bare", spec))
    yield serials
    serials.cluster.kubectl("delete", "resourceslice", "bare")


def third_port(cluster: Cluster, name: str) -> Json:
    """Return a pod whose claim selects an adapter by its port."""
    selector = {"cel": {"expression": 'device.attributes["devhost"].?port.orValue("") == "3"'}}
    exactly = {"deviceClassName": CLASS, "selectors": [selector]}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "third", "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [{"name": "port", "exactly": exactly}]}}},
    }
    cluster.apply(template)
    chooser = pod(name, {})
    chooser["spec"]["resourceClaims"] = [{"name": "port", "resourceClaimTemplateName": "third"}]
    chooser["spec"]["containers"][0]["resources"] = {"claims": [{"name": "port"}]}
    return chooser


def test_pods_choose_devices_beside_those_without_the_attribute(
    beside_bare_devices: Release, pods: Pods
) -> None:
    pods.run(third_port(beside_bare_devices.cluster, "chooser"))
    major, minor = devices.SERIALS["ttyFAKE3"]
    assert nodes(pods, "chooser") == [f"{major:x}:{minor:x}"]
    assert pods.env("chooser")["SERIAL_PORTS"] == "/dev/serial0"
    pods.run(*serial_pods("others", count=len(devices.SERIALS) - 1))


def test_pod_that_lost_its_device_is_replaced_and_gets_it_when_it_is_back(
    serials: Release, pods: Pods
) -> None:
    """The device has another number then. Kubernetes 1.36 evicts no pod that asks by name."""
    cluster = serials.cluster
    template = third_port(cluster, "meter")
    labels = {"app": "meter"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
    }
    metadata = {"name": "meter", "namespace": NAMESPACE}

    def meters() -> list[Json]:
        """Return the pods of the deployment that are not being deleted, if there is one."""
        return without_deleted(
            cluster.items("pods", f"--namespace={NAMESPACE}", "--selector=app=meter")
        )

    def ready() -> list[str]:
        return names_of(filter(is_ready, meters()))

    serials.install(offering(RESOURCE | {"evict": True, "evictAfter": "3s"}))
    cluster.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    )
    try:
        cluster.until("the pod runs", ready)
        (before,) = ready()
        cluster.until(
            "its device is healthy", lambda: [*pods.health(before).values()] == ["Healthy"]
        )
        pods.run(*serial_pods("reader", count=3))  # the others
        for name in ("ttyFAKE2", "ttyFAKE3"):
            cluster.host(f"/dev/{name}").unlink()
        cluster.until("it is replaced", lambda: meters() and before not in names_of(meters()))
        assert not ready()
        os.mknod(cluster.host("/dev/ttyFAKE3"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        cluster.until("it runs again", ready)
        (replacement,) = ready()
        assert nodes(pods, replacement) == ["1:3"]
        assert pods.get("reader")["status"]["phase"] == "Running"
    finally:
        cluster.kubectl("delete", "deployment", "meter", f"--namespace={NAMESPACE}")
        cluster.until(
            "its pods have gone",
            lambda: not cluster.items("pods", f"--namespace={NAMESPACE}", "--selector=app=meter"),
        )
        cluster.host("/dev/ttyFAKE3").unlink(missing_ok=True)
        devices.plug_all(cluster)


def test_pods_share_one_device(installed_dra: Release, pods: Pods) -> None:
    cluster, source = installed_dra.cluster, {"dev": "ttyFAKE0"}
    devices.plug_all(cluster)
    shared = {"name": SHARED, "sources": [source], "replicas": 110, "maxPerContainer": 1}
    installed_dra.install(offering(shared))
    name = device_name("ttyFAKE0")
    cluster.until("the device is published", lambda: published(cluster) == [name])
    before = cluster.items("resourceslices")
    pods.run(*(pod(name, {SHARED: 1}) for name in ("first", "second")))
    for name in ("first", "second"):
        assert pods.execute(name, "ls", "/dev/ttyFAKE0")
    claims = cluster.items("resourceclaims", f"--namespace={NAMESPACE}")
    results = [
        result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert len({result["shareID"] for result in results}) == len(results) == 2

    def holders() -> Json:
        (resource,) = installed_dra.status()["resources"]
        assert resource["warnings"] == []
        return dict(resource["holders"])

    cluster.until("both pods are holders", lambda: len(holders()) == 2)
    assert sorted(holders()) == ["ttyFAKE0::0", "ttyFAKE0::1"]
    assert cluster.items("resourceslices") == before, "the API server keeps what is written"


@pytest.mark.parametrize("backend", ["devicePlugin", "dra"])
def test_container_gets_what_a_vendor_describes(
    installed_dra: Release, pods: Pods, backend: str
) -> None:
    """A node, a mount and a variable by the vendor's CDI name, from a spec that comes later."""
    cluster, book = installed_dra.cluster, f"{DEVICES}/books/dune"
    devices.plug_all(cluster)
    resource = {"name": VENDOR, "backend": backend, "sources": [{"cdi": "vendor.test/device"}]}
    config = {"version": "v1", "resources": [resource]}
    installed_dra.install(SERIALS | {"config": config, "allow": {"cdi": ["vendor.test/device=*"]}})
    edits = {
        "deviceNodes": [{"path": "/dev/vendor0", "hostPath": "/dev/dice0"}],
        "env": ["VENDOR=yes"],
        "mounts": [{"hostPath": book, "containerPath": "/book", "options": ["ro", "bind"]}],
    }
    device = {"name": "one", "containerEdits": edits}
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.test/device", "devices": [device]}
    file = cluster.host("/etc/cdi/vendor.json")
    file.write_text(json.dumps(spec))
    if backend == "dra":
        cluster.until("the device is published", lambda: published(cluster) == ["one"])
    else:
        installed_dra.wait({VENDOR: 1})
    pods.run(pod("vendor", {VENDOR: 1}))
    assert pods.env("vendor")["VENDOR"] == "yes"
    assert pods.execute("vendor", "stat", "-c", "%t:%T", "/dev/vendor0") == "1:8\n"
    assert pods.execute("vendor", "cat", "/book") == "dune\n"
    pods.delete("vendor")
    file.unlink()


# ── two releases ──


# Before the switches: where a device plugin with PreStart has served a resource, kubelet starts no pod
# that has its devices by DRA for minutes (kubernetes#141426).
def test_second_release_publishes_when_the_first_has_gone(serials: Release, pods: Pods) -> None:
    cluster = serials.cluster
    second = Release(cluster, max(PACKAGES), "second")
    reason = "another instance of devhost serves it by DRA"

    def waits() -> bool:
        (resource,) = second.status()["resources"]
        return (resource["state"], resource["reason"]) == ("Waiting", reason)

    def is_published() -> bool:
        drivers = [entry["spec"]["driver"] for entry in cluster.items("resourceslices")]
        return "second" in drivers

    try:
        classes = {"create": False}  # there are those of the first
        driver = {"enabled": True, "driver": "second", "deviceClasses": classes}
        second.install(SERIALS | {"dra": driver})
        cluster.until("the second one waits", waits)
        pods.run(*serial_pods("reader"))
        assert not is_published()
        pods.delete("reader")
        serials.uninstall()
        cluster.until("the second one publishes", is_published)
    finally:
        second.uninstall()
        # By kubelet, some time after the driver has gone.
        cluster.until("its slices are gone", lambda: not is_published())


# ── from one backend to the other ──


@pytest.mark.parametrize(
    "steps", [(), ({"run": [PYTHON, "-c", ""]},)], ids=["without_steps", "with_steps"]
)
def test_node_goes_to_dra_and_back_while_pods_hold(
    installed_dra: Release, pods: Pods, steps: Sequence[Json]
) -> None:
    cluster = installed_dra.cluster
    devices.plug_all(cluster)

    def install(backend: str) -> None:
        resource = RESOURCE | {"backend": backend, "preStart": [*steps]}
        installed_dra.install(SERIALS | {"allow": {"exec": True}} | config(resource))

    def waits_for(reason: str) -> None:
        def waits() -> bool:
            (resource,) = installed_dra.status()["resources"]
            return bool(resource["reason"] == reason)

        cluster.until(reason, waits)

    def wait_for_plugin() -> None:
        count = len(devices.SERIALS)
        everything = {SERIAL: (count, count)}
        cluster.until("all is offered", lambda: offered(cluster, [SERIAL]) == everything)
        assert not published(cluster)

    def run_and_restart_kubelet(name: str) -> None:
        """Run a pod, restart kubelet, which admits all pods again and ends none, and run another."""
        pods.run(*serial_pods(name, count=1))
        running = pods.containers()
        cluster.restart("kubelet")
        cluster.until("devhost is registered", installed_dra.well)
        pods.run(*serial_pods(f"{name}-later", count=1))
        assert running.items() < pods.containers().items()

    before = sockets(cluster)
    install("devicePlugin")
    if steps:  # it registers again: meanwhile kubelet admits no pod
        cluster.until("it has registered with the steps", lambda: sockets(cluster) != before)
        cluster.until("devhost is registered", installed_dra.well)
    wait_for_plugin()
    run_and_restart_kubelet("plugin")
    assert not records(cluster)

    install("dra")
    pods.delete("plugin-later")
    waits_for(f"switching to DRA; held by {NAMESPACE}/plugin")
    assert not published(cluster)
    pods.delete("plugin")
    cluster.until("the devices are published", lambda: len(published(cluster)) == 4)
    # Sooner than in the five minutes in which kubelet remembers the steps of a device plugin.
    run_and_restart_kubelet("claim")
    assert len(records(cluster)) == 2

    install("devicePlugin")
    pods.delete("claim-later")
    waits_for(f"switching to the device plugin; held by {NAMESPACE}/claim")
    assert offered(cluster, [SERIAL]) == {SERIAL: (0, 0)}
    pods.delete("claim")
    wait_for_plugin()
    run_and_restart_kubelet("again")
    assert not records(cluster)


# ── rights ──


@pytest.mark.parametrize(
    ("verb", "kind", "may"),
    [
        ("get", "resourceclaims.resource.k8s.io", "yes"),
        ("list", "resourceclaims.resource.k8s.io", "no"),
        ("get", "nodes", "yes"),
        ("list", "nodes", "no"),
        ("get", "pods", "no"),
        ("get", "secrets", "no"),
        *(("list", SLICES, "yes"), ("watch", SLICES, "yes")),
        *((verb, SLICES, "no") for verb in ("get", "patch", "deletecollection")),
    ],
)
def test_service_account_may_do_what_it_needs_alone(
    serials: Release, verb: str, kind: str, may: str
) -> None:
    account = f"--as=system:serviceaccount:{serials.namespace}:devhost"
    command = f"kubectl auth can-i {verb} {kind} --all-namespaces {account} || true"
    assert serials.cluster.command("sh", "-c", command).strip() == may


TAKEN_NODE: Final = "node-2"  # a node whose pod of devhost is taken over
OF_NODE, OF_DRIVER, OF_POOL, OF_NAME = (
    f"devhost may only {allowed}"
    for allowed in (
        "write the ResourceSlices of its own node",
        "write the ResourceSlices of its own driver",
        "write the pools of its own node",
        "create ResourceSlices with the name of its own node",
    )
)
TAINT: Final = {"key": "devhost/missing", "effect": "NoExecute"}


def slice_of(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": spec,
    }


def taken_slice(
    name: str = f"00000-0123456789-{TAKEN_NODE}", pool_node: str = TAKEN_NODE, **fields: Any
) -> Json:
    """Return a slice of the node that is taken over, with other fields."""
    pool = {"name": f"{pool_node}/{SERIAL}", "generation": 10**9, "resourceSliceCount": 1}
    spec = {
        "driver": "devhost",
        "nodeName": TAKEN_NODE,
        "pool": pool,
        "devices": [{"name": "fake-0"}],
        **fields,
    }
    return slice_of(name, {field: value for field, value in spec.items() if value is not None})


class TakenNode:
    """Sends requests with the token of a node; the API server keeps none of their content."""

    def __init__(self, release: Release) -> None:
        self._cluster = release.cluster
        bait = pod("bait", {})
        bait["metadata"]["namespace"] = release.namespace
        bait["spec"] |= {"nodeName": TAKEN_NODE, "serviceAccountName": "devhost"}
        self._cluster.apply(bait)
        bound = ("--bound-object-kind=Pod", "--bound-object-name=bait")
        self._token = release.kubectl("create", "token", "devhost", *bound).strip()

    def refusal(self, verb: str, content: Json) -> str:
        """Return the policy's sentence that forbids a write, another error, or an empty text."""
        path = SLICES_PATH if verb == "create" else f"{SLICES_PATH}/{content['metadata']['name']}"
        flags = [f"--raw={path}?dryRun=All", f"--token={self._token}"]
        flags += [] if verb == "delete" else ["--filename=-"]
        try:
            self._cluster.kubectl(verb, *flags, stdin=json.dumps(content))
        except CommandError as error:
            reason = str(error).partition("(Forbidden): ")[2]
            return reason.rpartition("denied request: ")[2].strip() or str(error)
        return ""


@pytest.fixture(scope="module")
def taken_node(installed_dra: Release) -> Iterator[TakenNode]:
    """A node whose token is in other hands."""
    installed_dra.install(SERIALS)
    yield TakenNode(installed_dra)
    installed_dra.kubectl("delete", "pod", "bait", "--force")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(taken_slice(), "", id="own"),
        pytest.param(taken_slice(pool_node=NODE), OF_POOL, id="pool"),
        pytest.param(taken_slice(pool_node=f"{TAKEN_NODE}1"), OF_POOL, id="pool_of_longer_name"),
        pytest.param(taken_slice(nodeName=NODE, pool_node=NODE), OF_NODE, id="node"),
        pytest.param(taken_slice(nodeName=NODE), OF_NODE, id="node_with_own_pool"),
        pytest.param(taken_slice(nodeName=None, allNodes=True), OF_NODE, id="all_nodes"),
        pytest.param(taken_slice(driver="other"), OF_DRIVER, id="driver"),
        pytest.param(taken_slice(f"00000-0123456789-{NODE}"), OF_NAME, id="name"),
        pytest.param(
            taken_slice(f"00000-0123456789-a-{TAKEN_NODE}"), OF_NAME, id="name_of_longer_name"
        ),
    ],
)
def test_node_creates_slices_of_its_own_alone(
    taken_node: TakenNode, content: Json, sentence: str
) -> None:
    assert taken_node.refusal("create", content) == sentence


@pytest.mark.parametrize("verb", ["replace", "delete"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(taken_slice(), "", id="own"),
        pytest.param(taken_slice(nodeName="node-3"), OF_NODE, id="node"),
        pytest.param(taken_slice(driver="other"), OF_DRIVER, id="driver"),
        pytest.param(taken_slice(pool_node="node-3"), OF_POOL, id="pool"),
    ],
)
def test_node_changes_slices_of_its_own_alone(
    taken_node: TakenNode, cluster: Cluster, verb: str, content: Json, sentence: str
) -> None:
    name = content["metadata"]["name"]
    cluster.apply(content)
    try:
        changed = cluster.get("resourceslice", name)
        changed["spec"]["devices"][0]["taints"] = [TAINT]
        assert taken_node.refusal(verb, changed) == sentence
    finally:
        cluster.kubectl("delete", "resourceslice", name)
