"""A resource that another device plugin serves on the node already is not taken over."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.backends.deviceplugin.registration import DevicePluginBackend, run_server
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from devhost.model.resource_state import State
from tests.support.answers import Nobody
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract

GPU, OTHER = "vendor.com/gpu", "example.com/other"
FLAG = f"--allow-resource {GPU}"
REASON = f"another device plugin on this node serves {GPU}: remove it, or allow both with {FLAG}"


class Vendor(Nobody):
    name = GPU

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        return Allocation(device_ids=tuple(offered.id for offered in ids), envs={"WHO": "vendor"})

    def observe_allocate(self, result: str, seconds: float) -> None:
        pass


@contextlib.asynccontextmanager
async def vendor(directory: Path) -> AsyncIterator[None]:
    device_list = DeviceList()
    device_list.update({"gpu0": AdvertisedDevice(True), "gpu1": AdvertisedDevice(True)})
    plugins = DevicePluginBackend(directory / "plugins", directory / "pr.sock")
    async with run_server(cast("Any", Vendor()), device_list, plugins, "vendor.sock"):
        await plugins.kubelet.register(GPU, "vendor.sock")
        yield


def config(owner: str, count: int) -> str:
    gpu = f"{{name: {GPU}, sources: [static: {count}], allocate: {{env: {{WHO: {owner}}}}}}}"
    return f"version: v1\nresources:\n- {gpu}\n- {{name: {OTHER}, sources: [static: 1]}}\n"


async def who_answers(kubelet: Kubelet) -> Any:
    answer = await kubelet.admit("pod", {"app": {GPU: 1}})
    await kubelet.free("pod")
    return answer["app"]["envs"]["WHO"]


@contract
async def test_rivals_resource_waits(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """The reason is in the status; other resources are served."""
    async with vendor(directory):
        await started.wait(GPU, 2, 2)
        hosting.start(config("editor", 8))
        await started.wait(OTHER, 1, 1)
        await until(lambda: hosting.status(GPU).reason == REASON, "why it waits")
        assert hosting.status(GPU).state is State.WAITING
        hosting.reload(config("editor", 7))
        assert await who_answers(started) == "vendor"
        assert (await started.capacity())[GPU] == (2, 2)
    await started.wait(GPU, 7, 7)
    assert await who_answers(started) == "editor"


async def test_rival_allowed_by_flag(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """The flag needs the full name: a matching pattern is not meant for this."""
    async with vendor(directory):
        await started.wait(GPU, 2, 2)
        loose = Policy(allow_resources=("*",))
        hosting.start(config("a", 8), policy=loose)
        await until(lambda: hosting.status(GPU).reason == REASON, "why it waits")
        await hosting.stop()
        literal = Policy(allow_resources=(GPU, OTHER))
        hosting.start(config("b", 8), policy=literal)
        await hosting.until(GPU, State.REGISTERED)


@contract
@pytest.mark.parametrize("kubelet_restarts", [False, True])
async def test_resource_that_devhost_served_before_does_not_wait(
    started: Kubelet, hosting: Hosting, directory: Path, kubelet_restarts: bool
) -> None:
    """After a restart kubelet knows its names, with a state directory and without."""
    for state in (None, None, directory / "state", directory / "state", None):
        hosting.start(config("editor", 8), state_dir=state)
        await started.wait(GPU, 8, 8)
        if kubelet_restarts:
            await started.restart()
            await started.wait(GPU, 8, 8)
        await hosting.stop()


async def test_rival_unknown_is_served(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """A node without pod-resources must not be locked out of its own names."""
    async with vendor(directory):
        await started.wait(GPU, 2, 2)
        hosting.start(config("editor", 8), pod_resources=directory / "nobody.sock")
        await hosting.until(GPU, State.REGISTERED)
