"""What many resources have to do is done some at a time: calls of the kubelet come in between."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey
from devhost.host import supervisor
from devhost.host.ownership import look_order
from devhost.host.resource.runner import Runner
from devhost.host.resource.surveyor import Surveyor
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.hosting import Hosting

COUNT = 60


@pytest.fixture
async def kubelet(directory: Path) -> AsyncIterator[SimulatedKubelet]:
    kubelet = SimulatedKubelet(directory / "plugins")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


def config(tokens: int) -> str:
    return "version: v1\nresources:\n" + "".join(
        f"- {{name: example.com/r{number}, sources: [static: {tokens}]}}\n"
        for number in range(COUNT)
    )


async def all_have(kubelet: SimulatedKubelet, tokens: int) -> None:
    for number in range(COUNT):
        await kubelet.wait(f"example.com/r{number}", tokens, tokens)


async def test_few_resources_are_scanned_at_a_time(
    kubelet: SimulatedKubelet,
    hosting: Hosting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(look_order, "_LONG_S", 60.0)
    survey, most, scanning = Surveyor.survey, 0, 0

    async def counted(self: Surveyor, scanner: Scanner, *more: frozenset[str] | None) -> Survey:
        nonlocal most, scanning
        scanning += 1
        most = max(most, scanning)
        try:
            return await survey(self, scanner, *more)
        finally:
            scanning -= 1

    monkeypatch.setattr(Surveyor, "survey", counted)
    hosting.start(config(1))
    await all_have(kubelet, 1)
    hosting.reload(config(2))
    await all_have(kubelet, 2)
    assert 1 < most <= look_order._AT_A_TIME


async def test_one_that_waits_for_the_host_lets_others_be_scanned(
    kubelet: SimulatedKubelet,
    hosting: Hosting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many wait."""
    survey, sick = Surveyor.survey, {f"example.com/r{number}" for number in range(COUNT - 1)}

    async def hanging(self: Surveyor, scanner: Scanner, *more: frozenset[str] | None) -> Survey:
        if scanner.resource.name in sick:
            await asyncio.Event().wait()
        return await survey(self, scanner, *more)

    monkeypatch.setattr(Surveyor, "survey", hanging)
    hosting.start(config(1))
    await kubelet.wait(f"example.com/r{COUNT - 1}", 1, 1)


async def test_a_configuration_is_applied_in_slices(
    kubelet: SimulatedKubelet,
    hosting: Hosting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one that comes meanwhile takes its place when all was applied."""
    loop, turns, changed = asyncio.get_running_loop(), 0, Counter[int]()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    change = Runner.change

    def counted(self: Runner, scanner: Scanner) -> None:
        changed[turns] += 1
        change(self, scanner)

    hosting.start(config(1))
    await all_have(kubelet, 1)
    monkeypatch.setattr(Runner, "change", counted)
    loop.call_soon(turn)
    hosting.reload(config(2))
    await all_have(kubelet, 2)
    assert changed.total() == COUNT
    assert max(changed.values()) <= 2 * supervisor._APPLIED_AT_A_TIME
    hosting.reload(config(3))
    hosting.reload(config(4))
    await all_have(kubelet, 4)
