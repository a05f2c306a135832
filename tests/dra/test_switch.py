"""A resource goes from one backend to the other on a node that lives, or between two processes."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from devhost.backends import backend
from devhost.backends.dra import claim_upkeep
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from tests.dra.test_dra_host import SERIAL, SERIALS, TOKEN, TOKENS, edit_records, with_other_numbers
from tests.dra.world import NODE_PATH, World, eventually
from tests.support.dra_kubelet import CLAIMS, node

STEPS: Final = TOKENS.rstrip().removesuffix("}") + ", preStart: [{run: [sh, -c, 'exit 0']}]}\n"
BY_PLUGIN: Final = "held by default/q1 by the device plugin"
Kind = tuple[str, str, tuple[str, ...]]  # a configuration, its resource, and the devices of that
each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((SERIALS, SERIAL, ("fake-null", "fake-zero")), id="nodes"),
        pytest.param((TOKENS, TOKEN, ("0", "1", "2")), id="tokens"),
    ],
)


@pytest.fixture(autouse=True)
def poll_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the end of what is waited for be seen by its event alone."""
    monkeypatch.setattr(backend, "FREE_POLL_S", 3600.0)


def by_plugin(config: str) -> str:
    return config.replace("backend: dra", "backend: devicePlugin")


async def a_plugin_pod(world: World, plugins: SimulatedKubelet, resource: str) -> None:
    """Run a pod ``q1`` with a device by the device plugin."""
    await world.until(resource, State.REGISTERED)
    await eventually(lambda: "Healthy" in plugins.devices(resource).values())
    started = await plugins.admit("q1", {"main": {resource: 1}})
    world.lists.by_plugin["q1"] = resource, started["main"]["deviceIds"][resource][0]
    await world.until_holders(resource)


async def a_claim_pod(world: World, resource: str, device: str) -> str:
    """Run a pod ``reader`` with a device by a claim ``u``; return the claim's name."""
    name = await world.prepare("u", resource, device)
    world.lists.hold("reader", resource, device)
    await world.until_holders(resource)
    return name


async def end(world: World, plugins: SimulatedKubelet) -> None:
    world.lists.by_plugin.clear()
    await plugins.free("q1")


@each_kind
async def test_there_and_back_while_pods_hold(
    world: World, plugins: SimulatedKubelet, kind: Kind
) -> None:
    config, resource, devices = kind
    async with world.run(by_plugin(config)):
        await a_plugin_pod(world, plugins, resource)
        world.reload(config)
        await world.until(resource, State.DRAINING, "switching to DRA; held by default/q1")
        await plugins.wait(resource, 1, 0)
        assert not world.published()
        await end(world, plugins)
        await world.kubelet.register()
        await world.until(resource, State.REGISTERED)
        await world.until_published(*devices)
        assert (await plugins.capacity())[resource] == (0, 0)

        name = await a_claim_pod(world, resource, devices[0])
        late = world.claim("v", resource, devices[1])
        world.reload(by_plugin(config))
        reason = "switching to the device plugin; held by default/reader"
        await world.until(resource, State.DRAINING, reason)
        await world.until_published()
        refused = (await world.kubelet.prepare(late, "v")).error
        assert refused == f"{resource}: switching to the device plugin"
        assert (await plugins.capacity())[resource] == (0, 0)
        world.lists.pods.clear()
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(resource, len(devices), len(devices))
        refused = (await world.kubelet.prepare(late, "v")).error
        assert "its resource is served by the device plugin here" in refused


@each_kind
async def test_there_with_a_restart_in_the_middle(
    world: World, plugins: SimulatedKubelet, kind: Kind
) -> None:
    config, resource, devices = kind
    async with world.run(by_plugin(config)):
        await a_plugin_pod(world, plugins, resource)
    async with world.serve(config):
        await world.until(resource, State.WAITING, BY_PLUGIN)
        pool = world.offer(resource).pool
        await eventually(lambda: pool.is_published)
        assert not world.published()
        late = world.claim("v", resource, world.lists.by_plugin["q1"][1])
        assert (await world.kubelet.prepare(late, "v")).error == f"{resource}: {BY_PLUGIN}"
        await end(world, plugins)
        await world.until(resource, State.REGISTERED)
        await world.until_published(*devices)


@each_kind
async def test_back_with_a_restart_in_the_middle(
    world: World, plugins: SimulatedKubelet, kind: Kind
) -> None:
    config, resource, devices = kind
    async with world.serve(config, resource):
        name = await a_claim_pod(world, resource, devices[0])
    async with world.serve(by_plugin(config)):
        await world.until(resource, State.WAITING, f"held by claim default/{name}")
        await world.until_published()
        assert not plugins.registrations
        world.lists.pods.clear()
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(resource, len(devices), len(devices))


async def test_switch_that_is_taken_back(world: World, plugins: SimulatedKubelet) -> None:
    async with world.run(by_plugin(STEPS)):
        await a_plugin_pod(world, plugins, TOKEN)
        world.reload(STEPS)
        await world.until(TOKEN, State.DRAINING)
        world.reload(by_plugin(STEPS))
        await plugins.wait(TOKEN, 3, 3)
        assert plugins.registrations == [TOKEN]
        await end(world, plugins)
        await plugins.admit("q2", {"main": {TOKEN: 1}})


async def test_back_waits_for_a_starting_claim(world: World, plugins: SimulatedKubelet) -> None:
    begun, go = world.devices / "begun", world.devices / "go"
    steps = f"[{{run: [touch, {begun}]}}, {{waitFor: {go}}}]"
    config = TOKENS.rstrip().removesuffix("}") + f", preStart: {steps}}}\n"
    async with world.serve(config, TOKEN):
        name = world.claim("u", TOKEN, "0")
        prepared = asyncio.create_task(world.kubelet.prepare(name, "u"))
        await eventually(begun.exists)
        pool = world.offer(TOKEN).pool
        world.reload(by_plugin(config))
        await eventually(lambda: not world.dra.writer.slices.has_slices(pool))
        assert not world.offer(TOKEN).drained
        go.touch()
        assert not (await prepared).error
        assert not await world.kubelet.unprepare(name, "u")
        await plugins.wait(TOKEN, 3, 3)


async def test_back_where_kubelet_is_too_old(world: World, plugins: SimulatedKubelet) -> None:
    world.api.put(NODE_PATH, node("v1.35.4"))
    async with world.run(TOKENS):
        await world.until(TOKEN, State.WAITING, "needs kubelet 1.36")
        world.reload(by_plugin(TOKENS))
        await plugins.wait(TOKEN, 3, 3)


async def test_claim_starts_again_on_the_way_back(world: World, plugins: SimulatedKubelet) -> None:
    async with world.serve(SERIALS, SERIAL):
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
    async with world.serve(by_plugin(SERIALS)):
        await world.until(SERIAL, State.WAITING, f"held by claim default/{name}")
        assert await world.kubelet.prepare(name, "u") == first
        assert world.spec() == spec


async def test_back_that_is_taken_back(world: World, plugins: SimulatedKubelet) -> None:
    async with world.serve(TOKENS, TOKEN):
        await a_claim_pod(world, TOKEN, "0")
    async with world.serve(by_plugin(TOKENS)):
        await world.until(TOKEN, State.WAITING, "held by claim")
        await world.until_holders(TOKEN)
        world.reload(TOKENS)
        await world.until_published("0", "1", "2")


async def test_dra_waits_for_the_list_of_pods(world: World, plugins: SimulatedKubelet) -> None:
    """After a restart of both, when nobody knows yet whom the device plugin has served."""
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, plugins, TOKEN)
    later = world.pod_resources.with_name("later.sock")
    listening, world.pod_resources = world.pod_resources, later
    async with world.serve(TOKENS):
        await world.until(TOKEN, State.WAITING, "kubelet has not told yet which pods")
        assert world.offer(TOKEN).pool.devices is None, "what is published stays"
        later.symlink_to(listening)
        await world.until(TOKEN, State.WAITING, BY_PLUGIN)
        await end(world, plugins)
        await world.until_published("0", "1", "2")


def write_checkpoint(world: World, device: str) -> None:
    """Write what kubelet has allocated, which it does when it allocates or a plugin has a list."""
    entry = {"PodUID": "u", "ResourceName": TOKEN, "DeviceIDs": {"0": [device]}}
    path = world.plugins / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))


async def test_dra_ignores_pods_of_kubelet_alone(
    world: World, plugins: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, plugins, TOKEN)
        write_checkpoint(world, world.lists.by_plugin["q1"][1])
        await end(world, plugins)
        await eventually(lambda: not [*world.state.glob("records/*.json")])
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 3600.0)
    async with world.serve(TOKENS):
        await world.until_published("0", "1", "2")


@pytest.mark.parametrize("is_lost", [False, True], ids=["recorded", "lost"])
async def test_dra_waits_for_unlisted_pods(
    world: World, plugins: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    async with world.run(by_plugin(TOKENS)):
        await a_plugin_pod(world, plugins, TOKEN)
    write_checkpoint(world, world.lists.by_plugin["q1"][1])
    if is_lost:
        shutil.rmtree(world.state)
    listed, world.lists.by_plugin = world.lists.by_plugin, {}
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 3600.0)
    async with world.serve(TOKENS):
        await world.until(TOKEN, State.WAITING, "kubelet has not told yet which pods")
        await eventually(lambda: world.host.parts.holders.unavailable_reason is None)
        world.lists.by_plugin = listed
        world.host.parts.holders.ask_soon.set()
        await world.until(TOKEN, State.WAITING, BY_PLUGIN)
        assert not world.published()


async def test_last_registration_has_no_steps(world: World, plugins: SimulatedKubelet) -> None:
    """Else kubelet starts no pod with devices by DRA for minutes (kubernetes#141426)."""
    async with world.run(by_plugin(STEPS)):
        await a_plugin_pod(world, plugins, TOKEN)
        assert plugins.options(TOKEN).pre_start_required
        world.reload(STEPS)
        await world.until(TOKEN, State.DRAINING, "held by default/q1")
        assert plugins.options(TOKEN).pre_start_required
        await end(world, plugins)
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        assert not plugins.options(TOKEN).pre_start_required
        await world.until_published("0", "1", "2")
        await a_claim_pod(world, TOKEN, "0")
        world.lists.pods.clear()
        await world.kubelet.unprepare("claim-1", "u")
        world.reload(by_plugin(STEPS))
        await plugins.wait(TOKEN, 3, 3)
        assert plugins.options(TOKEN).pre_start_required, "it has them again"


async def test_back_after_a_forced_deletion(
    world: World, plugins: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod was deleted by force while the driver was away; also long after the start."""
    looked, are_offered = asyncio.Event(), PreparedClaims.are_offered

    def observed(claims: PreparedClaims) -> bool:
        looked.set()
        return are_offered(claims)

    monkeypatch.setattr(PreparedClaims, "are_offered", observed)
    monkeypatch.setattr(claim_upkeep, "_CONFIRM_S", 1.5)
    async with world.serve(TOKENS, TOKEN):
        name = await a_claim_pod(world, TOKEN, "0")
    async with world.run(by_plugin(TOKENS)):
        await world.until(TOKEN, State.WAITING, f"held by claim default/{name}")
        await world.until_holders(TOKEN)
        await world.until_published()
        looked.clear()
        await looked.wait()
        world.api.remove(f"{CLAIMS}/{name}")
        world.lists.pods.clear()
        await plugins.wait(TOKEN, 3, 3)
        await eventually(lambda: not world.cdi_files(), world.cdi_files)


@each_kind
async def test_status_names_claims_without_dra(
    world: World, plugins: SimulatedKubelet, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    config, resource, devices = kind
    async with world.serve(config, resource):
        name = await a_claim_pod(world, resource, devices[0])
    async with world.run(by_plugin(config), with_dra=False):
        world.lists.pods.clear()
        await plugins.wait(resource, len(devices), len(devices) - 1)
        trouble = next(text for text in world.troubles() if "without --dra" in text)
        assert trouble.startswith(f"{resource}: claim default/{name} has devices")
        assert "claims hold devices, and do not end without --dra" in caplog.messages
        await asyncio.to_thread(Path(trouble.partition("rm ")[2]).unlink)
        await plugins.wait(resource, len(devices), len(devices))
        assert not [text for text in world.troubles() if name in text]
