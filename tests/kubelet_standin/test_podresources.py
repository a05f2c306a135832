"""The pod-resources API: the stand-in's server, and devhost's client against it."""

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pb
from devhost.api.podresources.v1 import podresources_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet import podresources
from devhost.kubelet.podresources import PodResources
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.scripted_plugin import COLA, TEA, Node, a_node, healthy, unhealthy


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "pod-resources" / "kubelet.sock"


@pytest.fixture
async def node(short_path: Path, path: Path) -> AsyncIterator[Node]:
    async with a_node(short_path / "plugins", path) as node:
        yield node


@pytest.fixture
def client(path: Path) -> PodResources:
    return PodResources(path)


@asynccontextmanager
async def stub(path: Path) -> AsyncIterator["pb_grpc.PodResourcesListerAsyncStub"]:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield pb_grpc.PodResourcesListerStub(channel)


def entries(devices: Iterable[pb.ContainerDevices]) -> list[tuple[str, list[str]]]:
    return sorted((each.resource_name, list(each.device_ids)) for each in devices)


async def listed(path: Path) -> dict[str, dict[str, list[tuple[str, list[str]]]]]:
    async with stub(path) as lister:
        reply = await lister.List(pb.ListPodResourcesRequest())
    assert {pod.namespace for pod in reply.pod_resources} <= {"default"}
    return {
        pod.name: {container.name: entries(container.devices) for container in pod.containers}
        for pod in reply.pod_resources
    }


# What the kubelet shows


async def test_each_device_is_an_entry(node: Node, path: Path) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    await node.kubelet.admit("pod", {"main": {COLA: 2}, "idle": {}})
    held = {"main": [(COLA, ["a"]), (COLA, ["b"])], "idle": []}
    assert await listed(path) == {"pod": held}
    plugin.list(*healthy("a"))  # what is allocated stays
    await node.kubelet.wait(COLA, 1, 1)
    assert await listed(path) == {"pod": held}


async def test_a_pod_is_shown_while_it_is_admitted_and_not_when_it_was_refused(
    node: Node, path: Path
) -> None:
    plugin = await node.registered(*healthy("a"))
    seen = []

    async def look() -> None:
        seen.append(await listed(path))

    plugin.before_allocate = look
    with pytest.raises(AdmissionError, match="Available: 0"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}, "last": {COLA: 1}})
    assert seen == [{"pod": {"main": [], "last": []}}]
    assert await listed(path) == {}


async def test_only_the_healthy_devices_are_allocatable_whoever_holds_them(
    node: Node, path: Path
) -> None:
    plugin = await node.registered(*healthy("a", "b"), *unhealthy("c"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    async with stub(path) as lister:
        reply = await lister.GetAllocatableResources(pb.AllocatableResourcesRequest())
        assert entries(reply.devices) == [(COLA, ["a"]), (COLA, ["b"])]
        plugin.hang_up()
        await node.kubelet.wait(COLA, 3, 0)
        reply = await lister.GetAllocatableResources(pb.AllocatableResourcesRequest())
        assert list(reply.devices) == []


# What the client makes of it


async def test_nobody_holds_anything_at_first(node: Node, client: PodResources) -> None:
    await node.registered(*healthy("a"))
    assert await client.holders() == {}


async def test_holders_are_known_by_resource_and_id(node: Node, client: PodResources) -> None:
    await node.registered(*healthy("a"))
    await node.registered(*healthy("a", "b"), resource=TEA)
    await node.kubelet.admit("one", {"main": {COLA: 1, TEA: 1}})
    await node.kubelet.admit("two", {"main": {TEA: 1}, "idle": {}})
    holders = await client.holders()
    assert holders[COLA] == {"a": {"default/one"}}
    assert sorted(holders[TEA]) == ["a", "b"]
    assert frozenset().union(*holders[TEA].values()) == {"default/one", "default/two"}
    await node.kubelet.free("one")
    assert COLA not in await client.holders()


async def answering(path: Path, answer: bytes) -> grpc.aio.Server:
    """A server that gives the same bytes to whatever it is asked."""

    class Any_(grpc.GenericRpcHandler):  # noqa: N801
        def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
            async def reply(request: bytes, context: object) -> bytes:
                return answer

            return grpc.unary_unary_rpc_method_handler(reply)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Any_(),))
    path.parent.mkdir()
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def test_two_containers_and_two_pods_may_hold_one_device(
    path: Path, client: PodResources
) -> None:
    """An init container's device goes to a later container; a replica of it to another pod."""
    entry = pb.ContainerDevices(resource_name=COLA, device_ids=["a", "b"])
    pods = [
        pb.PodResources(
            name=name,
            namespace="ns",
            containers=[pb.ContainerResources(name=each, devices=[entry]) for each in "xy"],
        )
        for name in ("one", "two")
    ]
    answer = pb.ListPodResourcesResponse(pod_resources=pods)
    server = await answering(path, answer.SerializeToString())
    both = {"ns/one", "ns/two"}
    assert await client.holders() == {COLA: {"a": both, "b": both}}
    await server.stop(None)


async def test_a_path_may_have_any_characters(short_path: Path) -> None:
    odd = short_path / "50% ü?#" / "kubelet.sock"
    kubelet = SimulatedKubelet(short_path / "plugins", odd)
    await kubelet.start()
    assert await PodResources(odd).holders() == {}
    await kubelet.stop()


async def refused(client: PodResources) -> str:
    with pytest.raises(KubeletError) as caught:
        await client.holders()
    where, _, reason = str(caught.value).partition(": ")
    assert where == str(client.socket)
    return reason


async def test_a_socket_that_is_not_there_is_said_so(client: PodResources) -> None:
    assert await refused(client) == "no such socket"


async def test_a_socket_that_may_not_be_used_is_said_so(
    client: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podresources, "connect_error", lambda _: errno.EACCES)  # root may use all
    assert await refused(client) == "permission denied"


async def test_an_api_that_does_not_answer_is_given_up(
    path: Path, client: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podresources, "LIST_TIMEOUT_S", 0.05)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        assert await refused(client) == "did not answer in 0.05 s"


async def test_the_wrong_socket_is_recognised(node: Node) -> None:
    reason = await refused(PodResources(node.kubelet.plugin_dir / "kubelet.sock"))
    assert reason.startswith("not the kubelet's pod-resources API: ")


async def test_an_answer_that_cannot_be_read_is_an_error(path: Path, client: PodResources) -> None:
    server = await answering(path, b"\xff\xff\xff")
    assert await refused(client) == "the answer cannot be read"
    await server.stop(None)


def one_pod(*, named: str) -> bytes:
    entry = pb.ContainerDevices(resource_name=COLA, device_ids=["a"])
    container = pb.ContainerResources(devices=[entry])
    pod = pb.PodResources(name=named, namespace="ns", containers=[container])
    return pb.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()


async def test_a_list_may_be_long(path: Path, client: PodResources) -> None:
    name = "x" * 4_000_000
    server = await answering(path, one_pod(named=name))
    assert await client.holders() == {COLA: {"a": {f"ns/{name}"}}}
    await server.stop(None)


async def test_a_list_of_more_than_four_mebibytes_is_an_error(
    path: Path, client: PodResources
) -> None:
    server = await answering(path, one_pod(named="x" * 4 * 1024 * 1024))
    assert (await refused(client)).startswith("the answer may be larger than 4 MiB: ")
    await server.stop(None)


async def test_a_list_is_not_taken_apart_on_the_event_loop(
    path: Path, client: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    parse = podresources._by_resource

    def parsed(answer: bytes) -> object:
        threads.append(threading.get_ident())
        return parse(answer)

    monkeypatch.setattr(podresources, "_by_resource", parsed)
    server = await answering(path, one_pod(named="x"))
    await client.holders()
    await server.stop(None)
    assert threads
    assert threading.get_ident() not in threads


async def test_a_cancelled_question_is_cancelled(path: Path, client: PodResources) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        mute.setblocking(False)
        asking = asyncio.create_task(client.holders())
        connection, _ = await asyncio.get_running_loop().sock_accept(mute)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        connection.close()


# The kubelet's life


def identity(path: Path) -> tuple[int, int, bool]:
    found = path.stat()
    return found.st_ino, found.st_ctime_ns, path.is_socket()


@pytest.fixture
def in_the_way(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


async def test_a_killed_kubelet_leaves_a_dead_socket_and_its_successor_knows_the_pods(
    node: Node, path: Path, client: PodResources
) -> None:
    await node.registered(*healthy("a"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    before, held = identity(path), await listed(path)
    await node.kubelet.kill()
    assert identity(path) == before
    assert await refused(client) == "connection refused"
    await node.kubelet.start()
    assert await client.holders() == {COLA: {"a": {"default/pod"}}}  # and no back-off
    assert await listed(path) == held == {"pod": {"main": [(COLA, ["a"])]}}


async def test_a_stopped_kubelet_leaves_nothing(
    node: Node, path: Path, client: PodResources
) -> None:
    assert [each.name for each in path.parent.iterdir()] == ["kubelet.sock"]
    await node.kubelet.stop()
    assert list(path.parent.iterdir()) == []
    assert await refused(client) == "no such socket"


async def test_a_kill_ends_the_connections(node: Node, path: Path) -> None:
    async with stub(path) as lister:
        await lister.List(pb.ListPodResourcesRequest())
        await node.kubelet.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lister.List(pb.ListPodResourcesRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_start_that_cannot_serve_it_leaves_nothing_running(
    short_path: Path, in_the_way: Path
) -> None:
    kubelet = SimulatedKubelet(short_path / "plugins", in_the_way)
    with pytest.raises(OSError, match=r"kubelet\.sock"):
        await kubelet.start()
    assert list((short_path / "plugins").iterdir()) == []
    kubelet.pod_resources = None
    await kubelet.start()
    await kubelet.stop()
