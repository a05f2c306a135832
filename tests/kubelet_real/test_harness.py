"""What the real kubelet's program can do besides allocation: pod-resources and topology.

Much of it is the kubelet's own behaviour, which a plugin that asks for it must know.
"""
# ruff: noqa: N802 - the protocol's names

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pr
from devhost.api.podresources.v1 import podresources_pb2_grpc as pr_grpc
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.standin.kubelet import AdmissionError
from tests.support.hosting import Hosting
from tests.support.realkubelet import REAL_KUBELETS, Hint, RealKubelet

SLOT, OTHER = "example.com/slot", "example.com/other"
CONFIG = f"version: v1\nresources: [{{name: {SLOT}, sources: [static: [a, b, c]]}}]"
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))

Context = grpc.aio.ServicerContext[Any, Any]
# Pod, container, resource and device; a device on two NUMA nodes twice.
Listed = dict[str, dict[str, list[tuple[str, str]]]]


@pytest.fixture(params=REAL_KUBELETS)
async def kubelet(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[RealKubelet]:
    """A running kubelet with pod-resources and two NUMA nodes."""
    socket = directory / "pods" / "kubelet.sock"
    plugins = directory / "plugins"
    async with RealKubelet(request.param, plugins, pod_resources=socket, numa_nodes=2) as running:
        yield running


@asynccontextmanager
async def asking(kubelet: RealKubelet) -> AsyncIterator["pr_grpc.PodResourcesListerAsyncStub"]:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources}", OPTIONS) as channel:
        yield pr_grpc.PodResourcesListerStub(channel)


async def listed(kubelet: RealKubelet) -> Listed:
    async with asking(kubelet) as stub:
        reply = await stub.List(pr.ListPodResourcesRequest(), timeout=60)
    return {
        pod.name: {
            container.name: sorted((d.resource_name, d.device_ids[0]) for d in container.devices)
            for container in pod.containers
        }
        for pod in reply.pod_resources
    }


Hook = Callable[[], Awaitable[None]]


async def nothing() -> None:
    pass


class Plugin(pb_grpc.DevicePluginServicer):
    """A plugin whose devices have NUMA nodes; it records what it is asked."""

    def __init__(self, nodes: dict[str, list[int]]) -> None:
        self.nodes = nodes
        self.options = pb.DevicePluginOptions()
        self.on_allocate: Hook = nothing
        self.on_prefer: Hook = nothing
        self.on_start: Hook = nothing
        self.allocated: list[list[str]] = []
        self.preferred: list[tuple[list[str], list[str], int]] = []

    async def GetDevicePluginOptions(
        self, request: pb.Empty, context: Context
    ) -> pb.DevicePluginOptions:
        return self.options

    async def ListAndWatch(
        self, request: pb.Empty, context: Context
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        devices = []
        for each, nodes in self.nodes.items():
            topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
            devices.append(
                pb.Device(ID=each, health="Healthy", topology=topology if nodes else None)
            )
        yield pb.ListAndWatchResponse(devices=devices)
        await asyncio.Event().wait()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        await self.on_prefer()
        (entry,) = request.container_requests
        available, must = sorted(entry.available_deviceIDs), sorted(entry.must_include_deviceIDs)
        self.preferred.append((available, must, entry.allocation_size))
        ids = [*must, *reversed([each for each in available if each not in must])]
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=ids[: entry.allocation_size])
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        self.allocated.append(sorted(request.container_requests[0].devices_ids))
        await self.on_allocate()
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        await self.on_start()
        return pb.PreStartContainerResponse()


@asynccontextmanager
async def registered(kubelet: RealKubelet, resource: str, plugin: Plugin) -> AsyncIterator[Plugin]:
    """Serve a plugin and register it until the kubelet counts its devices."""
    endpoint = f"{resource.partition('/')[2]}.sock"
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{kubelet.plugin_dir / endpoint}")
    await server.start()
    try:
        socket = f"unix:{kubelet.plugin_dir / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(socket, OPTIONS) as channel:
            request = pb.RegisterRequest(
                version="v1beta1", endpoint=endpoint, resource_name=resource, options=plugin.options
            )
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=60)
        await kubelet.wait(resource, len(plugin.nodes), len(plugin.nodes))
        yield plugin
    finally:
        await server.stop(None)


def held(*ids: str, resource: str = SLOT) -> list[tuple[str, str]]:
    return [(resource, each) for each in ids]


async def test_pod_resources_lists_who_has_what(kubelet: RealKubelet, hosting: Hosting) -> None:
    assert await listed(kubelet) == {}
    hosting.start(CONFIG)
    await kubelet.wait(SLOT, 3, 3)
    answers = await kubelet.admit("one", {"app": {SLOT: 2}, "plain": {}})
    ids = answers["app"]["deviceIds"][SLOT]
    assert await listed(kubelet) == {"one": {"app": held(*ids), "plain": []}}
    async with asking(kubelet) as stub:
        reply = await stub.GetAllocatableResources(pr.AllocatableResourcesRequest())
        assert {tuple(d.device_ids) for d in reply.devices} == {("a",), ("b",), ("c",)}
    await kubelet.free("one")
    assert await listed(kubelet) == {}


async def test_pod_resources_gets_one_pod(kubelet: RealKubelet, hosting: Hosting) -> None:
    hosting.start(CONFIG)
    await kubelet.wait(SLOT, 3, 3)
    answers = await kubelet.admit("one", {"app": {SLOT: 1}})
    request = pr.GetPodResourcesRequest(pod_name="one", pod_namespace="default")
    async with asking(kubelet) as stub:
        if kubelet.version < (1, 34):
            with pytest.raises(grpc.aio.AioRpcError, match="Get method disabled"):
                await stub.Get(request)
            return
        reply = await stub.Get(request)
        (device,) = reply.pod_resources.containers[0].devices
        assert list(device.device_ids) == answers["app"]["deviceIds"][SLOT]
        request.pod_namespace = "other"
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await stub.Get(request)


async def test_sidecars_are_listed_and_ordinary_init_containers_are_not(
    kubelet: RealKubelet, hosting: Hosting
) -> None:
    hosting.start(CONFIG)
    await kubelet.wait(SLOT, 3, 3)
    containers = {"app": {SLOT: 1}, "setup": {SLOT: 2}, "proxy": {SLOT: 1}}
    answers = await kubelet.admit("one", containers, init=("setup",), sidecars=("proxy",))
    assert list(answers) == ["setup", "proxy", "app"]
    ids = {name: answer["deviceIds"][SLOT] for name, answer in answers.items()}
    # What an init container has had goes to those after it, and a sidecar keeps its own.
    assert sorted([*ids["app"], *ids["proxy"]]) == ids["setup"]
    assert await listed(kubelet) == {
        "one": {"proxy": held(*ids["proxy"]), "app": held(*ids["app"])}
    }


async def test_the_socket_dies_with_the_process(kubelet: RealKubelet, hosting: Hosting) -> None:
    hosting.start(CONFIG)
    await kubelet.wait(SLOT, 3, 3)
    answers = await kubelet.admit("one", {"app": {SLOT: 1}})
    before = await listed(kubelet)
    assert before == {"one": {"app": held(*answers["app"]["deviceIds"][SLOT])}}
    assert kubelet.pod_resources is not None
    await kubelet.kill()
    assert kubelet.pod_resources.is_socket()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await listed(kubelet)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await kubelet.start()
    assert await listed(kubelet) == before  # from the checkpoint
    await kubelet.stop()
    assert not kubelet.pod_resources.exists()


async def test_an_active_pod_is_admitted_again(kubelet: RealKubelet) -> None:
    """As by a restarted kubelet: it keeps its devices and the plugin is not asked."""
    plugin = Plugin({"a": [], "b": [], "c": []})
    containers = {"setup": {SLOT: 1}, "app": {SLOT: 2}}
    async with registered(kubelet, SLOT, plugin):
        answers = await kubelet.admit("one", containers, init=("setup",))
        before = await listed(kubelet)
        await kubelet.restart()
    async with registered(kubelet, SLOT, plugin):
        assert await kubelet.admit("one", containers, init=("setup",)) == answers
        assert await listed(kubelet) == before
    assert len(plugin.allocated) == 2


async def test_containers_start_one_by_one(kubelet: RealKubelet) -> None:
    plugin = Plugin({"a": [], "b": []})
    plugin.options.pre_start_required = True
    starts: list[int] = []

    async def on_start() -> None:
        starts.append(len(plugin.allocated))

    plugin.on_start = on_start
    async with registered(kubelet, SLOT, plugin):
        assert (
            await kubelet.admit("one", {"x": {SLOT: 1}, "y": {SLOT: 1}}, init=("x",), start=False)
            == {}
        )
        allocations = len(plugin.allocated)
        assert starts == []
        first = await kubelet.start_container("one", "x")
        assert starts == [allocations]
        second = await kubelet.start_container("one", "y")
        assert starts == [allocations, allocations]
        assert first["deviceIds"] == second["deviceIds"]


async def test_a_plugin_may_list_while_it_is_asked(kubelet: RealKubelet) -> None:
    """Nothing is held during a call of a plugin; what is being allocated is not listed yet."""
    plugin, other = Plugin({"a": [], "b": []}), Plugin({"o": []})
    plugin.options.pre_start_required = True
    plugin.options.get_preferred_allocation_available = True
    seen: list[tuple[str, Listed]] = []

    def look(when: str) -> Hook:
        async def hook() -> None:
            seen.append((when, await listed(kubelet)))

        return hook

    plugin.on_prefer, plugin.on_allocate = look("prefer"), look("allocate")
    plugin.on_start = look("start")
    other.on_allocate = look("other")
    async with registered(kubelet, SLOT, plugin), registered(kubelet, OTHER, other):
        answers = await kubelet.admit("one", {"x": {SLOT: 1}, "y": {SLOT: 1}})
        x, y = (held(*answers[name]["deviceIds"][SLOT]) for name in "xy")
        assert seen == [
            ("prefer", {"one": {"x": [], "y": []}}),
            ("allocate", {"one": {"x": [], "y": []}}),
            ("prefer", {"one": {"x": x, "y": []}}),
            ("allocate", {"one": {"x": x, "y": []}}),
            ("start", {"one": {"x": x, "y": y}}),
            ("start", {"one": {"x": x, "y": y}}),
        ]
        await kubelet.free("one")
        seen.clear()
        # The resources of one container come one after the other, in any order.
        answers = await kubelet.admit("two", {"z": {SLOT: 1, OTHER: 1}}, start=False)
        both = await listed(kubelet)
        first, last = [entry for entry in seen if entry[0] != "prefer"]
        assert first[1] == {"two": {"z": []}}
        of_first = OTHER if first[0] == "other" else SLOT
        assert last[1] == {"two": {"z": [d for d in both["two"]["z"] if d[0] == of_first]}}


async def test_a_refused_pod_is_not_listed(kubelet: RealKubelet) -> None:
    plugin = Plugin({"a": [], "b": []})
    async with registered(kubelet, SLOT, plugin):
        with pytest.raises(AdmissionError):
            await kubelet.admit("one", {"x": {SLOT: 1}, "y": {SLOT: 2}})
        assert await listed(kubelet) == {}
        await kubelet.admit("two", {"x": {SLOT: 2}})


async def test_a_pod_that_ends_during_allocate_makes_a_device_free_twice(
    kubelet: RealKubelet,
) -> None:
    """The kubelet's own bug: to clear up after that pod forgets what is just being allocated.

    Any List clears up, as `free` does here. So a plugin must bear to be asked for a device that
    another pod still has.
    """
    plugin = Plugin({"a": [], "b": []})
    async with registered(kubelet, SLOT, plugin):
        await kubelet.admit("ends", {"x": {SLOT: 1}})

        async def on_allocate() -> None:
            plugin.on_allocate = nothing
            await kubelet.free("ends")

        plugin.on_allocate = on_allocate
        stays = await kubelet.admit("stays", {"x": {SLOT: 1}})
        new = await kubelet.admit("new", {"x": {SLOT: 2}})
        assert await listed(kubelet) == {
            "stays": {"x": held(*stays["x"]["deviceIds"][SLOT])},
            "new": {"x": held("a", "b")},
        }
        assert new["x"]["deviceIds"][SLOT] == ["a", "b"]


async def test_list_shows_each_numa_node_of_a_device(kubelet: RealKubelet) -> None:
    async with registered(kubelet, SLOT, Plugin({"a": [0, 1]})):
        await kubelet.admit("one", {"x": {SLOT: 1}})
        async with asking(kubelet) as stub:
            reply = await stub.List(pr.ListPodResourcesRequest())
    devices = reply.pod_resources[0].containers[0].devices
    assert sorted(d.topology.nodes[0].ID for d in devices) == [0, 1]
    assert [list(d.device_ids) for d in devices] == [["a"], ["a"]]


async def test_hints(kubelet: RealKubelet) -> None:
    plugin = Plugin({"a0": [0], "b0": [0], "c1": [1]})
    plain = Plugin({"o": []})
    async with registered(kubelet, SLOT, plugin), registered(kubelet, OTHER, plain):
        either = [Hint((0,), True), Hint((1,), True), Hint((0, 1), False)]
        node_0 = [Hint((0,), True), Hint((0, 1), False)]
        assert await hints(kubelet, 1) == either
        assert await hints(kubelet, 2) == node_0
        assert await hints(kubelet, 3) == [Hint((0, 1), True)]
        assert await hints(kubelet, 4) == []
        both = await kubelet.hints("new", {"x": {OTHER: 1}, "y": {}})
        assert both == {"x": {OTHER: None}, "y": {}}
        assert await listed(kubelet) == {}
        assert plugin.allocated == []
        # What is in use no longer counts, unless the pod is the one that has it.
        await kubelet.affinity("one", "x", [0])
        await kubelet.admit("one", {"x": {SLOT: 1}})
        assert await hints(kubelet, 2) == [Hint((0, 1), False)]
        assert await kubelet.hints("one", {"x": {SLOT: 1}}) == {"x": {SLOT: node_0}}


async def hints(kubelet: RealKubelet, n: int) -> list[Hint] | None:
    answer = (await kubelet.hints("new", {"x": {SLOT: n}}))["x"][SLOT]
    return answer and sorted(answer, key=lambda hint: (len(hint.nodes), hint.nodes))


@pytest.mark.parametrize(
    ("nodes", "size", "asked", "allocated"),
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
    kubelet: RealKubelet,
    nodes: Iterable[int] | None,
    size: int,
    asked: list[tuple[list[str], list[str], int]],
    allocated: list[str],
) -> None:
    plugin = Plugin({"a0": [0], "b0": [0], "c1": [1], "d1": [1], "e1": [1]})
    plugin.options.get_preferred_allocation_available = True
    async with registered(kubelet, SLOT, plugin):
        if nodes is not None:
            await kubelet.affinity("one", "x", nodes)
        answers = await kubelet.admit("one", {"x": {SLOT: size}})
    assert answers["x"]["deviceIds"][SLOT] == allocated
    assert plugin.preferred == asked
    assert plugin.allocated == [allocated]
