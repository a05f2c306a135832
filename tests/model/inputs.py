"""Inputs of the fuzzing: bytes, texts and values that are nearly, or not at all, right."""

import datetime as dt
import math
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import strategies as st

from devhost.config.json_schema import json_schema
from tests.support.examples import ALL_EXAMPLES

SEEDS: Final = tuple(
    path.read_bytes() for path in (*ALL_EXAMPLES, Path(__file__).with_name("full.yaml"))
)

TOKENS: Final = (
    # anchors, tags and structure
    "&a ", "*a", "*b", "<<: *a\n", "<<: [*a, *a]\n", "<<: {<<: {a: b}}\n", "&a [*a]",
    "!!python/object:os.system ", "!x ", "! ", "!!set ", "!!omap ", "!!int ", "!!float ", "!!null ",
    "!!binary ", "!!timestamp ", "!!merge ", "!!str ", "%TAG ! a\n", "%YAML 9.9\n---\n",
    "? ", ": ", "- ", "? [a]\n: b\n", "? {a: b}\n: c\n", "|", ">-", "|2+\n", "#", "---\n", "...\n",
    "[" * 40, "{a: " * 40, "- " * 40, "}", "]", ",", "'", '"', "''", "\\",
    # characters
    "\t", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\r", "\r\n", "\n", "\n    ",
    '"\\ud800"', '"\\x1b[2J"', '"\\N\\L\\P\\0"', '"\\U0010ffff"', "é", "\U0001f600", "x" * 3000, "\ufffe",
    # numbers, times and words
    "1e999", ".nan", "-.inf", "0x", "0x" + "f" * 5000, "0b1", "0o7", "0777", "9" * 5000, "1:30",
    "1" + ":59" * 600 + ".5", "190:20:30.15", "1_000", "-0", "+1", "~", "yes", "off", "null", "NULL", "=",
    "2001-12-14t21:59:43.10-05:00", "2020-13-45", "0001-01-01", "2001-01-01 1:1:1 +99:99",
    # the language
    "${", "${id}", "${x y}", "$", "$$", "$(", "name: ", "sources: ", "version: v1\n", "resources:\n",
    "  - name: a.b/c\n", "env: ", "static: ", "(?P<a>x)(?P<a>y)", "\\C", "\\pL{999}", "(", "[[:foo:]]",
    "::", "..", "/../", "*",
)  # fmt: skip
_TOKEN_BYTES: Final = st.sampled_from(TOKENS).map(
    lambda token: token.encode("utf-8", "surrogatepass")
)


def changed(
    pieces: st.SearchStrategy[bytes], *seeds: bytes, most: int = 6
) -> st.SearchStrategy[bytes]:
    """Return files with pieces that are put in, replaced, taken out, repeated, or of another file."""

    def apply(content: bytes, changes: list[tuple[int, int, int, bytes]]) -> bytes:
        raw = bytearray(content)
        for kind, place, length, piece in changes:
            at = place % (len(raw) + 1)
            match kind:
                case 0:
                    raw[at:at] = piece
                case 1:
                    raw[at : at + length] = piece
                case 2:
                    raw[at:at] = raw[at : at + length] * 3
                case _:
                    raw[at:] = seeds[length % len(seeds)][place % 700 :]
        return bytes(raw[: 64 << 10])

    place, length = st.integers(0, max(map(len, seeds))), st.integers(0, 60)
    changes = st.lists(st.tuples(st.integers(0, 3), place, length, pieces), max_size=most)
    return st.builds(apply, st.sampled_from(seeds), changes)


MUTATED: Final = changed(st.one_of(_TOKEN_BYTES, st.binary(max_size=4)), *SEEDS)
SOUP: Final = st.lists(st.one_of(_TOKEN_BYTES, st.binary(max_size=3)), max_size=30).map(b"".join)

# ── values where others belong ──

KEYS: Final = sorted(
    {key for model in json_schema()["$defs"].values() for key in model.get("properties", ())}
)
_NEARLY: Final = (
    "v1",
    "/dev/x",
    "/dev/sd*",
    "example.com/a",
    "kvm",
    "a(?P<n>.)",
    "5m",
    "rw",
    "char",
)
_TEXTS: Final = st.one_of(st.sampled_from([*TOKENS, *KEYS, *_NEARLY]), st.text(max_size=12))
SCALARS: Final = st.one_of(
    _TEXTS,
    st.booleans(),
    st.integers(),
    st.integers(-2, 3),
    st.sampled_from([2**63, 2**64, 10**30, 16**3000, 20_000, 20_001, math.nan]),
    st.floats(),
    st.none(),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC])),
)
_ANY_KEY: Final = st.one_of(st.sampled_from(KEYS), _TEXTS, st.integers(0, 2))
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_ANY_KEY, inner, max_size=4)
    ),
    max_leaves=8,
)


def _replaced(seed: bytes, changes: list[tuple[list[int], int, str, Any]]) -> Any:
    """Change values of a configuration's data: each found by indexes, then exchanged."""
    data = yaml.safe_load(seed)
    for way, kind, key, value in changes:
        owner = data
        for index in way:
            keys = list(owner) if isinstance(owner, dict) else range(len(owner))
            if not keys:
                break
            place = keys[index % len(keys)]
            if not isinstance(owner[place], dict | list) or index == way[-1]:
                match kind:
                    case 0:
                        del owner[place]
                    case 1 if isinstance(owner, dict):
                        owner[key] = value
                    case 2 if isinstance(owner, dict):
                        owner[key] = owner.pop(place)
                    case _:
                        owner[place] = value
                break
            owner = owner[place]
    return data


_WAY: Final = st.lists(st.integers(0, 20), min_size=1, max_size=7)
_CHANGE: Final = st.tuples(_WAY, st.integers(0, 5), _TEXTS, VALUES)
_RESOURCES: Final = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), max_size=3)
CONFIGS: Final = st.one_of(
    st.builds(_replaced, st.sampled_from(SEEDS), st.lists(_CHANGE, min_size=1, max_size=3)),
    st.fixed_dictionaries({"version": st.just("v1"), "resources": _RESOURCES}),
    VALUES,
)


def written(data: Any, *, flow: bool) -> str:
    """Write data as YAML."""
    return str(yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True, sort_keys=False))
