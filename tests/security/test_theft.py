"""Attacks on a device that another resource offers: a link to it in a directory that is watched."""

import os
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import until
from tests.support.devices import skip_reasons
from tests.support.hosting import Hosting
from tests.support.root import needs_root

TENANT, HSM = "example.com/tenant", "example.com/hsm"


@pytest.fixture
def node(directory: Path) -> Path:
    (directory / "tenant").mkdir()
    path = directory / "colas" / "hsm0"
    path.touch()
    return path


def config(
    directory: Path, *, tenant: str = "", hsm: str = "", order: tuple[str, ...] = (TENANT, HSM)
) -> str:
    """Return a configuration in which the tenant's resource is the first, unless the order says."""
    resources = {
        TENANT: f"{{name: {TENANT}, sources: [glob: '{directory}/tenant/*']{tenant}}}",
        HSM: f"{{name: {HSM}, sources: [glob: '{directory}/colas/*']{hsm}}}",
    }
    return "\n- ".join(("version: v1\nresources:", *(resources[name] for name in order)))


async def left(hosting: Hosting, name: str = "x") -> None:
    """Wait until the tenant's resource has found its link, and has left it."""

    def skipped() -> bool:
        return any(
            candidate.endswith(name) and reason == f"{HSM} offers it already"
            for runner in hosting.hosts[-1].resources
            for candidate, reason in skip_reasons(runner.devices.offered.skipped).items()
        )

    await until(skipped, "the tenant's link is left to the other resource")


async def test_symlink_does_not_take_a_device_away_by_a_reload_or_a_rescan(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path, node: Path
) -> None:
    """The tenant's resource is the first in the file; all is scanned after a reload."""
    hosting.start(config(directory))
    await standin.wait(HSM, 1, 1)
    await standin.admit("victim", {"app": {HSM: 1}})
    (directory / "tenant" / "x").symlink_to(node)
    await left(hosting)
    hosting.reload(config(directory, tenant=", maxDevices: 7", hsm=", maxDevices: 8"))
    for runner in hosting.hosts[-1].resources:
        runner.scan.rescan()
    (directory / "tenant" / "x").rename(directory / "tenant" / "y")
    await left(hosting, "y")
    assert (await standin.capacity())[HSM] == (1, 1)


async def test_symlink_does_not_take_a_device_away_after_an_edit_that_brought_it_back_behind(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path, node: Path
) -> None:
    """The edit touched what the tenant's resource declares as little as what it finds."""
    hosting.start(config(directory, order=(HSM, TENANT)))
    await standin.wait(HSM, 1, 1)
    await standin.wait(TENANT, 0, 0)
    hosting.reload(config(directory, order=(TENANT,)))
    await until(lambda: hosting.served(HSM) is None, "its end")
    hosting.reload(config(directory, order=(TENANT, HSM)))
    await standin.wait(HSM, 1, 1)
    await standin.admit("victim", {"app": {HSM: 1}})
    (directory / "tenant" / "x").symlink_to(node)
    await left(hosting)
    assert (await standin.capacity())[HSM] == (1, 1)


async def test_symlink_does_not_take_a_device_away_at_a_restart(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path, node: Path
) -> None:
    """The state directory says what pods got; devhost, and the kubelet too, may start again."""
    state = directory / "state"
    hosting.start(config(directory), state_dir=state)
    await standin.wait(HSM, 1, 1)
    await standin.admit("victim", {"app": {HSM: 1}})
    for number in range(3):
        await hosting.stop()
        (directory / "tenant" / f"x{number}").symlink_to(node)
        if number == 1:
            await standin.restart()
        hosting.start(config(directory), state_dir=state)
        await standin.wait(HSM, 1, 1)
        await left(hosting, "x0")


@needs_root
async def test_new_node_waits(standin: SimulatedKubelet, hosting: Hosting, directory: Path) -> None:
    """udev makes them a moment later; the order of the file decides, not the first scan."""
    hosting.settle_s = 3600.0
    dev = directory / "root" / "dev"
    links = dev / "serial" / "by-id"
    links.mkdir(parents=True)
    first = f"{{name: {HSM}, sources: [glob: '/dev/serial/by-id/*']}}"
    second = f"{{name: {TENANT}, sources: [dev: 'tty[0-9]']}}"
    os.mknod(dev / "tty0", 0o020660, os.makedev(1, 3))
    hosting.start(f"version: v1\nresources: [{first}, {second}]\n", root=directory / "root")
    await standin.wait(HSM, 0, 0)
    await standin.wait(TENANT, 1, 1)  # at the start it has no link
    os.mknod(dev / "tty1", 0o020660, os.makedev(1, 5))
    runner = hosting.served(TENANT)
    assert runner is not None
    await until(lambda: runner.devices.offered.settling, "the new node waits")
    assert list(runner.devices.offered.devices) == ["tty0"]
    (links / "usb-x").symlink_to("../../tty1")
    await standin.wait(HSM, 1, 1)
    assert (await standin.capacity())[TENANT] == (1, 1)
