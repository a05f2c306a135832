"""Files that other processes can have damaged: CDI specs, and the files of the state directory."""

import asyncio
import json
import math
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from devhost.allocation import cdi
from devhost.host.records import FILE, Allocated, Mark, Records
from tests.fuzz.running import bounded, fuzzed

pytestmark = pytest.mark.slow

NAME: Final = "example.com/a"
TEXTS: Final = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["", "0", NAME, cdi.kind(NAME), "name", "fresh", "holder", "\ud800", "\u202e"]),
)
JSON: Final = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), TEXTS,
        st.sampled_from([2**63, 10**400, -1, math.inf, math.nan]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


def changed(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return a file with pieces that are replaced, taken out, or said twice."""

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        raw = bytearray(valid)
        for at, length, piece in changes:
            place = at % (len(raw) + 1)
            raw[place : place + length] = piece
        return bytes(raw)

    pieces = st.one_of(
        st.binary(max_size=4),
        st.sampled_from(
            [b'"', b"{", b"}", b"[", b"]", b",", b"null", b"NaN", b"Infinity", b"-1", b"1e999", b"\n",
             b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b'"\\ud800"', b"true", b"{}", b"[]", valid]
        ),
    )  # fmt: skip
    place = st.integers(0, len(valid))
    return st.lists(st.tuples(place, st.integers(0, 30), pieces), max_size=3).map(apply)


def files(valid: bytes, *shapes: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Return files that are nearly right, of the right shape, or of none."""
    written = st.one_of(JSON, *shapes).map(lambda value: json.dumps(value).encode())
    deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000])
    return st.one_of(changed(valid), written, st.binary(max_size=60), deep)


def replaced(**valid: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings with these keys, of which some have another value or are missing."""
    return st.fixed_dictionaries(
        {}, optional={key: st.one_of(st.just(value), JSON) for key, value in valid.items()}
    )


# ── the state directory ──

RECORD: Final = {
    "resource": NAME, "device": "0", "shared": False, "key": "char 1:3", "names": ["/dev/x"],
    "boot": "boot", "overlap": False,
}  # fmt: skip
MARK: Final = {"resource": NAME, "id": "0", "prepared": False}
OTHER: Final = Allocated.model_validate(
    {**RECORD, "device": "1", "key": "char 1:5", "names": frozenset({"/dev/y"})}
)


@fuzzed(0.05, 200, content=files(
    json.dumps([RECORD, MARK]).encode(), st.lists(st.one_of(replaced(**RECORD), replaced(**MARK)), max_size=2)))  # fmt: skip
def test_the_state_file(content: bytes) -> None:
    """It is read as a whole or moved aside, and what is added can be read by the next process.

    A file that is damaged never looks like devices that were just allocated: they would be wiped.
    """

    async def use(place: Path) -> None:
        records = Records(place, lambda: None)
        assert await records.sync(10)
        mark = records.mark(NAME, "0")
        if mark is not None:
            its = {"resource": NAME, "id": "0", "prepared": mark.prepared}
            assert its in json.loads(content)
        records.put([OTHER, Mark(resource=NAME, id="new", prepared=False)])
        assert await records.sync(10)
        again = Records(place, lambda: None)
        assert await again.sync(10)
        assert again.allocated == records.allocated
        assert again.mark(NAME, "new") is not None
        assert (OTHER in again.allocated) != any(map(OTHER.conflicts, again.allocated))

    with tempfile.TemporaryDirectory() as place, bounded():
        (Path(place) / FILE).write_bytes(content)
        asyncio.run(use(Path(place)))
