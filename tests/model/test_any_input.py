"""Any file, state directory and kernel file is read, or refused with a reason.

Never a traceback, and in bounded time.
"""

import asyncio
import json
import math
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.config.loader import load, loads
from devhost.custody.record_files import RecordFiles
from devhost.hostfs.mounts import read_mounts, read_swaps
from devhost.model import pattern
from devhost.model.pattern import PatternError
from devhost.model.records import Handout
from devhost.model.template import MissingVariableError, Template, TemplateError
from devhost.watch.inotify import Event, parse_events
from tests.model import inputs
from tests.model.judge import FILE, judge
from tests.model.running import bounded, fuzzed

pytestmark = pytest.mark.slow

# ── the configuration ──

POLICIES: Final = st.sampled_from(
    [Policy(), Policy(enforced=True), Policy(("/opt/*", "/dev/*"), enforced=True)]
)
_BYTES: Final = st.one_of(inputs.MUTATED, inputs.MUTATED, inputs.SOUP, st.binary(max_size=4000))


@fuzzed(0.2, 900, content=_BYTES, policy=POLICIES)
def test_any_bytes_in_the_file(content: bytes, policy: Policy) -> None:
    FILE.write_bytes(content)
    with bounded():
        judge(load(str(FILE), policy), content.decode("utf-8-sig", "replace"))


@fuzzed(0.1, 500, data=inputs.CONFIGS, flow=st.booleans(), policy=POLICIES)
def test_any_values_in_the_file(data: Any, flow: bool, policy: Policy) -> None:
    """Right YAML of the language's keys, with values of other types and texts."""
    text = inputs.written(data, flow=flow)
    with bounded():
        judge(loads(text, policy=policy), text)


_TEMPLATE_PIECES: Final = ["$", "$$", "${", "}", "${a}", "${a.b}", "{", "a", "é", "\n", "\ud800"]
_TEMPLATES: Final = st.one_of(st.text(), st.lists(st.sampled_from(_TEMPLATE_PIECES)).map("".join))


@fuzzed(
    0.03,
    300,
    text=_TEMPLATES,
    values=st.dictionaries(st.sampled_from(["a", "a.b", "c"]), st.text()),
)
def test_any_template(text: str, values: dict[str, str]) -> None:
    """A template is parsed or refused with a place, and lacks nothing but variables."""
    with bounded():
        try:
            template = Template.parse(text)
        except TemplateError as error:
            assert text[error.offset] == "$"
            assert str(error).strip()
            return
        if "$" not in text:
            assert template.render({}) == text
        assert Template.parse(text.replace("$", "$$")).render({}) == text
        assert Template.parse(str(template)) == template
        try:
            template.render(values)
        except MissingVariableError as error:
            assert error.name in template.names - set(values)
        else:
            assert template.names <= set(values)


_PIECES: Final = (
    r"a é . * +? {2} {1000} | ( ) (?: (?i) (?P<a> (?P<é> (?<b> [ ] [^ [] [:alpha:] \Q \E \C \pL \b "
    "\\ $ ^ \\d \x00"
)
_PATTERNS: Final = st.one_of(st.text(), st.lists(st.sampled_from(_PIECES.split(" "))).map("".join))


@fuzzed(0.03, 300, text=_PATTERNS, subject=st.text(st.characters(exclude_categories=())))
def test_any_pattern(text: str, subject: str) -> None:
    """A pattern is compiled or refused, and matches or not."""
    with bounded():
        try:
            names = pattern.group_names(text)
        except PatternError as error:
            assert str(error).strip()
            return
        groups = pattern.fullmatch(text, subject)
        assert groups is None or set(groups) <= set(names)


# ── the state directory ──

NAME: Final = "example.com/a"
_ANY_TEXT: Final = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["", "0", NAME, "name", "fresh", "holder", "\ud800", "\u202e"]),
)
_NUMBERS: Final = st.sampled_from([2**63, 10**400, -1, math.inf, math.nan])
_JSON: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _ANY_TEXT, _NUMBERS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_ANY_TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)
RECORD: Final = {
    "resource": NAME,
    "id": "0",
    "device": "0",
    "nodes": [{"entity": "char 1:3", "names": ["/dev/x"], "boot": ""}],
    "overlap": False,
    "steps": "pending",
}
OTHER: Final = Handout.model_validate_json(json.dumps({**RECORD, "id": "1", "device": "1"}))
_JSON_PIECES: Final = st.sampled_from(
    [b'"', b"{", b"}", b"[", b"]", b",", b"null", b"NaN", b"Infinity", b"-1", b"1e999", b"\n",
     b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b'"\\ud800"', b"true", b"{}", b"[]"]
)  # fmt: skip
_ENTRIES: Final = st.fixed_dictionaries(
    {}, optional={key: st.just(value) | st.just(value) | _JSON for key, value in RECORD.items()}
)
_STATES: Final = st.one_of(
    inputs.changed(
        _JSON_PIECES, json.dumps({"resource": NAME, "records": [RECORD]}).encode(), most=3
    ),
    st.one_of(_JSON, st.lists(_ENTRIES, max_size=2)).map(
        lambda records: json.dumps({"resource": NAME, "records": records}).encode()
    ),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000]),
)


@fuzzed(0.05, 200, content=_STATES)
def test_any_state_file(content: bytes) -> None:
    """The file is read whole or moved aside, and what is added can be read by the next process.

    A file that is damaged never looks like devices that were just allocated: they would be wiped.
    """

    async def use(place: Path) -> None:
        file = RecordFiles(place, lambda _: "ours")
        assert await file.sync(10) is None
        handout = file.table.find((NAME, "0"))
        if handout is not None and handout.steps != "none":
            entries = json.loads(content)["records"]
            assert any(entry.get("steps") == handout.steps for entry in entries)
        new = OTHER.model_copy(update={"id": "new"})
        file.set({OTHER.key: OTHER, new.key: new})
        assert await file.sync(10) is None
        again = RecordFiles(place, lambda _: "ours")
        assert await again.sync(10) is None
        assert set(again.table) == set(file.table) >= {OTHER, new}

    with tempfile.TemporaryDirectory() as place, bounded():
        (Path(place) / "records").mkdir()
        (Path(place) / "records" / "example.com_a.json").write_bytes(content)
        asyncio.run(use(Path(place)))


# ── what the kernel writes ──

_HEAD: Final = struct.Struct("iIII")
_NAME: Final = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"x"))
_MASK: Final = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([1 << bit for bit in range(32)])
)
_WATCH: Final = st.one_of(st.integers(1, 3), st.integers(-(2**31), 2**31 - 1))
_EVENTS: Final = st.lists(st.tuples(_WATCH, _MASK, _NAME), max_size=6)
Parts = Sequence[tuple[int, int, bytes]]


@fuzzed(0.08, 300, events=_EVENTS)
def test_any_buffer_of_inotify(events: Parts) -> None:
    """Events are read as they are."""
    expected, buffer = (
        [Event(number, mask, os.fsdecode(name)) for number, mask, name in events],
        b"",
    )
    for watch, mask, name in events:  # names are padded with zeros, and none has no length
        padded = name + b"\0" * (16 - len(name) % 16) if name else b""
        buffer += _HEAD.pack(watch, mask, 0, len(padded)) + padded
    with bounded():
        assert list(parse_events(buffer)) == expected


_LINE: Final = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
_MOUNT_PIECES: Final = st.sampled_from(
    [_LINE, *_LINE.split(b" "), b" ", b"\t", b"\n", b" - ", b"\\040", b"\\777", b"\\9", b":", b"/",
     b"9" * 5000, b"\xd9\xa3:\xd9\xa3", b"\xff", b"\0", b"Filename\tType\n", b"/swapfile  file 1 2 3\n"]
)  # fmt: skip
_ANY_LINES: Final = st.lists(st.one_of(_MOUNT_PIECES, st.binary(max_size=9))).map(b"".join)
_PATH: Final = st.lists(
    st.binary(min_size=1, max_size=8).map(
        lambda raw: raw.replace(b"\0", b" ").replace(b"/", b"\\")
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: b"/" + b"/".join(parts))


def escaped(path: bytes) -> bytes:
    """Escape as the kernel does (mangle_path in fs/seq_file.c, with the characters of fs/proc_namespace.c)."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in path)


@fuzzed(0.07, 200, content=_ANY_LINES, paths=st.lists(_PATH, max_size=4), source=_PATH)
def test_any_list_of_mounts(content: bytes, paths: list[bytes], source: bytes) -> None:
    """Lines that can be read are read, and paths come out as they went in."""
    lines = [
        b"%d 1 8:%d / %s rw shared:1 - ext4 %s rw\n"
        % (number, number, escaped(path), escaped(source))
        for number, path in enumerate(paths)
    ]
    swaps = [b"%s  partition 1 0 -2\n" % escaped(path) for path in paths]
    with tempfile.TemporaryDirectory() as place, bounded():
        file = Path(place, "file")
        file.write_bytes(content)
        assert all(part >= 0 for number, *_ in read_mounts(str(file)) for part in number)
        assert all(read_swaps(str(file)))
        file.write_bytes(b"".join(lines))
        assert list(read_mounts(str(file))) == [
            ((8, number), os.fsdecode(path), os.fsdecode(source), "ext4")
            for number, path in enumerate(paths)
        ]
        file.write_bytes(b"Filename  Type Size Used Priority\n" + b"".join(swaps))
        assert list(read_swaps(str(file))) == [os.fsdecode(path) for path in paths]
