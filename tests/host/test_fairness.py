"""What many resources have to do is done some at a time: calls of the kubelet come in between."""

import asyncio
from collections import Counter

import pytest

from devhost.host.scanning import Scan, Scanning
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


async def test_scans_of_many_resources_begin_in_a_round_of_the_event_loop_each(
    standin: SimulatedKubelet, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of the kubelet come in between."""
    loop, rounds, begun = asyncio.get_running_loop(), 0, Counter[int]()
    begin = Scanning._begin

    def next_round() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(next_round)

    def counted(self: Scanning, scan: Scan) -> None:
        begun[rounds] += 1
        begin(self, scan)

    hosting.start(config(1))
    await all_have(standin, 1)
    monkeypatch.setattr(Scanning, "_begin", counted)
    loop.call_soon(next_round)
    for served in hosting.hosts[-1].resources:
        served.trigger_scan()
    while begun.total() < COUNT:
        await asyncio.sleep(0.01)
    assert max(begun.values()) == 1


async def test_scans_that_hang_hold_up_no_other_resource(
    standin: SimulatedKubelet, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, sick = Scanning._found, {f"example.com/r{number}" for number in range(COUNT - 1)}

    async def hanging(self: Scanning, scan: Scan, *, thorough: bool) -> Snapshot:
        if scan.name in sick:
            await asyncio.Event().wait()
        return await find(self, scan, thorough=thorough)

    monkeypatch.setattr(Scanning, "_found", hanging)
    hosting.start(config(1))
    await standin.wait(f"example.com/r{COUNT - 1}", 1, 1)
