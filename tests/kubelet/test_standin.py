"""What is the stand-in's alone: what it tells, and how it starts and ends."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.scripted_plugin import COLA, Node, a_node, healthy, refused, register, unhealthy


@pytest.fixture
async def kubelet(directory: Path) -> SimulatedKubelet:
    return SimulatedKubelet(directory / "plugins", directory / "pr.sock")


class Registrations(list[str]):
    """A list that tells of its first entry."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def append(self, entry: str) -> None:
        super().append(entry)
        self.begun.set()


class Hangs:
    """A call that never ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()


async def test_list_changed_is_told(node: Node, kubelet: SimulatedKubelet) -> None:
    seen = []
    kubelet.on_change = lambda: seen.append(kubelet.devices(COLA))
    plugin = await node.registered(*healthy("a"))
    plugin.list(*healthy("a"), *unhealthy("b"))
    await kubelet.wait(COLA, 2, 1)
    plugin.hang_up()
    await kubelet.wait(COLA, 2, 0)
    both = {"a": "Healthy", "b": "Unhealthy"}
    assert seen == [{}, {"a": "Healthy"}, both, both]
    assert kubelet.registrations == [COLA]


async def test_wait_in_vain_tells_what_was_seen(node: Node, kubelet: SimulatedKubelet) -> None:
    await kubelet.wait(COLA, None, None, timeout=0)
    await node.registered(*healthy("a"))
    with pytest.raises(AssertionError, match=r"wanted \(2, 2\), last seen \(1, 1\)"):
        await kubelet.wait(COLA, 2, 2, timeout=0)


async def test_held_devices_are_picked_at_random(node: Node, kubelet: SimulatedKubelet) -> None:
    await node.registered(*healthy(*(f"d{n:02}" for n in range(50))))
    picks = [
        (await kubelet.admit(f"pod-{n}", {"main": {COLA: 1}}))["main"]["deviceIds"][COLA]
        for n in range(48)
    ]
    assert picks != sorted(picks)
    await kubelet.admit("last", {"one": {COLA: 1}, "two": {COLA: 1}})
    assert len(kubelet.held()["last"][COLA]) == 2


async def test_device_gone_during_allocate_is_a_panic(
    node: Node, kubelet: SimulatedKubelet
) -> None:
    plugin = await node.registered(*healthy("a"))

    async def unplug() -> None:
        plugin.list()
        await kubelet.wait(COLA, 0, 0)

    plugin.on_allocate = unplug
    with pytest.raises(RuntimeError, match="kubelet panic"):
        await kubelet.admit("pod", {"main": {COLA: 1}})
    assert kubelet.panics == [f"{COLA}: a left the list in Allocate"]


async def test_socket_registered_twice_is_refused(node: Node, kubelet: SimulatedKubelet) -> None:
    """As since 1.37."""
    plugin = await node.registered(*healthy("a"))
    expected = f"device plugin already connected: {plugin.socket}"
    assert await refused(kubelet, plugin.socket.name) == (grpc.StatusCode.UNKNOWN, expected)


async def test_registration_ended_promotes_the_former(
    node: Node, kubelet: SimulatedKubelet
) -> None:
    old = await node.registered(*healthy("a"))
    new = await node.registered(*healthy("a", "b"))
    changed = asyncio.Event()
    kubelet.on_change = changed.set
    new.hang_up()
    await changed.wait()
    old.list(*healthy("a", "b", "c"))
    await kubelet.wait(COLA, 3, 3)
    await kubelet.admit("pod", {"main": {COLA: 1}})
    assert (len(old.allocated), len(new.allocated)) == (1, 0)


async def test_socket_late_is_found_and_missing_is_an_error(
    node: Node, kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet.registrations = calls = Registrations()
    pending = asyncio.create_task(register(kubelet, "late.sock"))
    await calls.begun.wait()
    await node.plugin(*healthy("a"), endpoint="late.sock")
    await pending
    await kubelet.wait(COLA, 1, 1)
    monkeypatch.setattr("devhost.standin.connections._DIAL_S", 0.1)
    code, text = await refused(kubelet, "none.sock")
    assert code is grpc.StatusCode.UNKNOWN
    assert text.startswith("failed to dial device plugin:")


# ── calls that are cut off ──


async def test_admission_cancelled_frees_its_devices(node: Node, kubelet: SimulatedKubelet) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.on_allocate = hangs = Hangs()
    admission = asyncio.create_task(kubelet.admit("pod", {"main": {COLA: 1}}))
    await hangs.begun.wait()
    admission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admission
    assert kubelet.held() == {}


@pytest.mark.parametrize("by", ["the plugin", "a kill"])
async def test_admission_cut_off_is_refused(node: Node, kubelet: SimulatedKubelet, by: str) -> None:
    plugin = await node.registered(*healthy("a"))
    plugin.on_allocate = hangs = Hangs()
    admission = asyncio.create_task(kubelet.admit("pod", {"main": {COLA: 1}}))
    await hangs.begun.wait()
    if by == "a kill":
        await kubelet.kill()
    else:
        plugin.hang_up()
    with pytest.raises(AdmissionError, match="code = Canceled"):
        await admission
    assert kubelet.panics == []


async def test_kill_ends_a_registration(node: Node, kubelet: SimulatedKubelet) -> None:
    kubelet.registrations = calls = Registrations()
    pending = asyncio.create_task(refused(kubelet, "none.sock"))
    await calls.begun.wait()
    await kubelet.kill()
    assert (await pending)[0] is grpc.StatusCode.UNAVAILABLE
    await kubelet.restart(down=0.01)
    await node.registered(*healthy("a"))


# ── start and stop ──


async def test_start_removes_sockets_and_links_to_them(kubelet: SimulatedKubelet) -> None:
    place = kubelet.plugin_dir
    (place / "sub").mkdir()
    for name in ("kubelet.sock", "old.sock", "sub/kept.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(place / name))
    (place / "kubelet_internal_checkpoint").touch()
    (place / "dangling").symlink_to("nowhere")
    (place / "link").symlink_to("sub/kept.sock")
    async with a_node(kubelet):
        left = ["dangling", "kubelet.sock", "kubelet_internal_checkpoint", "sub"]
        assert sorted(entry.name for entry in place.iterdir()) == left
        assert (place / "sub" / "kept.sock").is_socket()
    assert not (place / "kubelet.sock").exists()


async def test_start_again_is_an_error_and_stop_again_is_not(directory: Path) -> None:
    kubelet = SimulatedKubelet(directory / "made" / "here")
    await kubelet.stop()
    await kubelet.start()
    with pytest.raises(RuntimeError, match="already running"):
        await kubelet.start()
    await kubelet.stop()
    await kubelet.stop()
    assert list(kubelet.plugin_dir.iterdir()) == []


@pytest.mark.parametrize("what", ["kubelet.sock", "pod-resources"])
async def test_start_that_fails_leaves_nothing_running(
    kubelet: SimulatedKubelet, what: str
) -> None:
    assert kubelet.pod_resources is not None
    taken = kubelet.plugin_dir / what if what == "kubelet.sock" else kubelet.pod_resources
    taken.mkdir()
    with pytest.raises(OSError, match=r"\.sock"):
        await kubelet.start()
    taken.rmdir()
    async with a_node(kubelet):
        assert await kubelet.capacity() == {}
