"""A kubelet since 1.34 dies when an ID that it has picked leaves the list: it never does.

That such an ID can bring a kubelet down at all is shown with the rule for leaving IDs switched off.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.compiled import Declaration
from devhost.backends.deviceplugin.device_list import ListStreams
from devhost.backends.deviceplugin.servicer import Servicer
from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.realkubelet import KubeletDied

FILES = "example.com/files"

pytestmark = contract


class Held:
    """A call that does not end before `end`."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.release.wait(60)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.release.set()


async def dies(kubelet: Kubelet, admission: asyncio.Task[Any]) -> None:
    """Look that an admission brings the kubelet down, or not where it is older."""
    if isinstance(kubelet, SimulatedKubelet):
        with pytest.raises(RuntimeError, match="kubelet panic"):
            await admission
    elif kubelet.version >= (1, 34):
        with pytest.raises(KubeletDied, match="nil pointer dereference"):
            await admission
        await kubelet.kill()  # what is left of it
    else:
        await admission


@pytest.fixture
async def admission(
    started: Kubelet, hosting: Hosting, directory: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Task[Any]:
    """A pod whose device vanishes while the kubelet waits for the answer to Allocate."""

    allocate = Declaration.allocate

    def holding(*arguments: Any) -> object:
        answer = allocate(*arguments)
        held()
        return answer

    monkeypatch.setattr(Declaration, "allocate", holding)
    monkeypatch.setattr("devhost.backends.deviceplugin.servicer.ALLOCATE_TIMEOUT_S", 60.0)
    return await vanishing(started, hosting, directory, held)


async def vanishing(
    kubelet: Kubelet, hosting: Hosting, directory: Path, held: Held
) -> asyncio.Task[Any]:
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    source = f"sources: [directory: {directory}/colas], removeMissingAfter: 0s"
    hosting.start(f"version: v1\nresources: [{{name: {FILES}, {source}}}]\n")
    await kubelet.wait(FILES, 2, 2)
    admission = asyncio.create_task(kubelet.admit("pod", {"app": {FILES: 1}}))
    await until(held.begun.is_set)
    (directory / "colas" / "a").unlink()
    (directory / "colas" / "b").unlink()
    return admission


@pytest.fixture
def rule_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListStreams, "is_settled_unhealthy", lambda *_: True)


@pytest.mark.usefixtures("rule_off")
async def test_id_gone_is_fatal(started: Kubelet, held: Held, admission: asyncio.Task[Any]) -> None:
    """An ID that leaves the list during Allocate brings a kubelet down, and is seen to."""
    await started.wait(FILES, 0, 0)
    held.release.set()
    await dies(started, admission)


async def test_leaving_id_waits_until_allocate_has_ended(
    started: Kubelet, hosting: Hosting, held: Held, admission: asyncio.Task[Any]
) -> None:
    """The same with the rule: the ID waits, unhealthy, until the call has ended."""
    await started.wait(FILES, 2, 0)
    await asyncio.sleep(3 * hosting.leave_after)
    assert (await started.capacity())[FILES] == (2, 0)
    held.release.set()
    assert (await admission)["app"]["deviceIds"][FILES]
    await started.free("pod")
    await started.wait(FILES, 0, 0)


@pytest.mark.usefixtures("rule_off")
async def test_leaving_id_that_left_before_allocate_is_refused(
    started: Kubelet, hosting: Hosting, directory: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line: Allocate refuses what is not listed; the kubelet would die of an answer."""
    prefer = Servicer.GetPreferredAllocation

    async def slow(self: Servicer, request: Any, context: Any) -> Any:
        await asyncio.get_running_loop().run_in_executor(None, held)
        return await prefer(self, request, context)

    monkeypatch.setattr(Servicer, "GetPreferredAllocation", slow)
    admission = await vanishing(started, hosting, directory, held)
    await started.wait(FILES, 0, 0)
    held.release.set()
    with pytest.raises(AdmissionError, match="there is no device"):
        await admission
