"""Behaviour that only real device managers have here: versions, init containers, NUMA and its hints.

Much of it is the kubelet's own behaviour, which a plugin that asks for it must know.
"""

from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pr
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.backends.podresources import PodResources
from tests.support.hosting import kubelet_of
from tests.support.realkubelet import REAL_KUBELETS, Hint, RealKubelet
from tests.support.scripted_plugin import COLA, TEA, Node, healthy, listed, lister, nothing
from tests.support.waiting import until_said

PREFERRING = pb.DevicePluginOptions(get_preferred_allocation_available=True)


@pytest.fixture(params=REAL_KUBELETS)
def kubelet(request: pytest.FixtureRequest, directory: Path) -> RealKubelet:
    """A kubelet with two NUMA nodes."""
    kubelet = kubelet_of(request.param, directory, numa_nodes=2)
    assert isinstance(kubelet, RealKubelet)
    return kubelet


def on_nodes(**nodes: list[int]) -> list[pb.Device]:
    """Devices that are attached to NUMA nodes."""
    return [
        pb.Device(
            ID=device,
            health="Healthy",
            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in of]),
        )
        for device, of in nodes.items()
    ]


async def test_pod_resources_since_1_34_tell_of_one_pod(node: Node, kubelet: RealKubelet) -> None:
    await node.registered(*healthy("a"))
    await kubelet.admit("one", {"app": {COLA: 1}})
    request = pr.GetPodResourcesRequest(pod_name="one", pod_namespace="default")
    async with lister(kubelet) as stub:
        if kubelet.version < (1, 34):
            with pytest.raises(grpc.aio.AioRpcError, match="Get method disabled"):
                await stub.Get(request)
            return
        (device,) = (await stub.Get(request)).pod_resources.containers[0].devices
        assert list(device.device_ids) == ["a"]
        request.pod_namespace = "other"
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await stub.Get(request)


async def test_sidecars_are_listed_init_containers_not(node: Node, kubelet: RealKubelet) -> None:
    await node.registered(*healthy("a", "b", "c"))
    containers = {"app": {COLA: 1}, "setup": {COLA: 2}, "proxy": {COLA: 1}}
    answers = await kubelet.admit("one", containers, init=("setup",), sidecars=("proxy",))
    assert list(answers) == ["setup", "proxy", "app"]
    ids = {name: answer["deviceIds"][COLA] for name, answer in answers.items()}
    # What an init container has had goes to those after it, and a sidecar keeps its own.
    assert sorted([*ids["app"], *ids["proxy"]]) == ids["setup"]
    held = {name: [(COLA, token) for token in ids[name]] for name in ("proxy", "app")}
    assert await listed(kubelet) == {"one": held}


async def test_pod_ended_during_allocate_frees_a_device_twice(
    node: Node, kubelet: RealKubelet
) -> None:
    """The kubelet's own bug: to clear up after that pod forgets what is just being allocated.

    Any List clears up, as `free` does here. So a plugin must bear to be asked for a device that
    another pod still has.
    """
    plugin = await node.registered(*healthy("a", "b"))
    await kubelet.admit("ends", {"x": {COLA: 1}})

    async def on_allocate() -> None:
        plugin.on_allocate = nothing
        await kubelet.free("ends")

    plugin.on_allocate = on_allocate
    stays = await kubelet.admit("stays", {"x": {COLA: 1}})
    new = await kubelet.admit("new", {"x": {COLA: 2}})
    assert new["x"]["deviceIds"][COLA] == ["a", "b"]
    assert await listed(kubelet) == {
        "stays": {"x": [(COLA, token) for token in stays["x"]["deviceIds"][COLA]]},
        "new": {"x": [(COLA, "a"), (COLA, "b")]},
    }


async def test_checkpoint_tells_of_devices_of_pods_that_are_not_listed(
    node: Node, kubelet: RealKubelet
) -> None:
    """A kubelet that starts knows by it what pods hold, before it knows the pods."""
    client = PodResources(kubelet.pod_resources, kubelet.plugin_dir)

    async def lists_all() -> bool:
        return await client.covers_checkpoint((await client.list_pods()).held)

    await node.registered(*healthy("a", "b"))
    await until_said(lists_all, bool)  # the checkpoint is written after the capacity is known
    await kubelet.admit("one", {"app": {COLA: 1}})
    assert await lists_all()
    await kubelet.kill()
    await kubelet.start(knows_pods=False)
    await node.registered(*healthy("a", "b"))
    assert not await lists_all()
    await kubelet.restart()
    assert await lists_all()


async def test_list_shows_each_numa_node_of_a_device(node: Node, kubelet: RealKubelet) -> None:
    await node.registered(*on_nodes(a=[0, 1]))
    await kubelet.admit("one", {"x": {COLA: 1}})
    async with lister(kubelet) as stub:
        reply = await stub.List(pr.ListPodResourcesRequest())
    devices = reply.pod_resources[-1].containers[0].devices
    assert sorted(d.topology.nodes[0].ID for d in devices) == [0, 1]
    assert [list(d.device_ids) for d in devices] == [["a"], ["a"]]


async def test_hints_are_the_numa_nodes_that_would_do(node: Node, kubelet: RealKubelet) -> None:
    plugin = await node.registered(*on_nodes(a0=[0], b0=[0], c1=[1]))
    await node.registered(*healthy("o"), resource=TEA)
    either = [Hint((0,), True), Hint((1,), True), Hint((0, 1), False)]
    node_0 = [Hint((0,), True), Hint((0, 1), False)]
    assert await hints(kubelet, 1) == either
    assert await hints(kubelet, 2) == node_0
    assert await hints(kubelet, 3) == [Hint((0, 1), True)]
    assert await hints(kubelet, 4) == []
    aligned = await kubelet.hints("new", {"x": {TEA: 1}, "y": {}})
    assert aligned == {"x": {TEA: None}, "y": {}}
    assert await listed(kubelet) == {}
    assert plugin.allocated == []
    # What is in use no longer counts, unless the pod is the one that has it.
    await kubelet.affinity("one", "x", [0])
    await kubelet.admit("one", {"x": {COLA: 1}})
    assert await hints(kubelet, 2) == [Hint((0, 1), False)]
    assert await kubelet.hints("one", {"x": {COLA: 1}}) == {"x": {COLA: node_0}}


async def hints(kubelet: RealKubelet, n: int) -> list[Hint] | None:
    answer = (await kubelet.hints("new", {"x": {COLA: n}}))["x"][COLA]
    return answer and sorted(answer, key=lambda hint: (len(hint.nodes), hint.nodes))


@pytest.mark.parametrize(
    ("nodes", "size", "calls", "allocated"),
    [
        # More are aligned than needed: the plugin chooses among those.
        ([0], 1, [(["a0", "b0"], [], 1)], ["b0"]),
        ([1], 1, [(["c1", "d1", "e1"], [], 1)], ["e1"]),
        # Just as many: there is no choice.
        ([0], 2, [], ["a0", "b0"]),
        # Fewer: they are taken, and the plugin chooses the rest.
        ([0], 3, [(["a0", "b0", "c1", "d1", "e1"], ["a0", "b0"], 3)], ["a0", "b0", "e1"]),
        # All nodes, and no affinity at all.
        ([0, 1], 1, [(["a0", "b0", "c1", "d1", "e1"], [], 1)], ["e1"]),
        (None, 1, [(["a0", "b0", "c1", "d1", "e1"], [], 1)], ["e1"]),
    ],
)
async def test_affinity_comes_before_preference(
    node: Node,
    kubelet: RealKubelet,
    nodes: Iterable[int] | None,
    size: int,
    calls: list[tuple[list[str], list[str], int]],
    allocated: list[str],
) -> None:
    devices = on_nodes(a0=[0], b0=[0], c1=[1], d1=[1], e1=[1])
    plugin = await node.registered(*devices, options=PREFERRING)
    plugin.prefer = lambda ids, size: ids[::-1][:size]
    if nodes is not None:
        await kubelet.affinity("one", "x", nodes)
    answers = await kubelet.admit("one", {"x": {COLA: size}})
    assert answers["x"]["deviceIds"][COLA] == allocated
    assert plugin.preferred == calls
    assert plugin.allocated == [allocated]
