"""What no event tells of a watched directory is found in rounds."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.watch import Watcher
from devhost.watch_rounds import Rounds
from devhost.watch_spots import Spot
from devhost.watch_wanted import Wanted


class Gone:
    """Rounds over spots that no events are told of."""

    def __init__(self, *paths: Path) -> None:
        self.wanted = [Wanted(Spot(str(path))) for path in paths]
        self.renewed: list[str] = []
        self.rounds = Rounds(
            lambda: self.wanted, lambda spots: self.renewed.extend(s.path for s in spots)
        )

    async def go(self) -> list[str]:
        self.renewed.clear()
        await self.rounds.go(10.0)
        return self.renewed


async def test_a_change_that_was_not_told(tmp_path: Path) -> None:
    """Then, and only then, a spot is looked at again."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    at = Gone(a, b)
    for _ in range(3):
        assert await at.go() == []
    (a / "new").touch()
    assert await at.go() == [str(a)]
    assert await at.go() == []
    b.mkdir()
    assert await at.go() == [str(b)]
    a.rename(tmp_path / "away")
    assert await at.go() == [str(a)]
    a.mkdir()
    assert await at.go() == [str(a)]
    assert await at.go() == []


async def test_what_was_told_is_no_news(tmp_path: Path) -> None:
    at = Gone(tmp_path)
    await at.go()
    (tmp_path / "new").touch()
    at.wanted[0].tell(str(tmp_path / "new"))
    assert await at.go() == []
    (tmp_path / "newer").touch()
    assert await at.go() == [str(tmp_path)]


async def test_a_change_below(tmp_path: Path) -> None:
    """All directories of a recursive spot count."""
    (tmp_path / "below").mkdir()
    async with Watcher() as watcher:
        spot = Spot(str(tmp_path), recursive=True)
        await watcher.watch("key", frozenset({spot}), lambda _: None)
        (wanted,) = watcher._wanted.values()
        at = Gone()
        at.wanted = [wanted]
        await at.go()
        assert wanted.seen is not None
        assert wanted.seen.keys() == {str(tmp_path), str(tmp_path / "below")}


async def test_a_filesystem_that_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out until it answers."""
    a, sick, b = (tmp_path / name for name in ("a", "sick", "b"))
    for path in (a, sick, b):
        path.mkdir()
    release, stat = threading.Event(), os.stat

    def hanging(path: str) -> os.stat_result:
        if path == str(sick):
            release.wait(10)
        return stat(path)

    at = Gone(a, sick, b)
    await at.go()
    monkeypatch.setattr("devhost.watch_rounds.os.stat", hanging)
    try:
        await at.rounds.go(0.01)
        for path in (a, sick, b):
            (path / "new").touch()
        assert sorted(await at.go()) == [str(a), str(b)]
    finally:
        release.set()
    while at.rounds._stuck:
        await at.go()
    assert str(sick) in at.renewed or await at.go() == [str(sick)]


async def test_the_look_ends_as_patience_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was looked at, only that was not told yet: it counts, and nothing is stuck."""
    told: list[asyncio.Future[None]] = []

    def in_thread(name: str, work: Callable[[], None]) -> "asyncio.Future[None]":
        work()
        told.append(asyncio.get_running_loop().create_future())
        return told[-1]

    at = Gone(tmp_path)
    monkeypatch.setattr("devhost.watch_rounds.in_thread", in_thread)
    await at.rounds.go(0.001)
    (tmp_path / "new").touch()
    await at.rounds.go(0.001)
    assert at.renewed == [str(tmp_path)]
    for one in told:
        one.set_result(None)
    await asyncio.sleep(0)
    assert not at.rounds._stuck
