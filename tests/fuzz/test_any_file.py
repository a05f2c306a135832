"""Files that other processes can have damaged: CDI specs, and the files of the state directory."""

import asyncio
import json
import math
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import strategies as st

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice, CdiNode
from devhost.host.cdi.files import CdiFiles
from devhost.host.ownership import record_store
from devhost.host.ownership.record_store import RecordFile
from devhost.host.ownership.records import Owner, Record
from devhost.host.prestart import holder_records
from devhost.host.prestart.holder_records import Fresh, Holder, HolderRecords
from devhost.model.allocation import MountSpec
from tests.fuzz.running import bounded, fuzzed

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


# ── CDI ──

DEVICE: Final = CdiDevice(
    "one",
    (CdiNode("/dev/x", "/dev/x", "c", 1, 3),),
    (MountSpec("/a", "/b", read_only=True),),
    {"A": "b"},
)
SPEC: Final = cdi.serialize(NAME, [DEVICE]) or b""
ENTRIES: Final = st.lists(
    replaced(name="two", containerEdits={"env": ["A=B"]}), max_size=3
)  # fmt: skip


@fuzzed(0.05, 200, content=files(SPEC, replaced(kind=cdi.kind(NAME), devices=[]), ENTRIES.map(
    lambda entries: {"kind": cdi.kind(NAME), "devices": entries})))  # fmt: skip
def test_a_cdi_spec(content: bytes) -> None:
    """What is kept of it goes into a spec that runtimes can read; only our own files are removed."""
    with tempfile.TemporaryDirectory() as place, bounded():
        directory = Path(place)
        spec, foreign = directory / cdi.file_name(NAME), directory / "vendor.json"
        spec.write_bytes(content)
        foreign.write_bytes(content)
        cdi_files = CdiFiles(directory)
        entries = asyncio.run(cdi_files.entries(NAME))
        entries.pop("one", None)
        written = cdi.serialize(NAME, [DEVICE], list(entries.values()))
        assert written is not None
        assert json.loads(written, parse_constant=_fail) == yaml.safe_load(written)
        names = [device["name"] for device in json.loads(written)["devices"]]
        assert sorted(names) == sorted(["one", *entries])
        asyncio.run(cdi_files.remove_stale([], lambda _hash: False))
        assert foreign.read_bytes() == content


def _fail(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


# ── the state directory ──

OWNER: Final = Owner(NAME, "0", shared=False)
RECORD: Final = Record(OWNER, "char 1:3", "/dev/x", "/dev/x", "boot")
OTHER: Final = Record(Owner(NAME, "1", shared=True), "char 1:5", "/dev/y", "/dev/z", "boot")


@fuzzed(0.05, 150, content=files(
    json.dumps([record_store._dumped(RECORD)]).encode(), st.lists(replaced(**{**record_store._dumped(RECORD), "overlap": True}), max_size=2)))  # fmt: skip
def test_the_file_of_records(content: bytes) -> None:
    """It is read as a whole or moved aside, and what is added can be read by the next process."""
    with tempfile.TemporaryDirectory() as place, bounded():
        file = RecordFile(Path(place))
        file.path.write_bytes(content)
        found, refused = file.update([OTHER], (), ())
        for one in found:
            assert isinstance(hash((*one.keys("boot"), one.place, str(one.owner))), int)
        assert (OTHER in found) != (OTHER in refused)
        assert RecordFile(Path(place)).update([], (), ()) == (found, [])


HOLDERS: Final = holder_records._dumped(NAME, {"0": Fresh("m"), "1": Holder("ns/pod", "m")})


@fuzzed(0.05, 100, content=files(
    HOLDERS,
    replaced(resource=NAME, devices={"0": {"holder": "ns/pod", "mark": "m"}}),
    st.dictionaries(TEXTS, replaced(fresh=True, holder="ns/pod", mark="m"), max_size=3).map(
        lambda devices: {"resource": NAME, "devices": devices})))  # fmt: skip
def test_the_records_of_holders(content: bytes) -> None:
    """A file that is damaged never looks like devices that were just allocated: they would be wiped."""

    async def use(place: Path) -> None:
        records = HolderRecords(NAME, place)
        read = await records.read()
        assert all(isinstance(one, Fresh | Holder) for one in read.values())
        for device_id, one in read.items():
            entry = json.loads(content)["devices"][device_id]
            assert entry.get("fresh", False) is isinstance(one, Fresh)
        await records.mark_fresh(["new"])
        assert isinstance((await HolderRecords(NAME, place).read())["new"], Fresh)

    with tempfile.TemporaryDirectory() as place, bounded():
        path = HolderRecords(NAME, Path(place))._path
        assert path is not None
        path.parent.mkdir()
        path.write_bytes(content)
        asyncio.run(use(Path(place)))
