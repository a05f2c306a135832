"""Behaviour of kubelet that devhost goes by, and the stand-in does not have."""

import pytest

from devhost.backends.podresources import PodResources
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet
from tests.support.scripted_plugin import COLA, Node, healthy, listed, nothing
from tests.support.waiting import until_said

pytestmark = pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)


async def test_sidecars_are_listed_init_containers_not(node: Node, kubelet: RealKubelet) -> None:
    await node.registered(*healthy("a", "b", "c"))
    containers = {"app": {COLA: 1}, "setup": {COLA: 2}, "proxy": {COLA: 1}}
    answers = await kubelet.admit("one", containers, init=("setup",), sidecars=("proxy",))
    assert list(answers) == ["setup", "proxy", "app"]
    ids = {name: answer["deviceIds"][COLA] for name, answer in answers.items()}
    # What an init container has had goes to those after it, and a sidecar keeps its own.
    assert sorted([*ids["app"], *ids["proxy"]]) == ids["setup"]
    held = {name: [(COLA, token) for token in ids[name]] for name in ("proxy", "app")}
    assert await listed(kubelet) == {"one": held}


async def test_pod_ended_during_allocate_frees_a_device_twice(
    node: Node, kubelet: RealKubelet
) -> None:
    """The kubelet's own bug: to clear up after that pod forgets what is just being allocated.

    Any List clears up, as `free` does here. So a plugin must bear to be asked for a device that
    another pod still has.
    """
    plugin = await node.registered(*healthy("a", "b"))
    await kubelet.admit("ends", {"x": {COLA: 1}})

    async def on_allocate() -> None:
        plugin.on_allocate = nothing
        await kubelet.free("ends")

    plugin.on_allocate = on_allocate
    stays = await kubelet.admit("stays", {"x": {COLA: 1}})
    new = await kubelet.admit("new", {"x": {COLA: 2}})
    assert new["x"]["deviceIds"][COLA] == ["a", "b"]
    assert await listed(kubelet) == {
        "stays": {"x": [(COLA, token) for token in stays["x"]["deviceIds"][COLA]]},
        "new": {"x": [(COLA, "a"), (COLA, "b")]},
    }


async def test_checkpoint_tells_of_devices_of_pods_that_are_not_listed(
    node: Node, kubelet: RealKubelet
) -> None:
    """A kubelet that starts knows by it what pods hold, before it knows the pods."""
    client = PodResources(kubelet.pod_resources, kubelet.plugin_dir)

    async def lists_all() -> bool:
        return await client.covers_checkpoint((await client.list_pods()).held)

    await node.registered(*healthy("a", "b"))
    await until_said(lists_all, bool)  # the checkpoint is written after the capacity is known
    await kubelet.admit("one", {"app": {COLA: 1}})
    assert await lists_all()
    await kubelet.kill()
    await kubelet.start(knows_pods=False)
    await node.registered(*healthy("a", "b"))
    assert not await lists_all()
    await kubelet.restart()
    assert await lists_all()
