"""Each method of a plugin is called when it should be, and does what it says."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import devhost
from devhost import Allocation, Device, DeviceSpec, MountSpec
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.library.scripted import NAME, Plain, Scripted
from tests.library.serving import Serving
from tests.support.daemon import until
from tests.support.hosting import Kubelet, contract

OTHER = "example.com/other"


async def test_what_devices_returns_is_advertised(started: Kubelet, serving: Serving) -> None:
    """Texts are healthy tokens; a reason makes a device unhealthy."""
    serving.start(
        Plain(["a", Device("b"), Device("c", reason="worn\tout"), Device("d", reason="")])
    )
    await started.wait(NAME, 4, 3)
    assert serving.snapshot(NAME).devices["c"].reason == "worn\tout"
    answer = (await started.admit("pod", {"app": {NAME: 3}}))["app"]
    assert answer["deviceIds"][NAME] == ["a", "b", "d"]
    assert answer["devices"] == []


async def test_what_devices_says_of_the_same_nodes_may_change(
    standin: SimulatedKubelet, serving: Serving
) -> None:
    plugin = Plain(["a", "b"])
    serving.start(plugin)
    await standin.wait(NAME, 2, 2)
    for healthy, reason in ((1, "worn out"), (2, None)):
        plugin.now = ["a", Device("b", reason=reason)]
        plugin.changed()
        await standin.wait(NAME, 2, healthy)


async def test_no_devices_have_a_reason(standin: SimulatedKubelet, serving: Serving) -> None:
    serving.start(Plain([]))
    await standin.wait(NAME, 0, 0)
    assert serving.snapshot(NAME).why_none() == ("devices() returned no devices",)


async def test_the_declared_answer(started: Kubelet, serving: Serving, nodes: Path) -> None:
    """Without allocate() a container gets each node, and what the option says."""
    (nodes / "table").touch()
    device = Device("one", paths=[str(nodes / "a"), str(nodes / "b"), str(nodes / "table")])
    env = {"IDS": "${id}", "PATHS": "${path}", "NAMES": "${name}", "OF": "${resource}"}
    serving.start(Plain([device], allocate={"env": env}, replicas=2))
    await started.wait(NAME, 2, 2)
    answer = (await started.admit("pod", {"app": {NAME: 2}}))["app"]
    assert answer["deviceIds"][NAME] == ["one::0", "one::1"]
    assert answer["envs"] == {
        "IDS": "one",
        "PATHS": f"{nodes}/a,{nodes}/b,{nodes}/table",
        "NAMES": "a,b,table",
        "OF": NAME,
    }
    given = {"permissions": "rw"}
    assert sorted(answer["devices"], key=str) == [
        {"hostPath": "/dev/null", "containerPath": "/dev/null", **given},
        {"hostPath": "/dev/zero", "containerPath": "/dev/zero", **given},
    ]


async def test_a_device_is_there_when_all_its_nodes_are(
    standin: SimulatedKubelet, serving: Serving, nodes: Path
) -> None:
    """A path that is not there makes the device unhealthy, and no other."""
    plugin = Plain(
        [
            Device("one", paths=[str(nodes / "a"), str(nodes / "late")]),
            Device("two", paths=str(nodes / "b")),
        ],
        allocate={"env": {"PATHS": "${path}"}},
    )
    serving.start(plugin)
    await standin.wait(NAME, 2, 1)
    await serving.reasons(NAME, {"one": f"{nodes}/late does not exist", "two": None})
    (nodes / "late").symlink_to("/dev/full")
    plugin.changed()
    await standin.wait(NAME, 2, 2)
    (nodes / "b").unlink()
    await standin.wait(NAME, 2, 2)
    with pytest.raises(AdmissionError, match=f"device two: {nodes}/b no longer exists"):
        await standin.admit("pod", {"app": {NAME: 2}})
    plugin.changed()
    await serving.reasons(NAME, {"one": None, "two": f"{nodes}/b does not exist"})


async def test_changed_may_be_called_from_any_thread(started: Kubelet, serving: Serving) -> None:
    """The list follows immediately, long before the interval is over."""
    plugin = Plain(["a"])
    plugin.changed()  # before it is served: harmless
    serving.start(plugin)
    await started.wait(NAME, 1, 1)

    def work() -> None:
        plugin.now = ["a", "b"]
        plugin.changed()

    threading.Thread(target=work).start()
    await started.wait(NAME, 2, 2)
    await serving.stop()
    plugin.changed()  # after it: harmless, too


async def test_devices_is_called_again_after_the_interval(
    standin: SimulatedKubelet, serving: Serving
) -> None:
    plugin = Plain(["a"], interval=0.1)
    serving.start(plugin)
    await standin.wait(NAME, 1, 1)
    plugin.now = ["a", "b"]
    await standin.wait(NAME, 2, 2)


@dataclass(frozen=True)
class Port(Device):
    """A device that carries more."""

    vlan: int = 0


async def test_allocate_gets_the_devices_that_were_returned(
    started: Kubelet, serving: Serving, nodes: Path
) -> None:
    """The same objects, one for each device, in natural order; its answer is the whole."""
    ports = [
        Port(f"p{number}", paths=str(nodes / "abc"[number - 8]), vlan=number) for number in (10, 9)
    ]
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
    serving.start(plugin)
    await started.wait(NAME, 4, 4)
    answer = (await started.admit("pod", {"app": {NAME: 4}}))["app"]
    (called,) = plugin.called("allocate")
    assert [id(port) for port in called] == [id(ports[1]), id(ports[0])]
    assert answer["envs"] == {"VLANS": "9 10"}
    assert answer["mounts"] == [
        {"hostPath": str(nodes), "containerPath": "/nodes", "readOnly": True}
    ]
    assert answer["devices"] == [
        {"hostPath": "/dev/zero", "containerPath": "/dev/port0", "permissions": "rw"}
    ]
    assert answer["annotations"]["example.com/ports"] == "2"


async def test_allocate_may_leave_it_to_what_is_declared(
    standin: SimulatedKubelet, serving: Serving
) -> None:
    plugin = Scripted(["a"], allocate={"env": {"DECLARED": "${id}"}})
    serving.start(plugin)
    await standin.wait(NAME, 1, 1)
    answer = (await standin.admit("pod", {"app": {NAME: 1}}))["app"]
    assert plugin.called("allocate") == [[Device("a")]]
    assert answer["envs"] == {"DECLARED": "a"}


@contract
async def test_preferred_chooses(started: Kubelet, serving: Serving) -> None:
    """It sees the free IDs, and what it returns is what the container gets."""
    plugin = Scripted([f"d{number}" for number in range(8)])
    plugin.then["preferred"] = lambda available, _must, size: sorted(available)[-size:]
    serving.start(plugin)
    await started.wait(NAME, 8, 8)
    answer = (await started.admit("pod", {"app": {NAME: 3}}))["app"]
    assert answer["deviceIds"][NAME] == ["d5", "d6", "d7"]
    assert len(plugin.called("preferred")[0]) == 8


async def test_preferred_may_leave_it_to_the_option(
    standin: SimulatedKubelet, serving: Serving
) -> None:
    plugin = Scripted(["a", "b"], replicas=2, prefer="packed")
    serving.start(plugin)
    await standin.wait(NAME, 4, 4)
    for number in range(2):
        answer = (await standin.admit(f"pod-{number}", {"app": {NAME: 1}}))["app"]
        assert answer["deviceIds"][NAME] == [f"a::{number}"]
    assert plugin.called("preferred")


@contract
async def test_pre_start_is_called_at_every_start(started: Kubelet, serving: Serving) -> None:
    """With the container's devices; a plugin that does not override it is not asked."""
    plugin = Scripted(["a", "b"])
    serving.start(plugin, Plain(["x"], OTHER))
    await started.wait(NAME, 2, 2)
    await started.wait(OTHER, 1, 1)
    await started.admit("pod", {"app": {NAME: 2, OTHER: 1}})
    await started.start_container("pod", "app")
    assert plugin.called("pre_start") == [[Device("a"), Device("b")]] * 2
    assert serving.runner(OTHER).resource.pre_start == ()


async def test_steps_come_before_pre_start(
    standin: SimulatedKubelet, serving: Serving, directory: Path
) -> None:
    """The option pre_start is YAML's: what it runs needs no leave, as the code needs none."""
    mark = directory / "mark"
    plugin = Scripted(["a"], pre_start=[{"run": ["/bin/touch", str(mark)], "every": "start"}])
    plugin.then["pre_start"] = lambda _devices: mark.unlink()
    serving.start(plugin)
    await standin.wait(NAME, 1, 1)
    await standin.admit("pod", {"app": {NAME: 1}})
    assert not mark.exists()
    assert len(plugin.called("pre_start")) == 1


async def test_refresh_and_destroy(started: Kubelet, serving: Serving) -> None:
    """refresh() comes before devices(), again for another kubelet; destroy() once, at the end."""
    plugin = Scripted(["a"])
    serving.start(plugin)
    await started.wait(NAME, 1, 1)
    assert plugin.order[0] == "refresh"
    assert plugin.order.count("refresh") == 1
    await started.restart()
    await started.wait(NAME, 1, 1)
    await until(lambda: plugin.order[-1] == "devices" and plugin.order.count("refresh") >= 2, "")
    assert all(plugin.order[at + 1] == "devices" for at in places(plugin.order, "refresh"))
    assert not plugin.called("destroy")
    await serving.stop()
    assert [name for name, _ in plugin.calls if name != "refresh"] == ["destroy"]


def places(order: list[str], method: str) -> list[int]:
    return [at for at, one in enumerate(order) if one == method]


async def test_a_plugin_served_again_starts_afresh(
    standin: SimulatedKubelet, serving: Serving
) -> None:
    plugin = Scripted(["a"])
    for _ in range(2):
        plugin.order.clear()
        serving.start(plugin)
        await standin.wait(NAME, 1, 1)
        assert plugin.order[0] == "refresh"
        await serving.stop()


async def test_a_plugin_knows_where_the_host_is_seen(
    standin: SimulatedKubelet, serving: Serving, directory: Path
) -> None:
    """Its own looks go below the root; the paths of its devices are the host's."""
    (directory / "root" / "dev").mkdir(parents=True)
    (directory / "root" / "dev" / "x").touch()
    plugin = Scripted(lambda: [Device("x", paths=f"/dev/{one.name}") for one in found()])

    def found() -> list[Path]:
        return sorted((plugin.root / "dev").iterdir())

    assert plugin.root == Path("/")
    serving.start(plugin, root=directory / "root")
    await standin.wait(NAME, 1, 1)
    assert plugin.root == directory / "root"


async def test_numa_nodes(standin: SimulatedKubelet, serving: Serving) -> None:
    """Those that code gives count; where some healthy devices have none, nobody has."""
    plugin = Plain([Device("a", numa_nodes=[1]), Device("b", numa_nodes=[0, 1])])
    serving.start(plugin)
    await standin.wait(NAME, 2, 2)
    devices = serving.snapshot(NAME).devices
    assert {key: one.numa_nodes for key, one in devices.items()} == {"a": (1,), "b": (0, 1)}
    plugin.now = [*plugin.now, Device("c", reason="broken")]
    plugin.changed()
    await standin.wait(NAME, 3, 2)
    assert serving.snapshot(NAME).devices["a"].numa_nodes == (1,)
    plugin.now = [Device("a", numa_nodes=[1]), Device("b"), "c"]
    plugin.changed()
    await standin.wait(NAME, 3, 3)
    assert {one.numa_nodes for one in serving.snapshot(NAME).devices.values()} == {()}


async def test_health_checks_of_the_options(
    standin: SimulatedKubelet, serving: Serving, directory: Path
) -> None:
    (directory / "state-a").write_text("ok\n")
    (directory / "state-b").write_text("worn out\n")
    check = {"file": {"path": f"{directory}/state-${{id}}", "matches": "ok"}}
    serving.start(Plain(["a", "b"], health=[check]))
    await standin.wait(NAME, 2, 1)
    assert "state-b" in (serving.snapshot(NAME).devices["b"].reason or "")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"replica": 2}, TypeError, "unknown option 'replica'"),
        ({"replicas": 0}, ValueError, "example.com/coded: replicas: "),
        ({"max_per_container": "two"}, ValueError, "max_per_container: should be an integer"),
        ({"prefer": "paked"}, ValueError, "prefer: should be .*not 'paked'; did you mean 'packed'"),
        (
            {"remove_missing_after": 5},
            ValueError,
            "remove_missing_after: should be never, or a duration",
        ),
        (
            {"allocate": {"env": {"A": "${idd}"}}},
            ValueError,
            "allocate.env.A: unknown variable .*idd",
        ),
        ({"allocate": {"env": {"A": "$id"}}}, ValueError, r"allocate.env.A: .*write \$\{id\}"),
        ({"allocate": {"envs": {}}}, ValueError, "allocate.envs: unknown key"),
        ({"allocate": object()}, ValueError, "that YAML cannot represent"),
        ({"interval": 3600}, ValueError, "interval: should be 0.1 to 30 seconds"),
        ({"name": "coded"}, ValueError, "write example.com/coded"),
    ],
)
def test_options_are_checked_as_yaml_is(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Plain([], **options)


def test_doubtful_options_are_warned_of() -> None:
    plugin = Plain([], allocate={"devices": [{"hostPath": "${path}", "containerPath": "/dev/x"}]})
    assert len(plugin.warnings) == 1
    assert (
        "allocate.devices[0].containerPath" in plugin.warnings[0] or "/dev/x" in plugin.warnings[0]
    )


def test_the_public_names() -> None:
    assert set(devhost.__all__) <= set(dir(devhost))
    assert all(getattr(devhost, name) for name in devhost.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sevre'"):
        devhost.sevre  # type: ignore[attr-defined] # noqa: B018
