"""A plugin's methods in a host: when they are called, and how a failure shows outside."""

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from devhost import Allocation, Device, DeviceSpec, MountSpec
from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from devhost.node.locations import timeout_text
from devhost.node.resource import is_registered
from tests.library.scripted import NAME, Hang, Plain, Scripted, failing
from tests.library.serving import Serving
from tests.support.daemon import until
from tests.support.devices import reasons, skip_reasons
from tests.support.hosting import Kubelet, contract

OTHER = "example.com/other"


async def test_devices_are_advertised_with_their_health(started: Kubelet, serving: Serving) -> None:
    plugin = Plain(
        ["a", Device("b"), Device("c", reason="worn\tout"), Device("d", reason="")], interval=0.1
    )
    serving.serve(plugin)
    await started.wait(NAME, 4, 3)
    assert reasons(serving.snapshot(NAME))["c"] == "worn\tout"
    answer = (await started.admit("pod", {"app": {NAME: 3}}))["app"]
    assert answer["deviceIds"][NAME] == ["a", "b", "d"]
    assert answer["devices"] == []
    plugin.now = ["a", "b", "c", "d"]  # after the interval
    await started.wait(NAME, 4, 4)


async def test_device_needs_nodes(standin: SimulatedKubelet, serving: Serving, nodes: Path) -> None:
    plugin = Plain(
        [
            Device("one", paths=[str(nodes / "a"), str(nodes / "late")]),
            Device("two", paths=str(nodes / "b")),
        ],
        allocate={"env": {"PATHS": "${path}"}},
    )
    serving.serve(plugin)
    await standin.wait(NAME, 2, 1)
    await serving.reasons(NAME, {"one": f"{nodes}/late does not exist", "two": None})
    (nodes / "late").symlink_to("/dev/full")
    plugin.changed()
    await standin.wait(NAME, 2, 2)
    (nodes / "b").unlink()
    with pytest.raises(AdmissionError, match=f"device two: {nodes}/b no longer exists"):
        await standin.admit("pod", {"app": {NAME: 2}})
    plugin.changed()
    await serving.reasons(NAME, {"one": None, "two": f"{nodes}/b does not exist"})


async def test_node_is_unique(standin: SimulatedKubelet, serving: Serving, directory: Path) -> None:
    file, link, hard_link = (directory / name for name in ("file", "link", "hard-link"))
    file.touch()
    link.symlink_to(file)
    hard_link.hardlink_to(file)
    plugin = Plain([Device(path.name, paths=str(path)) for path in (file, link, hard_link)])
    serving.serve(plugin)
    await standin.wait(NAME, 1, 1)
    assert skip_reasons(serving.snapshot(NAME).skipped) == {
        "link": f"node {link} also belongs to device file",
        "hard-link": f"node {hard_link} also belongs to device file",
    }


async def test_changed_in_any_thread_asks_for_devices(started: Kubelet, serving: Serving) -> None:
    plugin = Plain(["a"])
    plugin.changed()  # before it is served: harmless
    serving.serve(plugin)
    await started.wait(NAME, 1, 1)

    def work() -> None:
        plugin.now = ["a", "b"]
        plugin.changed()

    threading.Thread(target=work).start()
    await started.wait(NAME, 2, 2)
    await serving.stop()
    plugin.changed()  # after it: harmless, too


async def test_devices_that_raise_is_unhealthy(standin: SimulatedKubelet, serving: Serving) -> None:
    plugin = Scripted(["a", "b"])
    serving.serve(plugin, Plain(["w"], OTHER))
    await standin.wait(NAME, 2, 2)
    await standin.wait(OTHER, 1, 1)

    def raising() -> None:
        raise ConnectionError("no answer\nfrom the controller")

    plugin.now = raising
    plugin.changed()
    reason = r"devices() raised ConnectionError: no answer\nfrom the controller"
    await serving.reasons(NAME, {"a": reason, "b": reason})
    assert serving.snapshot(NAME).error == reason
    await standin.wait(NAME, 2, 0)
    await standin.admit("pod", {"app": {OTHER: 1}})
    plugin.now = ["a"]
    plugin.changed()
    await serving.reasons(NAME, {"a": None, "b": "not found any more"})


async def test_devices_that_hangs_makes_its_resource_unhealthy_until_it_returns(
    standin: SimulatedKubelet, serving: Serving, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Scripted(["a"])
    serving.serve(plugin, Plain(["w"], OTHER))
    await standin.wait(NAME, 1, 1)
    await standin.wait(OTHER, 1, 1)
    hang.result = ["a", "b"]
    plugin.now = hang
    with monkeypatch.context() as patch:
        patch.setattr("devhost.node.reconciler.READ_TIMEOUT_S", 0.5)
        plugin.changed()
        await serving.reasons(NAME, {"a": timeout_text()})
    await standin.wait(NAME, 1, 0)
    plugin.changed()
    await standin.admit("pod", {"app": {OTHER: 1}})
    assert hang.threads == 1
    plugin.now = ["a", "b"]
    hang.release.set()
    await standin.wait(NAME, 2, 2)


@dataclass(frozen=True)
class Port(Device):
    """A device that carries more."""

    vlan: int = 0


async def test_allocate_answers_for_all(started: Kubelet, serving: Serving, nodes: Path) -> None:
    ports = [Port(f"p{n}", paths=str(nodes / "abc"[n - 8]), vlan=n) for n in (10, 9)]
    plugin = Scripted(ports, replicas=2, allocate={"env": {"DECLARED": "${id}"}})
    plugin.then["allocate"] = lambda devices: Allocation(
        device_ids=("mine",),
        envs={"VLANS": " ".join(str(port.vlan) for port in devices)},
        mounts=(MountSpec(str(nodes), "/nodes", read_only=True),),
        devices=(
            DeviceSpec(devices[0].paths[0], "/dev/port0", "rw"),
            DeviceSpec(str(nodes / "gone"), "/dev/gone", "r", optional=True),
        ),
        annotations={"example.com/ports": str(len(devices))},
        cdi_devices=("example.com/port=p",),
    )
    serving.serve(plugin)
    await started.wait(NAME, 4, 4)
    answer = (await started.admit("pod", {"app": {NAME: 4}}))["app"]
    (called,) = plugin.called("allocate")
    assert [id(port) for port in called] == [id(ports[1]), id(ports[0])]
    assert answer["envs"] == {"VLANS": "9 10"}
    mount = {"hostPath": str(nodes), "containerPath": "/nodes", "readOnly": True}
    assert answer["mounts"] == [mount]
    device = {"hostPath": "/dev/zero", "containerPath": "/dev/port0", "permissions": "rw"}
    assert answer["devices"] == [device]
    assert answer["annotations"]["example.com/ports"] == "2"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (None, "allocate() raised ValueError: boom"),
        ("/dev/gone", "/dev/gone does not exist"),
        ("/etc/passwd", "/etc/passwd is a file, not a device node"),
    ],
)
async def test_allocate_that_fails_refuses_the_pod_with_the_reason(
    standin: SimulatedKubelet, serving: Serving, path: str | None, text: str
) -> None:
    plugin = Scripted(["a"], allocate={"env": {"DECLARED": "${id}"}})
    plugin.then["allocate"] = (
        (lambda _: Allocation(devices=(DeviceSpec(path, "/dev/x", "rw"),))) if path else failing
    )
    serving.serve(plugin)
    await standin.wait(NAME, 1, 1)
    with pytest.raises(AdmissionError) as caught:
        await standin.admit("pod", {"app": {NAME: 1}})
    assert f"{NAME}: {text}" in str(caught.value)
    del plugin.then["allocate"]  # it returns None: what the option declares
    answer = (await standin.admit("pod", {"app": {NAME: 1}}))["app"]
    assert answer["envs"] == {"DECLARED": "a"}


@contract
async def test_preferred_chooses_or_leaves_it_to_others(started: Kubelet, serving: Serving) -> None:
    plugin = Scripted([f"d{number}" for number in range(8)], prefer="packed")
    plugin.then["preferred"] = lambda available, _must, size: sorted(available)[-size:]
    serving.serve(plugin)
    await started.wait(NAME, 8, 8)
    answer = (await started.admit("pod", {"app": {NAME: 3}}))["app"]
    assert answer["deviceIds"][NAME] == ["d5", "d6", "d7"]
    assert len(plugin.called("preferred")[0]) == 8
    plugin.then["preferred"] = lambda *_: None  # the option decides
    answer = (await started.admit("next", {"app": {NAME: 1}}))["app"]
    assert answer["deviceIds"][NAME] == ["d0"]
    plugin.then["preferred"] = failing  # kubelet decides
    await started.admit("last", {"app": {NAME: 4}})


@contract
async def test_pre_start_overridden_is_called_at_starts(started: Kubelet, serving: Serving) -> None:
    plugin = Scripted(["a", "b"])
    serving.serve(plugin, Plain(["x"], OTHER))
    await started.wait(NAME, 2, 2)
    await started.wait(OTHER, 1, 1)
    await started.admit("pod", {"app": {NAME: 2, OTHER: 1}})
    await started.start_container("pod", "app")
    assert plugin.called("pre_start") == [[Device("a"), Device("b")]] * 2
    assert serving.runner(OTHER).scanner.resource.pre_start == ()


async def test_pre_start_comes_after_the_steps_and_prevents_the_start_if_it_fails(standin: SimulatedKubelet, serving: Serving, directory: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    mark = directory / "mark"
    plugin = Scripted(["a"], pre_start=[{"run": ["/bin/touch", str(mark)], "every": "start"}])
    plugin.then["pre_start"] = lambda _devices: mark.unlink()
    serving.serve(plugin)
    await standin.wait(NAME, 1, 1)
    await standin.admit("pod", {"app": {NAME: 1}})
    assert len(plugin.called("pre_start")) == 1
    late, raised = r": no answer in \d", " raised ValueError"
    for work, within, text in ((hang, 5.0, late), (failing, 28.0, raised)):
        monkeypatch.setattr("devhost.node.answers.PRE_START_TIMEOUT_S", within)
        plugin.then["pre_start"] = work
        with pytest.raises(AdmissionError, match=rf"example.com/coded: pre_start\(\){text}"):
            await standin.start_container("pod", "app")
    del plugin.then["pre_start"]
    await standin.start_container("pod", "app")


async def test_refresh_comes_before_devices(started: Kubelet, serving: Serving) -> None:
    plugin = Scripted(["a"])
    for _ in range(2):  # it may be served again
        plugin.order.clear()
        plugin.calls.clear()
        serving.serve(plugin)
        await started.wait(NAME, 1, 1)
        assert plugin.order[0] == "refresh"
        assert plugin.order.count("refresh") == 1
        await until(lambda: is_registered(serving.runner(NAME)), "the first registration is noted")
        await started.restart()
        await started.wait(NAME, 1, 1)
        await until(lambda: plugin.order[-1] == "devices" and plugin.order.count("refresh") > 1, "")
        followed = zip(plugin.order, plugin.order[1:], strict=False)
        assert {then for call, then in followed if call == "refresh"} == {"devices"}
        assert not plugin.called("destroy")
        await serving.stop()
        assert len(plugin.called("destroy")) == 1


async def test_refresh_and_destroy_that_hang_hold_up_neither_restart_nor_end(
    standin: SimulatedKubelet, serving: Serving, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Scripted(["a"])
    serving.serve(plugin)
    await standin.wait(NAME, 1, 1)
    monkeypatch.setattr("devhost.node.reconciler.READ_TIMEOUT_S", 0.5)
    monkeypatch.setattr("devhost.library.served.DESTROY_S", 0.1)
    plugin.then |= {"refresh": hang, "destroy": hang}
    for _ in range(2):
        await standin.restart()
        await until(lambda: standin.devices(NAME), "registered again")
    await serving.reasons(NAME, {"a": timeout_text()})
    assert len(plugin.called("refresh")) == 2
    await serving.stop()
    assert len(plugin.called("destroy")) == 1


async def test_numa_nodes_are_for_all_or_none(standin: SimulatedKubelet, serving: Serving) -> None:
    nodes = [Device("a", numa_nodes=[1]), Device("b", numa_nodes=[0, 1])]
    serving.serve(Plain([*nodes, Device("c", reason="broken")]), Plain([nodes[0], "b"], OTHER))
    await standin.wait(NAME, 3, 2)
    await standin.wait(OTHER, 2, 2)
    devices = serving.snapshot(NAME).devices
    assert [devices[key].numa_nodes for key in "abc"] == [(1,), (0, 1), ()]
    assert {device.numa_nodes for device in serving.snapshot(OTHER).devices.values()} == {()}
