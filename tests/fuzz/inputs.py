"""What the fuzzing feeds: bytes, texts and values that are nearly, or not at all, right."""

import datetime as dt
import math
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import strategies as st

from devhost.loading.schema import json_schema

EXAMPLES: Final = tuple(
    path.read_bytes()
    for path in sorted((Path(__file__).parents[2] / "config" / "examples").glob("*.yaml"))
)

# Every key of the language, also those that are still to come.
FULL: Final = """version: v1
x-camera: &camera
  env: {CAMERA: "/dev/video${index}"}
  annotations: {example.com/ids: {value: "${id}", separator: ";"}}
resources:
  - name: example.com/full
    sources:
      - /dev/serial/by-id/*
      - directory:
          {path: /etc/colas, recursive: true, types: [file, char], include: a*, exclude: [b], inUse: true}
      - glob: {paths: [/dev/disk/**/x, '/dev/v4l/*'], exclude: "*-part*", types: block}
      - dev: {pattern: 'video(?P<n>[0-9]+)', exclude: [video9], types: char}
        as: picture
        optional: true
    id: ["${serial}", '${name}']
    group: ${n}
    allocate:
      <<: *camera
      devices:
        - {hostPath: "${path}", containerPath: '/dev/video${index}', permissions: rwm, optional: true}
        - /dev/null
      mounts:
        - hostPath: /opt/x
          containerPath: /x$$
          readOnly: false
      cdi: ["vendor.com/class=${id}"]
    maxDevices: 10
    overlap: allow
    replicas: 3
    maxPerContainer: 2
    prefer: packed
    topology: 0
    removeMissingAfter: 1.5h
    health:
      checks: [readable, {file: {path: '${path}', matches: ok}}, {exec: [/bin/true]}]
      interval: 30s
      timeout: 500ms
      failures: 2
      recoveries: 3
    preStart:
      - {run: [/bin/true, "${id}"], timeout: 5s, every: start}
      - mode: "0660"
      - waitFor: ${path}
    nodeNames: [a*, "[bc]?"]
  - name: example.com/tokens
    sources: [static: 3, static: [a, b], static: {ids: [c]}]
    allocate:
      env:
        TOKENS: '${id}'
        LONG: |
          several
          lines, ${resource}
"""
# What of it this version can do.
WHOLE: Final = "".join(
    line
    for line in FULL.splitlines(keepends=True)
    if not line.strip().startswith(
        ("as:", "optional:", "group:", "maxPer", "prefer:", "topology:", "health:", "checks:",
         "interval:", "timeout:", "failures:", "recoveries:", "preStart:", "- {run", "- mode", "- wait",
         'id: ["${serial}"')
    )
).replace("(?P<n>[0-9]+)", "[0-9]+")  # fmt: skip
SEEDS: Final = (*EXAMPLES, FULL.encode(), WHOLE.encode())

TOKENS: Final = (
    *("&a ", "*a", "*b", "<<: ", "<<: *a\n", "<<: [*a, *a]\n", "<<: {<<: {a: b}}\n", "&a [*a]"),
    *(
        "!!python/object:os.system ",
        "!!python/name:os ",
        "!x ",
        "! ",
        "!!set ",
        "!!omap ",
        "!!seq ",
    ),
    *(
        "!!map ",
        "!!int ",
        "!!float ",
        "!!bool ",
        "!!null ",
        "!!binary ",
        "!!timestamp ",
        "!!merge ",
    ),
    *(
        "!!str ",
        "? ",
        ": ",
        "- ",
        "? [a]\n: b\n",
        "? {a: b}\n: c\n",
        "|",
        ">-",
        "|2+\n",
        "#",
        "%TAG ! a\n",
    ),
    *(
        "\t",
        "\x00",
        "\x1b",
        "\x7f",
        "\x85",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ud800",
        "\udfff",
        "\r",
        "\r\n",
    ),
    *(
        "\n",
        "\n  ",
        "\n    ",
        "---\n",
        "...\n",
        "%YAML 9.9\n---\n",
        "[" * 40,
        "{a: " * 40,
        "- " * 40,
    ),
    *(
        "}",
        "]",
        ",",
        "'",
        '"',
        "''",
        "\\",
        '"\\ud800"',
        '"\\x1b[2J"',
        '"\\N\\L\\P\\0"',
        '"\\U0010ffff"',
    ),
    *(
        "1e999",
        "1.0e+999",
        ".nan",
        "-.inf",
        "0x",
        "0x" + "f" * 5000,
        "0b1",
        "0o7",
        "0777",
        "9" * 5000,
    ),
    *(
        "1:30",
        "1" + ":59" * 600,
        "1" + ":59" * 600 + ".5",
        "190:20:30.15",
        "1_000",
        "-0",
        "+1",
        "~",
    ),
    *("2001-12-14t21:59:43.10-05:00", "2020-13-45", "0001-01-01", "2001-01-01 1:1:1 +99:99", "="),
    *(
        "yes",
        "off",
        "null",
        "NULL",
        "é",
        "\U0001f600",
        "x" * 3000,
        "${",
        "${id}",
        "${x y}",
        "$",
        "$$",
        "$(",
    ),
    *(
        "name: ",
        "sources: ",
        "version: v1\n",
        "resources:\n",
        "  - name: a.b/c\n",
        "env: ",
        "static: ",
    ),
    *("(?P<a>x)(?P<a>y)", "\\C", "\\pL{999}", "(", "[[:foo:]]", "::", "..", "/../", "*", "\ufffe"),
)


def _changed(content: bytes, operations: list[tuple[int, int, int, bytes]]) -> bytes:
    """Apply changes: of what kind, from where, how many bytes, with which token."""
    changed = bytearray(content)
    for kind, place, length, token in operations:
        at = place % (len(changed) + 1)
        piece = changed[at : at + length]
        match kind:
            case 0:
                changed[at:at] = token
            case 1:
                changed[at : at + length] = token
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = piece * 3
            case 4 if at < len(changed):
                changed[at] ^= 1 << length % 8
            case 5:
                other = length * 31 % (len(changed) + 1)
                changed[other:other] = piece
            case _:
                changed[at:] = SEEDS[length % len(SEEDS)][place % 700 :]
    return bytes(changed[: 64 << 10])


_TOKEN_BYTES: Final = st.sampled_from(TOKENS).map(
    lambda token: token.encode("utf-8", "surrogatepass")
)
MUTATED: Final = st.builds(
    _changed,
    st.sampled_from(SEEDS),
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.integers(0, 4000),
            st.integers(0, 60),
            st.one_of(_TOKEN_BYTES, st.binary(max_size=4)),
        ),
        min_size=1,
        max_size=6,
    ),
)
SOUP: Final = st.lists(st.one_of(st.sampled_from(TOKENS), st.text(max_size=3)), max_size=30).map(
    "".join
)

# ── values where others belong ──

KEYS: Final = sorted(
    {key for model in json_schema()["$defs"].values() for key in model.get("properties", ())}
)
_TEXTS: Final = st.one_of(
    st.sampled_from(
        [
            *TOKENS,
            *KEYS,
            "v1",
            "/dev/x",
            "/dev/sd*",
            "example.com/a",
            "kvm",
            "a(?P<n>.)",
            "5m",
            "rw",
            "char",
        ]
    ),
    st.text(max_size=12),
)
SCALARS: Final = st.one_of(
    _TEXTS,
    st.booleans(),
    st.integers(),
    st.integers(-2, 3),
    st.sampled_from([2**63, 2**64, 10**30, 16**3000, 20_000, 20_001]),
    st.floats(),
    st.just(math.nan),
    st.none(),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC])),
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(KEYS), _TEXTS, st.integers(0, 2)), inner, max_size=4
        ),
    ),
    max_leaves=8,
)


def _replaced(data: Any, changes: list[tuple[list[int], int, str, Any]]) -> Any:
    """Change values of a configuration's data: each found by indexes, then exchanged."""
    data = yaml.safe_load(yaml.safe_dump(data))  # a copy, nothing shared
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


_DATA: Final = tuple(yaml.safe_load(seed) for seed in SEEDS)
CONFIGS: Final = st.one_of(
    st.builds(
        _replaced,
        st.sampled_from(_DATA),
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 20), min_size=1, max_size=7),
                st.integers(0, 5),
                st.one_of(st.sampled_from(KEYS), _TEXTS),
                VALUES,
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    st.fixed_dictionaries(
        {
            "version": st.just("v1"),
            "resources": st.lists(
                st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), max_size=3
            ),
        }
    ),
    VALUES,
)


def written(data: Any, *, flow: bool) -> str:
    """Write data as YAML."""
    return str(yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True, sort_keys=False))
