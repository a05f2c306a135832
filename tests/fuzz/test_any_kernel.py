"""What the kernel writes: events of inotify, and its lists of mounts and swaps."""

import asyncio
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from devhost.hostfs.mounts import mounts, swapped
from devhost.watch.inotify import OVERFLOW, Event, parsed
from devhost.watch.watcher import Watcher, WatchTarget
from tests.fuzz.running import bounded, fuzzed

pytestmark = pytest.mark.slow

# ── inotify ──

_HEAD: Final = struct.Struct("iIII")
_NAME: Final = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"x"))
_MASK: Final = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([1 << bit for bit in range(32)])
)
_EVENTS: Final = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), _MASK, _NAME), max_size=6)

Parts = Sequence[tuple[int, int, bytes]]


def written(events: Parts) -> bytes:
    """Return what the kernel writes: names are padded with zeros, and none has no length."""
    buffer = b""
    for watch, mask, name in events:
        padded = name + b"\0" * (16 - len(name) % 16) if name else b""
        buffer += _HEAD.pack(watch, mask, 0, len(padded)) + padded
    return buffer


@fuzzed(0.04, 200, events=_EVENTS, cut=st.integers(0, 60))
def test_events(events: Parts, cut: int) -> None:
    """Whole ones are read as they are; after a part of one, some are lost."""
    expected = [Event(watch, mask, os.fsdecode(name)) for watch, mask, name in events]
    buffer = written(events)
    with bounded():
        assert list(parsed(buffer)) == expected
        whole = list(parsed(buffer[: max(0, len(buffer) - cut)]))
        if whole and whole[-1] == Event(-1, OVERFLOW, ""):
            whole.pop()
        assert whole == expected[: len(whole)]


@fuzzed(0.04, 200, buffer=st.binary(max_size=200))
def test_any_buffer(buffer: bytes) -> None:
    """No event is longer than the buffer, and what cannot be read counts as lost events."""
    with bounded():
        found = list(parsed(buffer))
        assert len(found) <= len(buffer) // _HEAD.size + 1
        assert sum(len(os.fsencode(event.name)) for event in found) <= len(buffer)


class _Said:
    """An inotify that reports what a test sets."""

    def __init__(self, events: list[Event]) -> None:
        self.read = lambda: events


@fuzzed(0.05, 60, events=_EVENTS, watches=st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_any_event(events: Parts, watches: list[int]) -> None:
    """Nothing fails, also for unknown watches."""

    async def deliver(place: str) -> None:
        async with Watcher() as watcher:
            for recursive in (False, True):
                target = WatchTarget(f"{place}/a", recursive=recursive, writes=recursive)
                await watcher.subscribe(lambda: None).watch(frozenset({target}))
            said: Any = _Said(
                [Event(watch, mask, os.fsdecode(name).replace("/", "_"))
                 for watch, (_, mask, name) in zip(watches, events, strict=False)]
            )  # fmt: skip
            watcher._read(said)

    with tempfile.TemporaryDirectory() as place, bounded():
        Path(place, "a").mkdir()
        asyncio.run(deliver(place))


# ── mounts ──

_LINE: Final = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
_PIECES: Final = st.sampled_from(
    [_LINE, *_LINE.split(b" "), b" ", b"\t", b"\n", b" - ", b"\\040", b"\\777", b"\\9", b":", b"/",
     b"9" * 5000, b"\xd9\xa3:\xd9\xa3", b"\xff", b"\0", b"Filename\tType\n", b"/swapfile  file 1 2 3\n"]
)  # fmt: skip
_ANY_LINES: Final = st.one_of(
    st.binary(max_size=300), st.lists(st.one_of(_PIECES, st.binary(max_size=4))).map(b"".join)
)
_PATH: Final = st.lists(
    st.binary(min_size=1, max_size=8).map(
        lambda raw: raw.replace(b"\0", b" ").replace(b"/", b"\\")
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: b"/" + b"/".join(parts))


def escaped(path: bytes) -> bytes:
    """Escape as the kernel does (mangle_path in fs/seq_file.c, with the characters of fs/proc_namespace.c)."""
    return b"".join(b"\\%03o" % one if one in b" \t\n\\#" else bytes([one]) for one in path)


@fuzzed(0.04, 200, content=_ANY_LINES)
def test_any_list_of_mounts(content: bytes) -> None:
    """Whatever is in the files, what can be read of them is."""
    with tempfile.TemporaryDirectory() as place, bounded():
        file = Path(place, "mountinfo")
        file.write_bytes(content)
        for number, _, _ in mounts(str(file)):
            assert all(part >= 0 for part in number)
        assert all(swapped(str(file)))


@fuzzed(0.03, 100, paths=st.lists(_PATH, max_size=4), source=_PATH)
def test_mounts_and_swaps(paths: list[bytes], source: bytes) -> None:
    """Paths come out as they went in, whatever characters they have."""
    lines = [
        b"%d 1 8:%d / %s rw shared:1 - ext4 %s rw\n"
        % (number, number, escaped(path), escaped(source))
        for number, path in enumerate(paths)
    ]
    swaps = [b"%s  partition 1 0 -2\n" % escaped(path) for path in paths]
    with tempfile.TemporaryDirectory() as place, bounded():
        file = Path(place, "file")
        file.write_bytes(b"".join(lines))
        found = list(mounts(str(file)))
        assert found == [
            ((8, number), os.fsdecode(path), os.fsdecode(source))
            for number, path in enumerate(paths)
        ]
        file.write_bytes(b"Filename  Type Size Used Priority\n" + b"".join(swaps))
        assert list(swapped(str(file))) == [os.fsdecode(path) for path in paths]
