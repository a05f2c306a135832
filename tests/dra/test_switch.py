"""A resource goes from one backend to the other on a node that lives, or between two processes."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from devhost.backends import backend
from devhost.backends.dra import claim_upkeep
from devhost.backends.dra.dra_backend import DraPublication
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.fake_kubelet.dra_kubelet import CLAIMS, node
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.records import ClaimRecord
from devhost.model.resource_state import State
from tests.dra.test_dra_host import SERIAL, SERIALS, TOKEN, TOKENS, edit_records, with_other_numbers
from tests.dra.world import NODE_PATH, PodResourcesLists, World, eventually

STEPS: Final = TOKENS.rstrip().removesuffix("}") + ", preStart: [{run: [sh, -c, 'exit 0']}]}\n"
BY_PLUGIN: Final = "held by default/q1 by the device plugin"
each_kind = pytest.mark.parametrize(
    ("config", "resource", "devices"),
    [
        pytest.param(SERIALS, SERIAL, ("fake-null", "fake-zero"), id="nodes"),
        pytest.param(TOKENS, TOKEN, ("0", "1", "2"), id="tokens"),
    ],
)


@pytest.fixture(autouse=True)
def poll_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the end of what is waited for be seen by its event alone."""
    monkeypatch.setattr(backend, "FREE_POLL_S", 3600.0)


def by_plugin(config: str) -> str:
    return config.replace("backend: dra", "backend: devicePlugin")


async def a_plugin_pod(
    world: World, lists: PodResourcesLists, plugins: SimulatedKubelet, resource: str
) -> None:
    """Run a pod ``q1`` with a device by the device plugin."""
    await world.until(resource, State.REGISTERED)
    await eventually(lambda: "Healthy" in plugins.devices(resource).values())
    started = await plugins.admit("q1", {"main": {resource: 1}})
    lists.by_plugin["q1"] = resource, started["main"]["deviceIds"][resource][0]
    await world.until_holders(resource)


async def a_claim_pod(world: World, lists: PodResourcesLists, resource: str, device: str) -> str:
    """Run a pod ``reader`` with a device by a claim ``u``; return the claim's name."""
    name = world.claim("u", resource, device)
    assert not (await world.kubelet.prepare(name, "u")).error
    lists.hold("reader", resource, device)
    await world.until_holders(resource)
    return name


async def end(plugins: SimulatedKubelet, lists: PodResourcesLists) -> None:
    lists.by_plugin.clear()
    await plugins.free("q1")


@each_kind
async def test_there_and_back_while_pods_hold(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    config: str,
    resource: str,
    devices: tuple[str, ...],
) -> None:
    async with world.run(by_plugin(config)):
        await a_plugin_pod(world, lists, plugins, resource)
        world.reload(config)
        await world.until(resource, State.DRAINING, "switching to DRA; held by default/q1")
        await plugins.wait(resource, 1, 0)
        assert not world.published()
        await end(plugins, lists)
        await world.kubelet.register()
        await world.until(resource, State.REGISTERED)
        await world.until_published(*devices)
        assert (await plugins.capacity())[resource] == (0, 0)

        name = await a_claim_pod(world, lists, resource, devices[0])
        late = world.claim("v", resource, devices[1])
        world.reload(by_plugin(config))
        reason = "switching to the device plugin; held by default/reader"
        await world.until(resource, State.DRAINING, reason)
        await world.until_published()
        refused = (await world.kubelet.prepare(late, "v")).error
        assert refused == f"{resource}: switching to the device plugin"
        assert (await plugins.capacity())[resource] == (0, 0)
        lists.pods.clear()
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(resource, len(devices), len(devices))
        refused = (await world.kubelet.prepare(late, "v")).error
        assert "its resource is served by the device plugin here" in refused


@each_kind
async def test_there_with_a_restart_in_the_middle(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    config: str,
    resource: str,
    devices: tuple[str, ...],
) -> None:
    async with world.run(by_plugin(config)):
        await a_plugin_pod(world, lists, plugins, resource)
    async with world.run(config):
        await world.kubelet.register()
        await world.until(resource, State.WAITING, BY_PLUGIN)
        served = world.served(resource)
        assert served is not None
        assert isinstance(served.publication, DraPublication)
        pool = served.publication.pool
        await eventually(lambda: pool.is_published)
        assert not world.published()
        late = world.claim("v", resource, lists.by_plugin["q1"][1])
        assert (await world.kubelet.prepare(late, "v")).error == f"{resource}: {BY_PLUGIN}"
        await end(plugins, lists)
        await world.until(resource, State.REGISTERED)
        await world.until_published(*devices)


@each_kind
async def test_back_with_a_restart_in_the_middle(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    config: str,
    resource: str,
    devices: tuple[str, ...],
) -> None:
    async with world.run(config):
        await world.kubelet.register()
        await world.until(resource, State.REGISTERED)
        name = await a_claim_pod(world, lists, resource, devices[0])
    async with world.run(by_plugin(config)):
        await world.kubelet.register()
        await world.until(resource, State.WAITING, f"held by claim default/{name}")
        await world.until_published()
        assert not plugins.registrations
        lists.pods.clear()
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(resource, len(devices), len(devices))


async def test_a_switch_that_is_taken_back_goes_on_as_before(
    world: World, lists: PodResourcesLists, plugins: SimulatedKubelet
) -> None:
    async with world.run(by_plugin(STEPS)):
        await a_plugin_pod(world, lists, plugins, TOKEN)
        world.reload(STEPS)
        await world.until(TOKEN, State.DRAINING)
        world.reload(by_plugin(STEPS))
        await plugins.wait(TOKEN, 3, 3)
        assert plugins.registrations == [TOKEN]
        await end(plugins, lists)
        await plugins.admit("q2", {"main": {TOKEN: 1}})


async def test_back_waits_for_a_claim_that_is_being_prepared(
    world: World, plugins: SimulatedKubelet
) -> None:
    begun, go = world.devices / "begun", world.devices / "go"
    steps = f"[{{run: [touch, {begun}]}}, {{waitFor: {go}}}]"
    config = TOKENS.rstrip().removesuffix("}") + f", preStart: {steps}}}\n"
    async with world.run(config):
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        name = world.claim("u", TOKEN, "0")
        prepared = asyncio.create_task(world.kubelet.prepare(name, "u"))
        await eventually(begun.exists)
        served = world.served(TOKEN)
        assert served is not None
        assert isinstance(served.publication, DraPublication)
        pool = served.publication.pool
        world.reload(by_plugin(config))
        await eventually(lambda: not world.dra.writer.has_slices(pool))
        assert not served.publication.drained
        go.touch()
        assert not (await prepared).error
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(TOKEN, 3, 3)


async def test_back_where_kubelet_is_too_old_for_dra(
    world: World, plugins: SimulatedKubelet
) -> None:
    world.api.put(NODE_PATH, node("v1.35.4"))
    async with world.run(TOKENS):
        await world.until(TOKEN, State.WAITING, "needs kubelet 1.36")
        world.reload(by_plugin(TOKENS))
        await plugins.wait(TOKEN, 3, 3)


async def test_a_claim_starts_again_while_its_resource_goes_back(
    world: World, plugins: SimulatedKubelet
) -> None:
    """The sandbox is another one then, also after a reboot in the middle."""
    async with world.run(SERIALS):
        await world.kubelet.register()
        await world.until(SERIAL, State.REGISTERED)
        name = world.claim("u", SERIAL, "fake-null")
        first = await world.kubelet.prepare(name, "u")
        spec = world.spec()
        world.reload(by_plugin(SERIALS))
        await world.until(SERIAL, State.DRAINING)
        await world.until_published()
        assert await world.kubelet.prepare(name, "u") == first
    shutil.rmtree(world.cdi)
    edit_records(world, lambda record: record.update(boot="an earlier one"))
    edit_records(world, with_other_numbers)
    async with world.run(by_plugin(SERIALS)):
        await world.kubelet.register()
        await world.until(SERIAL, State.WAITING, f"held by claim default/{name}")
        assert await world.kubelet.prepare(name, "u") == first
        assert world.spec() == spec


async def test_back_that_is_taken_back_while_it_waits_goes_on_by_dra(
    world: World, lists: PodResourcesLists, plugins: SimulatedKubelet
) -> None:
    async with world.run(TOKENS):
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        await a_claim_pod(world, lists, TOKEN, "0")
    async with world.run(by_plugin(TOKENS)):
        await world.kubelet.register()
        await world.until(TOKEN, State.WAITING, "held by claim")
        await world.until_holders(TOKEN)
        world.reload(TOKENS)
        await world.until_published("0", "1", "2")


async def test_dra_waits_until_kubelet_has_told_of_all_pods(
    world: World, lists: PodResourcesLists, plugins: SimulatedKubelet
) -> None:
    """After a restart of both, when nobody knows yet whom the device plugin has served."""
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, lists, plugins, TOKEN)
    later = world.pod_resources.with_name("later.sock")
    listening, world.pod_resources = world.pod_resources, later
    async with world.run(TOKENS):
        await world.kubelet.register()
        await world.until(TOKEN, State.WAITING, "kubelet has not told yet which pods")
        served = world.served(TOKEN)
        assert served is not None
        assert isinstance(served.publication, DraPublication)
        assert served.publication.pool.devices is None, "what is published stays"
        later.symlink_to(listening)
        await world.until(TOKEN, State.WAITING, BY_PLUGIN)
        await end(plugins, lists)
        await world.until_published("0", "1", "2")


def write_checkpoint(world: World, device: str) -> None:
    """Write what kubelet has allocated, which it does when it allocates or a plugin has a list."""
    entry = {"PodUID": "u", "ResourceName": TOKEN, "DeviceIDs": {"0": [device]}}
    path = world.plugins / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))


async def test_dra_does_not_wait_for_pods_that_kubelet_alone_has_not_forgotten(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, lists, plugins, TOKEN)
        write_checkpoint(world, lists.by_plugin["q1"][1])
        await end(plugins, lists)
        await eventually(lambda: not [*world.state.glob("records/*.json")])
    monkeypatch.setattr("devhost.node.holders.POLL_S", 3600.0)
    async with world.run(TOKENS):
        await world.kubelet.register()
        await world.until_published("0", "1", "2")


@pytest.mark.parametrize("is_lost", [False, True], ids=["recorded", "lost"])
async def test_dra_waits_for_pods_that_kubelet_does_not_list_yet(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
    is_lost: bool,
) -> None:
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, lists, plugins, TOKEN)
    write_checkpoint(world, lists.by_plugin["q1"][1])
    if is_lost:
        shutil.rmtree(world.state)
    listed, lists.by_plugin = lists.by_plugin, {}
    monkeypatch.setattr("devhost.node.holders.POLL_S", 3600.0)
    async with world.run(TOKENS):
        await world.kubelet.register()
        await world.until(TOKEN, State.WAITING, "kubelet has not told yet which pods")
        await eventually(lambda: world.host.parts.holders.unavailable_reason is None)
        lists.by_plugin = listed
        world.host.parts.holders.ask_soon.set()
        await world.until(TOKEN, State.WAITING, BY_PLUGIN)
        assert not world.published()


async def test_the_last_registration_of_a_device_plugin_is_without_steps(
    world: World, lists: PodResourcesLists, plugins: SimulatedKubelet
) -> None:
    """Else kubelet starts no pod with devices by DRA for minutes (kubernetes#141426)."""
    async with world.run(by_plugin(STEPS)):
        await a_plugin_pod(world, lists, plugins, TOKEN)
        assert plugins.options(TOKEN).pre_start_required
        world.reload(STEPS)
        await world.until(TOKEN, State.DRAINING, "held by default/q1")
        assert plugins.options(TOKEN).pre_start_required
        await end(plugins, lists)
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        assert not plugins.options(TOKEN).pre_start_required
        await world.until_published("0", "1", "2")
        await a_claim_pod(world, lists, TOKEN, "0")
        lists.pods.clear()
        await world.kubelet.unprepare("claim-1", "u")
        world.reload(by_plugin(STEPS))
        await plugins.wait(TOKEN, 3, 3)
        assert plugins.options(TOKEN).pre_start_required, "it has them again"


async def test_dra_waits_for_the_device_plugin_of_another_instance(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout starts one that knows DRA beside one that does not."""
    monkeypatch.setattr(backend, "FREE_POLL_S", 0.05)
    second = World.beside(world)
    async with world.run(by_plugin(TOKENS)):
        await world.kubelet.register()
        await plugins.wait(TOKEN, 3, 3)
        async with second.run(TOKENS):
            await second.until(TOKEN, State.WAITING, "serves it by a device plugin")
            await second.kubelet.register()
            await world.stop()
            await second.until_published("0", "1", "2")


async def test_back_goes_on_when_a_claim_has_gone_that_kubelet_cannot_unprepare(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod was deleted by force while the driver was away; also long after the start."""
    looked, is_offered = asyncio.Event(), PreparedClaims.is_offered

    def observed(claims: PreparedClaims, record: ClaimRecord) -> bool:
        looked.set()
        return is_offered(claims, record)

    monkeypatch.setattr(PreparedClaims, "is_offered", observed)
    monkeypatch.setattr(claim_upkeep, "_CONFIRM_S", 1.5)
    async with world.run(TOKENS):
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        name = await a_claim_pod(world, lists, TOKEN, "0")
    async with world.run(by_plugin(TOKENS)):
        await world.until(TOKEN, State.WAITING, f"held by claim default/{name}")
        await world.until_holders(TOKEN)
        await world.until_published()
        looked.clear()
        await looked.wait()
        world.api.remove(f"{CLAIMS}/{name}")
        lists.pods.clear()
        await plugins.wait(TOKEN, 3, 3)
        await eventually(lambda: not world.cdi_files(), world.cdi_files)


@each_kind
async def test_status_names_what_ends_a_claim_without_dra(
    world: World,
    lists: PodResourcesLists,
    plugins: SimulatedKubelet,
    config: str,
    resource: str,
    devices: tuple[str, ...],
) -> None:
    """Until then no pod gets its device by the device plugin."""
    async with world.run(config):
        await world.kubelet.register()
        await world.until(resource, State.REGISTERED)
        name = await a_claim_pod(world, lists, resource, devices[0])
    async with world.run(by_plugin(config), with_dra=False):
        lists.pods.clear()
        await plugins.wait(resource, len(devices), len(devices) - 1)
        trouble = next(text for text in world.troubles() if "without --dra" in text)
        assert trouble.startswith(f"{resource}: claim default/{name} has devices")
        await asyncio.to_thread(Path(trouble.partition("rm ")[2]).unlink)
        await plugins.wait(resource, len(devices), len(devices))
        assert not [text for text in world.troubles() if name in text]
