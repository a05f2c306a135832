"""A device that a pod holds stays in the list: the kubelet would call a missing one healthy."""

import asyncio
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.model.resource_state import State
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract, pod_status

SLOT, OTHER = "example.com/slot", "example.com/other"
WELL, ILL = "Healthy", "Unhealthy"


def config(slot: str = "", sources: str = "sources: [static: 1]") -> str:
    """Return a configuration with another resource, and this one if something is said of it."""
    declared = f"  - {{name: {SLOT}, prefer: packed, {slot}}}\n" if slot else ""
    return f"version: v1\nresources:\n{declared}  - {{name: {OTHER}, {sources}}}\n"


def start(hosting: Hosting, text: str) -> None:
    hosting.start(text, policy=Policy(allow_exec=True))


async def hold(kubelet: Kubelet, *pods: str) -> None:
    """Admit pods; by `packed`, each gets the next device in natural order."""
    for pod in pods:
        await kubelet.admit(pod, {"app": {SLOT: 1}})


async def status(kubelet: Kubelet, pod: str, **wanted: str) -> None:
    await pod_status(kubelet, pod, SLOT, wanted)


def state(hosting: Hosting) -> tuple[State, str] | None:
    runner = hosting.served(SLOT)
    return (runner.status.state, runner.status.reason or "") if runner else None


async def known(hosting: Hosting, *ids: str) -> None:
    """Wait until devhost knows that these are held, and no others."""
    holders = hosting.hosts[-1].parts.holders
    await until(lambda: holders.held_ids(SLOT) == set(ids), "what pods hold is known")


async def still_listed(kubelet: Kubelet, hosting: Hosting, count: int) -> None:
    """Wait longer than an ID has to stay, and see that these are there."""
    await kubelet.wait(SLOT, count, 0)
    await asyncio.sleep(2 * hosting.leave_after)
    assert (await kubelet.capacity())[SLOT] == (count, 0)


@contract
async def test_held_devices_of_a_removed_resource_drain(started: Kubelet, hosting: Hosting) -> None:
    start(hosting, config("sources: [static: [a, b, c]]"))
    await started.wait(SLOT, 3, 3)
    await hold(started, "one", "two")
    await known(hosting, "a", "b")
    hosting.reload(config())
    await still_listed(started, hosting, 2)
    await status(started, "one", a=ILL)
    reason = "removed from the configuration; held by default/one, default/two"
    assert state(hosting) == (State.DRAINING, reason)
    await started.restart()  # they are registered again
    await started.wait(OTHER, 1, 1)
    await still_listed(started, hosting, 2)
    await started.free("one")
    await started.wait(SLOT, 1, 0)
    await until(lambda: "one" not in (state(hosting) or ("", ""))[1], "only two holds one")
    await status(started, "two", b=ILL)
    await started.free("two")
    await started.wait(SLOT, 0, 0)
    await until(lambda: hosting.served(SLOT) is None, "its end")
    await started.wait(OTHER, 1, 1)


@contract
async def test_held_device_is_prepared(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    log = directory / "log"
    script = directory / "step.sh"
    script.write_text(f"echo $1 >>{log}")
    step = f'preStart: [{{run: [sh, {script}, "${{id}}"], every: start}}]'
    start(hosting, config(f"sources: [static: [a]], {step}"))
    await started.wait(SLOT, 1, 1)
    await hold(started, "pod")
    await known(hosting, "a")
    hosting.reload(config())
    await still_listed(started, hosting, 1)
    await started.start_container("pod", "app")
    assert log.read_text() == "a\na\n"


@contract
async def test_held_device_is_listed(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    colas = directory / "colas"
    for name in "abc":
        (colas / name).touch()
    start(hosting, config(f"sources: [directory: {colas}], removeMissingAfter: 100ms"))
    await started.wait(SLOT, 3, 3)
    await hold(started, "pod")
    (colas / "a").unlink()
    (colas / "b").unlink()
    await started.wait(SLOT, 2, 1)
    await asyncio.sleep(2 * hosting.leave_after)
    assert (await started.capacity())[SLOT] == (2, 1)
    await status(started, "pod", a=ILL)
    (colas / "a").touch()
    await started.wait(SLOT, 2, 2)
    await status(started, "pod", a=WELL)
    (colas / "a").unlink()
    await started.wait(SLOT, 2, 1)
    await started.free("pod")
    await started.wait(SLOT, 1, 1)


@contract
async def test_held_share_keeps_its_device(started: Kubelet, hosting: Hosting) -> None:
    """The first share, which no pod has, leaves the list before it."""
    start(hosting, config("sources: [static: 1], replicas: 2"))
    await started.wait(SLOT, 2, 2)
    await hold(started, "one", "two")
    await started.free("one")
    await known(hosting, "0::1")
    hosting.reload(config("sources: [static: 1]"))
    await still_listed(started, hosting, 2)
    await started.free("two")
    await started.wait(SLOT, 1, 1)
