"""What many resources have to do is done some at a time: calls of the kubelet come in between."""

import asyncio
from collections import Counter

import pytest

from devhost.host.ownership import decisions
from devhost.host.resource.scans import Scans
from devhost.model.device import Snapshot
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.hosting import Hosting

COUNT = 60


def config(tokens: int) -> str:
    return "version: v1\nresources:\n" + "".join(
        f"- {{name: example.com/r{number}, sources: [static: {tokens}]}}\n"
        for number in range(COUNT)
    )


async def all_have(standin: SimulatedKubelet, tokens: int) -> None:
    for number in range(COUNT):
        await standin.wait(f"example.com/r{number}", tokens, tokens)


async def test_many_resources_begin_to_scan_one_after_the_other(
    standin: SimulatedKubelet, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of the event loop for each, between which calls of the kubelet come."""
    loop, rounds, begun = asyncio.get_running_loop(), 0, Counter[int]()
    scan = Scans.scan

    def next_round() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(next_round)

    async def counted(
        self: Scans, previous: Snapshot, since: float, *, thorough: bool
    ) -> Snapshot | None:
        begun[rounds] += 1
        return await scan(self, previous, since, thorough=thorough)

    hosting.start(config(1))
    await all_have(standin, 1)
    monkeypatch.setattr(Scans, "scan", counted)
    loop.call_soon(next_round)
    for runner in hosting.hosts[-1].runners:
        runner.trigger_scan()
    async with asyncio.timeout(60):
        while begun.total() < COUNT:
            await asyncio.sleep(0.01)
    assert max(begun.values()) <= decisions._CROWD


async def test_one_that_waits_for_the_host_lets_others_be_scanned(
    standin: SimulatedKubelet, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait."""
    scan, sick = Scans.scan, {f"example.com/r{number}" for number in range(COUNT - 1)}

    async def hanging(
        self: Scans, previous: Snapshot, since: float, *, thorough: bool
    ) -> Snapshot | None:
        if self.scanner.resource.name in sick:
            await asyncio.Event().wait()
        return await scan(self, previous, since, thorough=thorough)

    monkeypatch.setattr(Scans, "scan", hanging)
    hosting.start(config(1))
    await standin.wait(f"example.com/r{COUNT - 1}", 1, 1)
