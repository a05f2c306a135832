"""The stand-in kubelet against a small plugin of the test's own: what kubelet 1.37 would do."""
# ruff: noqa: N802 - the protocol's names

import asyncio
import functools
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.scripted_plugin import (
    COLA,
    TEA,
    Bell,
    Context,
    Node,
    Plugin,
    a_node,
    healthy,
    names,
    next_change,
    refused,
    register,
    unhealthy,
)


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    before = asyncio.all_tasks()
    async with a_node(short_path) as node:
        yield node
    left = [task for task in asyncio.all_tasks() - before if "kubelet:" in task.get_name()]
    assert left == []
    gc.collect()


# Registration


async def test_a_registered_plugin_lists_its_devices(node: Node) -> None:
    await node.registered(*healthy("a", "b"), *unhealthy("c"))
    assert await node.kubelet.capacity() == {COLA: (3, 2)}
    assert node.kubelet.devices(COLA) == {"a": "Healthy", "b": "Healthy", "c": "Unhealthy"}
    assert node.kubelet.registrations == [COLA]


async def test_a_resource_is_unknown_before_its_first_list(node: Node) -> None:
    await node.kubelet.wait(COLA, None, None, timeout=0)
    assert node.kubelet.devices(COLA) == {}


async def test_wait_says_what_it_saw_last(node: Node) -> None:
    await node.registered(*healthy("a"))
    with pytest.raises(AssertionError, match=r"wanted \(2, 2\), last seen \(1, 1\)"):
        await node.kubelet.wait(COLA, 2, 2, timeout=0)


async def test_an_empty_list_shows_the_resource_with_nothing(node: Node) -> None:
    await node.registered()
    assert await node.kubelet.capacity() == {COLA: (0, 0)}


async def test_only_the_exact_word_healthy_counts(node: Node) -> None:
    plugin = await node.plugin(pb2.Device(ID="a", health="healthy"), pb2.Device(ID="b"))
    await register(node.kubelet, plugin.socket.name)
    await node.kubelet.wait(COLA, 2, 0)


async def test_an_id_listed_as_both_counts_twice(node: Node) -> None:
    plugin = await node.plugin(*healthy("a", "b", "b"), *unhealthy("a"))
    await register(node.kubelet, plugin.socket.name)
    await node.kubelet.wait(COLA, 3, 2)


async def test_another_version_is_refused_with_status_unknown(node: Node) -> None:
    code, text = await refused(node.kubelet, "p.sock", version="v1alpha1")
    assert code is grpc.StatusCode.UNKNOWN
    assert text == (
        'requested API version "v1alpha1" is not supported by kubelet. '
        'Supported version is ["v1beta1"]'
    )


@pytest.mark.parametrize("name", ["cola", "kubernetes.io/cola", "Example.com/cola", "a/b/c"])
async def test_a_wrong_name_is_refused_with_status_unknown(node: Node, name: str) -> None:
    code, text = await refused(node.kubelet, "p.sock", name)
    assert (code, text) == (grpc.StatusCode.UNKNOWN, f'the ResourceName "{name}" is invalid')
    assert node.kubelet.registrations == [name]


async def test_a_missing_socket_is_retried_until_the_callers_deadline(node: Node) -> None:
    code, _ = await refused(node.kubelet, "none.sock", deadline=0.2)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_socket_that_never_comes_fails_the_dial(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devhost.standin.connections._DIAL_S", 0.1)
    code, text = await refused(node.kubelet, "none.sock")
    assert code is grpc.StatusCode.UNKNOWN
    assert text.startswith("failed to dial device plugin:")


async def test_a_socket_that_comes_late_is_found(node: Node) -> None:
    plugin = Plugin(node.kubelet.plugin_dir / "late.sock", healthy("a"))
    node.kubelet.registrations = calls = Bell()
    pending = asyncio.create_task(register(node.kubelet, "late.sock"))
    await calls.rung.wait()
    await plugin.serve()
    await pending
    await node.kubelet.wait(COLA, 1, 1)
    await plugin.close()


async def test_the_options_call_inherits_the_callers_deadline(node: Node) -> None:
    plugin = await node.plugin(*healthy("a"))
    await register(node.kubelet, plugin.socket.name, deadline=15)
    assert plugin.options_time_left is not None
    assert 10 < plugin.options_time_left < 16


async def test_a_plugin_that_refuses_its_options_is_not_registered(node: Node) -> None:
    class Mute(Plugin):
        async def GetDevicePluginOptions(
            self, request: pb2.Empty, context: Context
        ) -> pb2.DevicePluginOptions:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such thing")

    plugin = Mute(node.kubelet.plugin_dir / "mute.sock", [])
    await plugin.serve()
    code, text = await refused(node.kubelet, "mute.sock")
    await plugin.close()
    assert code is grpc.StatusCode.UNKNOWN
    assert text == (
        "failed to get device plugin options: rpc error: code = Unimplemented desc = no such thing"
    )


async def test_an_endpoint_in_a_subdirectory_works_and_survives_a_restart(node: Node) -> None:
    (node.kubelet.plugin_dir / "sub").mkdir()
    plugin = Plugin(node.kubelet.plugin_dir / "sub" / "p.sock", healthy("a"))
    await plugin.serve()
    await register(node.kubelet, "sub/p.sock")
    await node.kubelet.wait(COLA, 1, 1)
    await node.kubelet.restart()
    await register(node.kubelet, "sub/p.sock")
    await node.kubelet.wait(COLA, 1, 1)
    await plugin.close()


async def test_the_same_socket_cannot_register_twice(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    code, text = await refused(node.kubelet, plugin.socket.name)
    assert code is grpc.StatusCode.UNKNOWN
    assert text == f"device plugin already connected: {plugin.socket}"
    plugin.list(*healthy("a", "b"))
    await node.kubelet.wait(COLA, 2, 2)


# Lists


async def test_a_list_replaces_the_one_before(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    plugin.list(*healthy("b"), *unhealthy("c", "d"))
    await node.kubelet.wait(COLA, 3, 1)
    assert node.kubelet.devices(COLA) == {"b": "Healthy", "c": "Unhealthy", "d": "Unhealthy"}


async def test_every_change_is_told(node: Node) -> None:
    seen = []
    node.kubelet.on_change = lambda: seen.append(node.kubelet.devices(COLA))
    plugin = await node.registered(*healthy("a"))
    plugin.list(*healthy("a", "b"))
    await node.kubelet.wait(COLA, 2, 2)
    plugin.hang_up()
    await node.kubelet.wait(COLA, 2, 0)
    a, b = {"a": "Healthy"}, {"b": "Healthy"}
    assert seen == [{}, a, a | b, a | b]


async def test_the_end_of_the_stream_makes_all_unhealthy_and_keeps_the_capacity(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    plugin.hang_up()
    await node.kubelet.wait(COLA, 2, 0)
    with pytest.raises(AdmissionError, match=f"no healthy devices present.* {COLA}"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_a_list_above_four_mebibytes_ends_the_stream(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.list(*healthy("x" * 4_200_000))
    await node.kubelet.wait(COLA, 1, 0)


async def test_the_newest_endpoint_gets_the_calls_and_its_end_promotes_the_older(
    node: Node,
) -> None:
    old = await node.registered(*healthy("a"))
    new = await node.registered(*healthy("a", "b"))
    await node.kubelet.admit("first", {"main": {COLA: 1}})
    assert (len(old.allocated), len(new.allocated)) == (0, 1)
    await next_change(node.kubelet, new.hang_up)
    old.list(*healthy("a", "b", "c"))
    await node.kubelet.wait(COLA, 3, 3)
    await node.kubelet.admit("second", {"main": {COLA: 1}})
    assert (len(old.allocated), len(new.allocated)) == (1, 1)
    old.hang_up()
    await node.kubelet.wait(COLA, 3, 0)


async def test_the_end_of_the_older_endpoint_leaves_the_newer_alone(node: Node) -> None:
    old = await node.registered(*healthy("a"))
    new = await node.registered(*healthy("a", "b"))
    await next_change(node.kubelet, old.hang_up)
    assert await node.kubelet.capacity() == {COLA: (2, 2)}
    await node.kubelet.admit("pod", {"main": {COLA: 2}})
    assert new.allocated == [["a", "b"]]


# Pods


async def test_held_devices_are_those_of_all_containers(node: Node) -> None:
    await node.registered(*healthy("a", "b", "c"))
    await node.kubelet.admit("pod", {"one": {COLA: 1}, "two": {COLA: 2}})
    assert node.kubelet.held() == {"pod": {COLA: ["a", "b", "c"]}}


async def test_a_container_receives_the_plugins_answer(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    plugin.answer = lambda ids: pb2.ContainerAllocateResponse(
        envs={"IDS": ",".join(ids)},
        mounts=[pb2.Mount(host_path="/h", container_path="/c", read_only=True)],
        devices=[pb2.DeviceSpec(host_path="/dev/x", container_path="/dev/y", permissions="rw")],
        annotations={"k": "v"},
        cdi_devices=[pb2.CDIDevice(name="v.com/c=d"), pb2.CDIDevice(name="v.com/c=d")],
    )
    assert await node.kubelet.admit("pod", {"main": {COLA: 2}, "side": {}}) == {
        "main": {
            "deviceIds": {COLA: ["a", "b"]},
            "envs": {"IDS": "a,b"},
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "readOnly": True}],
            "devices": [{"hostPath": "/dev/x", "containerPath": "/dev/y", "permissions": "rw"}],
            "annotations": {"k": "v"},
            "cdiDevices": ["v.com/c=d"],
        },
        "side": {
            "deviceIds": {},
            "envs": {},
            "mounts": [],
            "devices": [],
            "annotations": {},
            "cdiDevices": [],
        },
    }


async def test_several_resources_are_merged_and_one_value_of_a_key_wins(node: Node) -> None:
    for resource in (COLA, TEA):
        plugin = await node.registered(*healthy("a"), resource=resource)
        answer = pb2.ContainerAllocateResponse(
            envs={"SAME": resource, resource: "own"},
            mounts=[pb2.Mount(host_path=f"/{resource}", container_path="/same")],
            devices=[pb2.DeviceSpec(host_path=f"/dev/{resource}", container_path="/dev/same")],
        )
        plugin.answer = functools.partial(lambda answer, _: answer, answer)
    merged = (await node.kubelet.admit("pod", {"main": {COLA: 1, TEA: 1}}))["main"]
    assert merged["deviceIds"] == {COLA: ["a"], TEA: ["a"]}
    winner = merged["envs"]["SAME"]
    assert merged["envs"] == {"SAME": winner, COLA: "own", TEA: "own"}
    assert [mount["hostPath"] for mount in merged["mounts"]] == [f"/{winner}"]
    assert [device["hostPath"] for device in merged["devices"]] == [f"/dev/{winner}"]


async def test_devices_are_picked_at_random_without_a_preference(node: Node) -> None:
    await node.registered(*healthy(*(f"d{n}" for n in range(50))))
    picks = [
        (await node.kubelet.admit(f"pod-{n}", {"main": {COLA: 1}}))["main"]["deviceIds"][COLA]
        for n in range(50)
    ]
    assert sorted(picks) == sorted([f"d{n}"] for n in range(50))
    assert picks != sorted(picks)


async def test_a_device_serves_one_pod_until_it_is_freed(node: Node) -> None:
    await node.registered(*healthy("a"), *unhealthy("b"))
    await node.kubelet.admit("first", {"main": {COLA: 1}})
    with pytest.raises(AdmissionError) as caught:
        await node.kubelet.admit("second", {"main": {COLA: 1}})
    assert str(caught.value) == (
        f"Allocate failed due to requested number of devices unavailable for {COLA}. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    await node.kubelet.free("first")
    await node.kubelet.admit("second", {"main": {COLA: 1}})


async def test_containers_of_a_pod_share_nothing(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    answers = await node.kubelet.admit("pod", {"one": {COLA: 1}, "two": {COLA: 1}})
    ids = [answer["deviceIds"][COLA] for answer in answers.values()]
    assert sorted(ids) == [["a"], ["b"]]
    assert len(plugin.allocated) == 2


async def test_a_pod_refused_half_way_holds_nothing(node: Node) -> None:
    await node.registered(*healthy("a", "b"))
    with pytest.raises(AdmissionError, match=r"Requested: 2, Available: 1"):
        await node.kubelet.admit("pod", {"one": {COLA: 1}, "two": {COLA: 2}})
    await node.kubelet.admit("other", {"main": {COLA: 2}})


async def test_a_zero_request_causes_no_call(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    answers = await node.kubelet.admit("pod", {"main": {COLA: 0}})
    assert (answers["main"]["deviceIds"], plugin.allocated) == ({}, [])


async def test_an_unknown_resource_is_refused(node: Node) -> None:
    with pytest.raises(AdmissionError, match=f"cannot allocate unregistered device {TEA}"):
        await node.kubelet.admit("pod", {"main": {TEA: 1}})


async def test_a_plugins_error_reaches_the_pods_user_and_frees_the_devices(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.error = (grpc.StatusCode.FAILED_PRECONDITION, "the bottle is empty")
    with pytest.raises(AdmissionError) as caught:
        await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert str(caught.value) == (
        "Allocate failed due to rpc error: code = FailedPrecondition "
        "desc = the bottle is empty, which is unexpected"
    )
    plugin.error = None
    await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_an_answer_without_an_entry_is_refused(node: Node) -> None:
    class Empty(Plugin):
        async def Allocate(
            self, request: pb2.AllocateRequest, context: Context
        ) -> pb2.AllocateResponse:
            return pb2.AllocateResponse()

    plugin = Empty(node.kubelet.plugin_dir / "empty.sock", healthy("a"))
    await plugin.serve()
    await register(node.kubelet, "empty.sock")
    await node.kubelet.wait(COLA, 1, 1)
    with pytest.raises(AdmissionError, match="no containers return in allocation response"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})
    await plugin.close()


async def test_a_device_that_leaves_the_list_during_allocate_is_a_panic(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))

    async def unplug() -> None:
        plugin.list()
        await node.kubelet.wait(COLA, 0, 0)

    plugin.before_allocate = unplug
    with pytest.raises(RuntimeError, match="kubelet panic"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert node.kubelet.panics == [f"{COLA}: a left the list in Allocate"]


async def test_a_device_that_turns_unhealthy_during_allocate_is_no_panic(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))

    async def sicken() -> None:
        plugin.list(*unhealthy("a"))
        await node.kubelet.wait(COLA, 1, 0)

    plugin.before_allocate = sicken
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert node.kubelet.panics == []
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Unhealthy"}}}


async def test_a_connection_that_ends_during_allocate_refuses_the_pod(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))

    async def leave() -> None:
        plugin.hang_up()
        await asyncio.Event().wait()

    plugin.before_allocate = leave
    with pytest.raises(AdmissionError, match="code = Canceled"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_a_cancelled_admission_frees_its_devices(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    plugin.before_allocate = hang
    admission = asyncio.create_task(node.kubelet.admit("pod", {"main": {COLA: 1}}))
    await asked.wait()
    admission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admission
    plugin.before_allocate = None
    await node.kubelet.admit("other", {"main": {COLA: 1}})


async def test_a_held_device_reports_its_health(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"))
    await node.kubelet.admit("pod", {"main": {COLA: 2}})
    plugin.list(*unhealthy("a", "c"))
    await node.kubelet.wait(COLA, 2, 0)
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Unhealthy", "b": "Healthy"}}}
    plugin.hang_up()
    await plugin.stream_ended.wait()
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Unhealthy", "b": "Healthy"}}}
    await node.kubelet.free("pod")
    with pytest.raises(KeyError):
        await node.kubelet.health("pod")


# Preferred allocation


PREFERRING = pb2.DevicePluginOptions(get_preferred_allocation_available=True)


async def test_the_preferred_devices_are_taken(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c", "d"), options=PREFERRING)
    await node.kubelet.admit("first", {"main": {COLA: 1}})
    plugin.prefer = lambda ids, size: sorted(ids)[-size:]
    answer = await node.kubelet.admit("second", {"main": {COLA: 2}})
    assert answer["main"]["deviceIds"] == {COLA: ["c", "d"]}
    asked = plugin.preferred[-1]
    assert sorted(asked.available_deviceIDs) == ["b", "c", "d"]
    assert (list(asked.must_include_deviceIDs), asked.allocation_size) == ([], 2)


async def test_too_few_preferred_devices_are_filled_up_and_strangers_ignored(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c"), options=PREFERRING)
    plugin.prefer = lambda _ids, _size: ["c", "x"]
    ids = (await node.kubelet.admit("pod", {"main": {COLA: 2}}))["main"]["deviceIds"][COLA]
    assert "c" in ids
    assert set(ids) < {"a", "b", "c"}


async def test_of_too_many_preferred_devices_some_are_taken(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c", "d"), options=PREFERRING)
    plugin.prefer = lambda _ids, _size: ["a", "b", "c"]
    ids = (await node.kubelet.admit("pod", {"main": {COLA: 2}}))["main"]["deviceIds"][COLA]
    assert set(ids) < {"a", "b", "c"}
    assert len(ids) == 2


async def test_a_failed_preference_refuses_the_pod(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PREFERRING)
    plugin.error = (grpc.StatusCode.INTERNAL, "no idea")
    wanted = "device plugin GetPreferredAllocation rpc failed with err: .*Internal.*no idea"
    with pytest.raises(AdmissionError, match=wanted):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_a_preference_is_asked_for_even_without_a_choice(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PREFERRING)
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    assert [list(asked.available_deviceIDs) for asked in plugin.preferred] == [["a"]]


# Starting containers


PRE_STARTING = pb2.DevicePluginOptions(pre_start_required=True)


async def test_prestart_is_called_at_every_start(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PRE_STARTING)
    first = (await node.kubelet.admit("pod", {"main": {COLA: 1}}))["main"]
    assert plugin.started == [["a"]]
    assert await node.kubelet.start_container("pod", "main") == first
    assert (plugin.started, plugin.allocated) == ([["a"], ["a"]], [["a"]])
    assert plugin.prestart_time_left is not None
    assert 25 < plugin.prestart_time_left < 31


async def test_a_pod_can_be_admitted_without_a_start(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PRE_STARTING)
    assert await node.kubelet.admit("pod", {"main": {COLA: 1}}, start=False) == {}
    assert (plugin.allocated, plugin.started) == ([["a"]], [])
    answer = await node.kubelet.start_container("pod", "main")
    assert answer["deviceIds"] == {COLA: ["a"]}
    assert plugin.started == [["a"]]


async def test_a_failed_prestart_refuses_the_start_only(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PRE_STARTING)
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    plugin.start_error = (grpc.StatusCode.INTERNAL, "not now")
    with pytest.raises(AdmissionError, match="device plugin PreStartContainer rpc failed with err"):
        await node.kubelet.start_container("pod", "main")
    assert await node.kubelet.health("pod") == {"main": {COLA: {"a": "Healthy"}}}


async def test_a_failed_prestart_at_admission_frees_the_devices(node: Node) -> None:
    plugin = await node.registered(*healthy("a"), options=PRE_STARTING)
    plugin.start_error = (grpc.StatusCode.INTERNAL, "never")
    with pytest.raises(AdmissionError, match="never"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})
    plugin.start_error = None
    await node.kubelet.admit("other", {"main": {COLA: 1}})


async def test_a_plugin_that_is_away_lets_containers_restart_unless_prestart_is_required(
    node: Node,
) -> None:
    cola = await node.registered(*healthy("a"))
    tea = await node.registered(*healthy("t"), resource=TEA, options=PRE_STARTING)
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


# The kubelet's own life


async def test_start_clears_sockets_and_nothing_else(short_path: Path) -> None:
    for name in ("kubelet.sock", "old.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(short_path / name))
    (short_path / "sub").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_path / "sub" / "kept.sock"))
    (short_path / "kubelet_internal_checkpoint").touch()
    (short_path / "dangling").symlink_to("nowhere")
    (short_path / "link").symlink_to("sub/kept.sock")
    async with a_node(short_path):
        assert names(short_path) == [
            "dangling",
            "kubelet.sock",
            "kubelet_internal_checkpoint",
            "sub",
        ]
        assert (short_path / "sub" / "kept.sock").is_socket()
    assert not (short_path / "kubelet.sock").exists()


async def test_start_makes_the_directory(short_path: Path) -> None:
    async with a_node(short_path / "a" / "b"):
        assert (short_path / "a" / "b" / "kubelet.sock").is_socket()


async def test_a_second_start_is_an_error_and_a_second_stop_is_not(short_path: Path) -> None:
    kubelet = SimulatedKubelet(short_path)
    await kubelet.stop()
    await kubelet.start()
    with pytest.raises(RuntimeError, match="already running"):
        await kubelet.start()
    await kubelet.stop()
    await kubelet.stop()
    assert names(short_path) == []


async def test_a_start_that_fails_leaves_nothing_running(short_path: Path) -> None:
    (short_path / "kubelet.sock").touch()
    kubelet = SimulatedKubelet(short_path)
    with pytest.raises(FileExistsError):
        await kubelet.start()
    assert names(short_path) == ["kubelet.sock"]


async def test_stop_ends_the_plugins_streams(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    await node.kubelet.stop()
    await plugin.stream_ended.wait()
    assert await node.kubelet.capacity() == {COLA: (0, 0)}


async def test_a_killed_kubelet_leaves_a_dead_socket(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    path = node.kubelet.plugin_dir / "kubelet.sock"
    before = path.stat()
    await node.kubelet.kill()
    await plugin.stream_ended.wait()
    assert path.stat() == before
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(path))
    code, _ = await refused(node.kubelet, plugin.socket.name)
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_kill_ends_a_registration_under_way(node: Node) -> None:
    node.kubelet.registrations = calls = Bell()
    pending = asyncio.create_task(refused(node.kubelet, "none.sock"))
    await calls.rung.wait()
    await node.kubelet.kill()
    code, _ = await pending
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_kill_refuses_the_pod_that_is_being_admitted(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    plugin.before_allocate = hang
    admission = asyncio.create_task(node.kubelet.admit("pod", {"main": {COLA: 1}}))
    await asked.wait()
    await node.kubelet.kill()
    with pytest.raises(AdmissionError, match="code = Canceled"):
        await admission
    assert node.kubelet.panics == []


async def test_a_restart_keeps_the_pods_and_forgets_the_devices(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b"), options=PRE_STARTING)
    held = (await node.kubelet.admit("pod", {"main": {COLA: 1}}))["main"]
    await node.kubelet.restart()
    await plugin.stream_ended.wait()
    assert await node.kubelet.capacity() == {COLA: (0, 0)}
    assert node.kubelet.devices(COLA) == {}
    assert not plugin.socket.exists()
    assert await node.kubelet.health("pod") == {
        "main": {COLA: dict.fromkeys(held["deviceIds"][COLA], "Healthy")}
    }
    assert await node.kubelet.start_container("pod", "main") == held
    assert len(plugin.started) == 1  # options are unknown, so there was no second call
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await node.kubelet.admit("other", {"main": {COLA: 1}})

    await node.registered(*healthy("a", "b"))
    with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
        await node.kubelet.admit("other", {"main": {COLA: 2}})
    await node.kubelet.admit("other", {"main": {COLA: 1}})


async def test_a_pod_that_is_admitted_again_keeps_what_it_holds(node: Node) -> None:
    plugin = await node.registered(*healthy("a", "b", "c"))
    held = await node.kubelet.admit("pod", {"main": {COLA: 2}})
    assert await node.kubelet.admit("pod", {"main": {COLA: 2}}) == held
    assert len(plugin.allocated) == 1
    with pytest.raises(AdmissionError, match=r"changed request for resource .* from 2 to 1"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_a_pod_whose_device_became_unhealthy_is_not_admitted_again(node: Node) -> None:
    plugin = await node.registered(*healthy("a"))
    await node.kubelet.admit("pod", {"main": {COLA: 1}})
    plugin.list(*unhealthy("a"), *healthy("b"))
    await node.kubelet.wait(COLA, 2, 1)
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy"):
        await node.kubelet.admit("pod", {"main": {COLA: 1}})


async def test_a_killed_kubelet_can_be_restarted(node: Node) -> None:
    await node.kubelet.kill()
    await node.kubelet.restart(down=0.01)
    await node.registered(*healthy("a"))
