"""The calls of a kubelet to a device plugin: of the stand-in and of real device managers alike."""

import functools
import socket
from typing import Any, Final

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pr
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.fake_kubelet.kubelet import AdmissionError
from tests.support.hosting import contract
from tests.support.scripted_plugin import (
    COLA,
    TEA,
    Hook,
    Listed,
    Node,
    healthy,
    listed,
    lister,
    refused,
    register,
    unhealthy,
)

PREFERRING: Final = pb.DevicePluginOptions(get_preferred_allocation_available=True)
STARTING: Final = pb.DevicePluginOptions(pre_start_required=True)
UNKNOWN: Final = grpc.StatusCode.UNKNOWN

pytestmark = contract


# ── registration ──


async def test_plugin_registered_has_its_devices_counted(node: Node) -> None:
    """Only the exact word counts as healthy."""
    await node.registered(*healthy("a", "b"), *unhealthy("c"), pb.Device(ID="d", health="healthy"))
    assert await node.kubelet.capacity() == {COLA: (4, 2)}
    await node.registered(resource=TEA)
    assert await node.kubelet.capacity() == {COLA: (4, 2), TEA: (0, 0)}


async def test_registration_of_a_missing_socket_is_tried_until_the_deadline(node: Node) -> None:
    code, _ = await refused(node.kubelet, "none.sock", deadline=0.2)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_registration_asks_for_options_within_the_deadline(node: Node) -> None:
    plugin = await node.plugin(*healthy("a"))
    await register(node.kubelet, plugin.socket.name, deadline=60)
    left = plugin.time_left["options"]
    assert left is not None
    assert 5 < left < 61


async def test_registration_without_options_is_refused(node: Node) -> None:
    plugin = await node.plugin()
    plugin.errors["options"] = (grpc.StatusCode.UNIMPLEMENTED, "no such thing")
    assert await refused(node.kubelet, plugin.socket.name) == (
        UNKNOWN,
        "failed to get device plugin options: rpc error: code = Unimplemented desc = no such thing",
    )


# ── lists ──


async def test_list_replaces_the_one_before_and_its_end_makes_all_unhealthy(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    plugin.list(*healthy("b"), *unhealthy("c", "d"))
    await node.kubelet.wait(COLA, 3, 1)
    plugin.hang_up()
    await node.kubelet.wait(COLA, 3, 0)
    with pytest.raises(AdmissionError, match=f"no healthy devices present.* {COLA}"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_list_above_four_mebibytes_ends_the_stream(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.list(*healthy("x" * 4_200_000))
    await node.kubelet.wait(COLA, 1, 0)


async def test_registration_newest_gets_the_calls(node: Node) -> None:
    old = await node.registered(*healthy("a"))
    new = await node.registered(*healthy("a", "b"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert (len(old.allocated), len(new.allocated)) == (0, 1)


# ── pods ──


async def test_container_receives_the_answer_of_the_plugin(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    plugin.answer = lambda ids: pb.ContainerAllocateResponse(
        envs={"IDS": ",".join(ids)},
        mounts=[pb.Mount(host_path="/h", container_path="/c", read_only=True)],
        devices=[pb.DeviceSpec(host_path="/dev/x", container_path="/dev/y", permissions="rw")],
        annotations={"k": "v"},
        cdi_devices=[pb.CDIDevice(name="v.com/c=d"), pb.CDIDevice(name="v.com/c=d")],
    )
    nothing_of: dict[str, Any] = {
        "deviceIds": {},
        "envs": {},
        "mounts": [],
        "devices": [],
        "annotations": {},
    }
    assert await node.kubelet.admit("pod", {"main": {COLA: 2}, "side": {COLA: 0}}) == {
        "main": {
            "deviceIds": {COLA: ["a", "b"]},
            "envs": {"IDS": "a,b"},
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "readOnly": True}],
            "devices": [{"hostPath": "/dev/x", "containerPath": "/dev/y", "permissions": "rw"}],
            "annotations": {"k": "v"},
            "cdiDevices": ["v.com/c=d"],
        },
        "side": {**nothing_of, "cdiDevices": []},
    }
    assert len(plugin.allocated) == 1


async def test_container_of_two_resources_has_one_value_of_a_key(node: Node) -> None:
    for resource in (COLA, TEA):
        plugin = await node.registered(*healthy("a"), resource=resource)
        answer = pb.ContainerAllocateResponse(
            envs={"SAME": resource, resource: "own"},
            mounts=[pb.Mount(host_path=f"/{resource}", container_path="/same")],
            devices=[pb.DeviceSpec(host_path=f"/dev/{resource}", container_path="/dev/same")],
        )
        plugin.answer = functools.partial(lambda answer, _: answer, answer)
    merged = (await node.kubelet.admit("pod", {"main": {COLA: 1, TEA: 1}}))["main"]
    assert merged["deviceIds"] == {COLA: ["a"], TEA: ["a"]}
    winner = merged["envs"]["SAME"]
    assert merged["envs"] == {"SAME": winner, COLA: "own", TEA: "own"}
    assert [mount["hostPath"] for mount in merged["mounts"]] == [f"/{winner}"]
    assert [device["hostPath"] for device in merged["devices"]] == [f"/dev/{winner}"]


async def test_device_serves_one_container_until_its_pod_ends(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"), *unhealthy("c"))
    answers = await node.kubelet.admit("first", {"one": {COLA: 1}, "two": {COLA: 1}})
    assert sorted(answer["deviceIds"][COLA] for answer in answers.values()) == [["a"], ["b"]]
    assert len(plugin.allocated) == 2
    with pytest.raises(AdmissionError) as caught:
        await node.kubelet.admit("second", {"main": {COLA: 1}})
    assert str(caught.value) == (
        f"Allocate failed due to requested number of devices unavailable for {COLA}. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    await node.kubelet.free("first")
    await node.kubelet.admit("second", {"main": {COLA: 1}})


async def test_pod_refused_half_way_holds_nothing(node: Node) -> None:
    await node.registered(*healthy("a", "b"))
    with pytest.raises(AdmissionError, match=r"Requested: 2, Available: 1"):
        await node.kubelet.admit("pod", {"one": {COLA: 1}, "two": {COLA: 2}})
    assert await listed(node.kubelet) == {}
    await node.kubelet.admit("other", {"main": {COLA: 2}})


async def test_allocate_failed_reaches_the_user_and_frees_the_devices(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.errors["allocate"] = (grpc.StatusCode.FAILED_PRECONDITION, "the bottle is empty")
    with pytest.raises(AdmissionError) as caught:
        await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert str(caught.value) == (
        "Allocate failed due to rpc error: code = FailedPrecondition "
        "desc = the bottle is empty, which is unexpected"
    )
    plugin.errors.clear()
    await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_device_turned_unhealthy_during_allocate_is_given(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))

    async def sicken() -> None:
        plugin.list(*unhealthy("a"))
        await node.kubelet.wait(COLA, 1, 0)

    plugin.on_allocate = sicken
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Unhealthy"}}}


async def test_device_held_reports_its_health_until_the_pod_ends(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    await node.kubelet.admit("pod", {"main": {COLA: 2}})
    plugin.list(*unhealthy("a", "c"))
    await node.kubelet.wait(COLA, 2, 0)
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Unhealthy", "b": "Healthy"}}}


# ── preferred allocation ──


async def test_preference_is_taken(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c", "d"), options=PREFERRING)
    await node.kubelet.admit("first", {"main": {COLA: 1}})
    plugin.prefer = lambda ids, size: ids[-size:]
    answer = await node.kubelet.admit("second", {"main": {COLA: 2}})
    assert answer["main"]["deviceIds"] == {COLA: ["c", "d"]}
    assert plugin.preferred == [(["a", "b", "c", "d"], [], 1), (["b", "c", "d"], [], 2)]


@pytest.mark.parametrize("preferred", [["c", "x"], ["a", "b", "c"]], ids=["too few", "too many"])
async def test_preference_of_another_size_is_made_to_fit(node: Node, preferred: list[str]) -> None:
    """Too few are filled up and strangers ignored; of too many some are taken."""
    plugin = await node.registered(*healthy("a", "b", "c"), options=PREFERRING)
    plugin.prefer = lambda _ids, _size: preferred
    ids = (await node.kubelet.admit("pod", {"main": {COLA: 2}}))["main"]["deviceIds"][COLA]
    assert len(ids) == 2
    assert set(ids) < {"a", "b", "c"}
    assert "c" in ids or "x" not in preferred


async def test_preference_failed_refuses_the_pod(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PREFERRING)
    plugin.errors["prefer"] = (grpc.StatusCode.INTERNAL, "no idea")
    wanted = "device plugin GetPreferredAllocation rpc failed with err: .*Internal.*no idea"
    with pytest.raises(AdmissionError, match=wanted):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


# ── starts of containers ──


async def test_prestart_is_called_at_every_start_and_allocate_once(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=STARTING)
    assert await node.kubelet.admit("pod", {"main": {COLA: 1}}, start=False) == {}
    assert (plugin.allocated, plugin.started) == ([["a"]], [])
    first = await node.kubelet.start_container("pod", "main")
    assert first["deviceIds"] == {COLA: ["a"]}
    assert await node.kubelet.start_container("pod", "main") == first
    assert (plugin.started, plugin.allocated) == ([["a"], ["a"]], [["a"]])
    left = plugin.time_left["start"]
    assert left is not None
    assert 15 < left < 31


async def test_prestart_failed_refuses_the_start_and_keeps_the_device(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=STARTING)
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    plugin.errors["start"] = (grpc.StatusCode.INTERNAL, "not now")
    with pytest.raises(AdmissionError, match="device plugin PreStartContainer rpc failed with err"):
        await node.kubelet.start_container("pod", "main")
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Healthy"}}}


async def test_plugin_away_fails_starts_only_if_it_requires_prestart(node: Node) -> None:
    cola = await node.registered(*healthy("a"))
    tea = await node.registered(*healthy("t"), resource=TEA, options=STARTING)
    for name, resource in (("sweet", COLA), ("hot", TEA)):
        await node.kubelet.admit(name, {"main": {resource: 1}})
    cola.hang_up()
    tea.hang_up()
    await node.kubelet.wait(COLA, 1, 0)
    await node.kubelet.wait(TEA, 1, 0)
    answer = await node.kubelet.start_container("sweet", "main")
    assert answer["envs"] == {"IDS": "a"}
    with pytest.raises(AdmissionError, match="has been stopped"):
        await node.kubelet.start_container("hot", "main")


# ── pod-resources ──


async def test_pod_resources_list_pods_from_their_admission_on(node: Node) -> None:
    """A device that is being allocated is not listed yet; nothing is held during a call of a plugin."""
    plugin = await node.registered(
        *healthy("a", "b"),
        options=pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ),
    )
    seen: list[tuple[str, Listed]] = []

    def look(when: str) -> Hook:
        async def hook() -> None:
            seen.append((when, await listed(node.kubelet)))

        return hook

    plugin.on_prefer, plugin.on_allocate = look("prefer"), look("allocate")
    plugin.on_start = look("start")
    answers = await node.kubelet.admit("one", {"x": {COLA: 1}, "y": {COLA: 1}})
    x, y = ([(COLA, token) for token in answers[name]["deviceIds"][COLA]] for name in "xy")
    assert seen == [
        ("prefer", {"one": {"x": [], "y": []}}),
        ("allocate", {"one": {"x": [], "y": []}}),
        ("prefer", {"one": {"x": x, "y": []}}),
        ("allocate", {"one": {"x": x, "y": []}}),
        ("start", {"one": {"x": x, "y": y}}),
        ("start", {"one": {"x": x, "y": y}}),
    ]
    await node.kubelet.free("one")
    assert await listed(node.kubelet) == {}


async def test_pod_resources_list_healthy_devices_also_when_held(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"), *unhealthy("c"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    async with lister(node.kubelet) as stub:
        reply = await stub.GetAllocatableResources(pr.AllocatableResourcesRequest())
        assert sorted(device.device_ids[0] for device in reply.devices) == ["a", "b"]
        plugin.hang_up()
        await node.kubelet.wait(COLA, 3, 0)
        reply = await stub.GetAllocatableResources(pr.AllocatableResourcesRequest())
        assert list(reply.devices) == []


# ── the kubelet's own life ──


async def test_kubelet_killed_leaves_dead_sockets_and_the_next_knows_the_pods(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    before, path = await listed(node.kubelet), node.kubelet.plugin_dir / "kubelet.sock"
    assert before == {"pod": {"main": [(COLA, "a")]}}
    await node.kubelet.kill()
    await plugin.stream_ended.wait()
    for socket_path in (path, node.kubelet.pod_resources):
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(str(socket_path))
    await node.kubelet.start()
    assert await listed(node.kubelet) == before


async def test_kubelet_stopped_ends_the_streams_and_leaves_no_pod_resources(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    await node.kubelet.stop()
    await plugin.stream_ended.wait()
    assert not node.kubelet.pod_resources.exists()
    await node.kubelet.start()


async def test_kubelet_restarted_removes_sockets_and_keeps_pods(node: Node) -> None:
    """The options are not known then, so that no start asks the plugin."""
    plugin = await node.registered(*healthy("a", "b"), options=STARTING)
    held: Any = (await node.kubelet.admit("pod", {"main": {COLA: 1}}))["main"]
    await node.kubelet.restart()
    await plugin.stream_ended.wait()
    assert not plugin.socket.exists()
    assert await node.kubelet.start_container("pod", "main") == held
    assert len(plugin.started) == 1
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await node.kubelet.admit("other", {"main": {COLA: 1}})
    await node.registered(*healthy("a", "b"))
    with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
        await node.kubelet.admit("other", {"main": {COLA: 2}})
    await node.kubelet.admit("other", {"main": {COLA: 1}})


async def test_pod_admitted_again_keeps_what_it_has(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c"))
    held = await node.kubelet.admit("pod", {"main": {COLA: 2}})
    assert await node.kubelet.admit("pod", {"main": {COLA: 2}}) == held
    assert len(plugin.allocated) == 1
    plugin.list(*unhealthy("a", "b", "c"), *healthy("d", "e"))
    await node.kubelet.wait(COLA, 5, 2)
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy"):
        await node.kubelet.admit("pod", {"main": {COLA: 2}})
