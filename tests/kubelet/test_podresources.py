"""The client of the pod-resources API, against a kubelet and against answers of all kinds."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pb
from devhost.backends import podresources
from devhost.backends.podresources import PodResources
from devhost.errors import KubeletError
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.advertised import OfferedId
from devhost.model.resource_state import PodHoldings
from tests.support.scripted_plugin import COLA, TEA, Node, healthy


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "pod-resources" / "kubelet.sock"


@pytest.fixture
def client(path: Path) -> PodResources:
    return PodResources(path, path.parent)


async def held(client: PodResources) -> Mapping[str, Mapping[str, frozenset[str]]]:
    holders = (await client.list_pods()).held
    return {
        name: {offered.id: pods for offered, pods in ids.items()}
        for name, ids in holders.by_id.items()
    }


async def test_holders_are_known_also_after_a_restart(node: Node) -> None:
    client = PodResources(node.kubelet.pod_resources, node.kubelet.plugin_dir)
    await node.registered(*healthy("a"))
    await node.registered(*healthy("a", "b"), resource=TEA)
    assert await held(client) == {}
    assert [await client.is_served(resource) for resource in (COLA, TEA, "example.com/none")] == [
        True,
        True,
        False,
    ]
    await node.kubelet.admit("one", {"main": {COLA: 1, TEA: 1}})
    await node.kubelet.admit("two", {"main": {TEA: 1}, "idle": {}})
    holders = await held(client)
    assert holders[COLA] == {"a": {"default/one"}}
    assert sorted(holders[TEA]) == ["a", "b"]
    assert frozenset().union(*holders[TEA].values()) == {"default/one", "default/two"}
    await node.kubelet.kill()
    assert await refused(client) == "connection refused"
    await node.kubelet.start()
    assert await held(client) == holders  # and no back-off
    await node.kubelet.free("one")
    assert COLA not in await held(client)


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


async def test_holders_of_one_device_may_be_several(path: Path, client: PodResources) -> None:
    """An init container's device goes to a later container; a replica of it to another pod."""
    entry = pb.ContainerDevices(resource_name=COLA, device_ids=["a", "b"])
    pods = [
        pb.PodResources(
            name=name,
            namespace="ns",
            containers=[
                pb.ContainerResources(name=container, devices=[entry]) for container in "xy"
            ],
        )
        for name in ("one", "two")
    ]
    answer = pb.ListPodResourcesResponse(pod_resources=pods)
    server = await answering(path, answer.SerializeToString())
    all_pods = {"ns/one", "ns/two"}
    assert await held(client) == {COLA: {"a": all_pods, "b": all_pods}}
    await server.stop(None)


@pytest.mark.parametrize(
    ("entries", "whole"),
    [
        ("null", True),
        (f'[{{"ResourceName": "{COLA}", "DeviceIDs": {{"-1": ["a"], "0": ["b"]}}}}]', True),
        (f'[{{"ResourceName": "{COLA}", "DeviceIDs": {{"0": ["a", "c"]}}}}]', False),
        (f'[{{"ResourceName": "{COLA}", "DeviceIDs": {{"0": ["a", "ended"]}}}}]', True),
        (f'[{{"ResourceName": "{TEA}", "DeviceIDs": {{"0": ["a"]}}}}]', False),
        (f'[{{"ResourceName": "{COLA}", "DeviceIDs": ["a"]}}]', False),
        ("[", False),
        ("1", False),
    ],
)
async def test_checkpoint_has_all_that_kubelet_has_allocated(
    path: Path, client: PodResources, entries: str, whole: bool
) -> None:
    """One that cannot be read may have any."""
    pods = frozenset({"ns/one"})
    held = PodHoldings({COLA: {OfferedId(token, token): pods for token in "ab"}}, {COLA: pods})
    assert not await client.covers_checkpoint(held)
    path.parent.mkdir()
    checkpoint = path.parent / "kubelet_internal_checkpoint"
    checkpoint.write_text(f'{{"Data": {{"PodDeviceEntries": {entries}}}, "Checksum": 1}}')
    client.may_hold = lambda _resource, device_id: device_id != "ended"
    assert await client.covers_checkpoint(held) is whole


async def test_socket_with_any_characters_is_found(short_path: Path) -> None:
    odd = short_path / "50% ü?#" / "kubelet.sock"
    kubelet = SimulatedKubelet(short_path / "plugins", odd)
    await kubelet.start()
    assert await held(PodResources(odd, kubelet.plugin_dir)) == {}
    await kubelet.stop()


async def refused(client: PodResources) -> str:
    with pytest.raises(KubeletError) as caught:
        await client.list_pods()
    where, _, reason = str(caught.value).partition(": ")
    assert where == str(client.socket)
    return reason


async def test_socket_not_there_is_said_so(client: PodResources) -> None:
    assert await refused(client) == "no such socket"


async def test_api_without_answer_is_given_up(
    path: Path, client: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podresources, "LIST_TIMEOUT_S", 2.0)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        assert await refused(client) == "Deadline Exceeded"


async def test_socket_of_another_api_is_an_error(standin: SimulatedKubelet) -> None:
    assert (
        await refused(PodResources(standin.plugin_dir / "kubelet.sock", standin.plugin_dir))
        == "Method not found!"
    )


async def test_answer_not_readable_is_an_error(path: Path, client: PodResources) -> None:
    server = await answering(path, b"\xff\xff\xff")
    assert await refused(client) == "the answer cannot be read"
    await server.stop(None)


async def test_list_above_four_mebibytes_is_an_error(path: Path, client: PodResources) -> None:
    pods = [pb.PodResources(name="x" * 4 * 1024 * 1024, namespace="ns")]
    answer = pb.ListPodResourcesResponse(pod_resources=pods)
    server = await answering(path, answer.SerializeToString())
    assert "larger than max" in await refused(client)
    await server.stop(None)


async def test_list_of_a_kubelet_that_was_replaced_meanwhile_is_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list may be of either, and a kubelet that has just started does not know all pods."""
    client = PodResources(node.kubelet.pod_resources, node.kubelet.plugin_dir)
    ask = client._ask

    async def slow(*arguments: Any) -> object:
        answer = await ask(*arguments)
        await node.kubelet.restart()
        return answer

    monkeypatch.setattr(client, "_ask", slow)
    assert await refused(client) == "another kubelet has taken over"
