"""One resource after the other is looked at again."""

import asyncio

import pytest

from devhost.host import rescan


class Resource:
    def __init__(self, name: str, told: "asyncio.Queue[str]") -> None:
        self.name, self.told = name, told

    def rescan(self) -> None:
        self.told.put_nowait(self.name)


async def test_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that come later; those that have gone are left out."""
    monkeypatch.setattr(rescan, "RESCAN_S", 0.001)
    told: asyncio.Queue[str] = asyncio.Queue()
    resources = {name: Resource(name, told) for name in "abc"}
    rotating = asyncio.create_task(rescan.rotate(lambda: resources))
    try:
        async with asyncio.timeout(10):
            assert [await told.get() for _ in range(4)] == ["a", "b", "c", "a"]
            del resources["a"]
            resources["d"] = Resource("d", told)
            heard = {await told.get() for _ in range(8)}
            assert heard >= {"b", "c", "d"}
            resources.clear()
    finally:
        rotating.cancel()
