"""The JSON Schema accepts what the loader's shape check accepts, but for rules in code."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from devhost.loading.loader import loads
from devhost.loading.schema import json_schema
from devhost.model.config import Config

VALIDATOR: Final = Draft202012Validator(json_schema())
# Every option, in short and long forms.
EXAMPLES: Final[list[dict[str, Any]]] = [
    {"version": "v1", "resources": [resource]}
    for resource in yaml.safe_load("""
- name: example.com/serial
  sources:
    - /dev/serial/by-id/*
    - {glob: [/dev/a*, /dev/b*], as: port, optional: true}
    - {glob: {paths: /dev/c*, exclude: x, types: char, inUse: false}}
    - {dev: {pattern: 'tty(?P<n>.*)', exclude: [ttyS*], types: char, inUse: true}}
    - {directory: /etc/colas}
  id: ${name}
  group: ${name}
  maxDevices: 4
  overlap: allow
  replicas: 110
  maxPerContainer: 1
  prefer: spread
  topology: auto
  removeMissingAfter: never
  nodeNames: gpu-*
- name: example.com/colas
  sources:
    - directory:
        {path: /etc/colas, recursive: true, types: [file, socket], include: [a*], exclude: b, inUse: true}
    - static: [a, b]
  id: ['${serial}', '${name}']
  allocate:
    env: {A: '${id}', B: {value: x, separator: ;, optional: true}}
    annotations: {example.com/a: $$5, b: {value: '${id}'}}
    cdi: ['vendor.com/class=${id}']
    mounts: [/opt, {hostPath: /a, containerPath: /b, readOnly: false, optional: true}]
    devices:
      - /dev/fuse
      - {hostPath: '${path}', containerPath: '/dev/x${index}', permissions: rwm, optional: false}
      - {hostPath: /x, uid: 0, gid: 4294967294, mode: '0600'}
- name: example.com/slots
  sources: [{static: {count: 0}}, {static: 3}]
  topology: 1
  minDevices: 0
  inject: cdi
  removeMissingAfter: 5m
  nodeNames: [a, b]
  health: [readable, {file: {path: '/sys/${id}', matches: ok}}]
- name: example.com/steps
  sources: [{static: {ids: [a]}}]
  health:
    checks: [writable, {exec: [test, '${path}']}]
    interval: 1.5s
    timeout: 500ms
    failures: 3
    recoveries: 2
  preStart:
    - {run: [reset, '${path}'], timeout: 28s, every: start}
    - {mode: '0660'}
    - {waitFor: '/run/${id}'}
""")
]
# The schema says less of these than the loader does.
HARDWARE: Final = yaml.safe_load("""
version: v1
resources:
- name: example.com/hardware
  sources:
    - usb:
        device: [1d6b:0002, '0403:*']
        serial: s*
        class: [hid, '03']
        interface: 1
        node: [tty, {subsystem: hidraw, name: h*, attr: {a: b}}]
        split: true
        exclude: [1d6b:0003, {product: z}]
    - {pci: {class: vga, node: drm, exclude: {class: '0300'}}, as: gpu}
    - sysfs: {subsystem: a, uevent: {K: v}, parent: {attr: {a: b}}, exclude: {name: b}}
""")
VALUES: Final[tuple[Any, ...]] = (
    *(-1, 0, 20_001, True, 1.5, None, "", "3", "5m", "5 m", "/x/../y", "/x/..y", "a b", "${x"),
    *("$$", "$", "rr", "rw", "never", "auto", "start", "readable", "0600", "9", "a.io/x", "1e3s"),
    *([], ["a"], ["/x", "/x"], [1], [[]], [None], ["${x"], {}, {"value": "x"}, {"run": ["a"]}),
    *({"mode": "600", "run": ["a"]}, {"exec": ["a"]}, {"static": 1}, {"ids": [], "count": 0}),
    *(
        {"dev": None},
        {"dev": "a", "glob": None},
        {"dev": "a", "glob": "/x"},
        {"count": 1, "ids": None},
    ),
)
KEYS: Final = ("x-a", "path", "types", "dev", "value", "run")

Path = tuple[str | int, ...]


def paths(data: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values in a value."""
    items: Any = enumerate(data) if isinstance(data, list) else getattr(data, "items", tuple)()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def changed(data: dict[str, Any], values: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """Yield copies of a configuration in which one thing is removed, renamed or another value."""
    for *above, last in paths(data):
        for key in (None, *KEYS, *range(len(values))):
            copied: dict[str, Any] = copy.deepcopy(data)
            parent: Any = copied
            for part in above:
                parent = parent[part]
            if isinstance(key, int):
                parent[last] = copy.deepcopy(values[key])
            elif key is None:
                del parent[last]
            elif isinstance(parent, dict):
                parent[key] = parent.pop(last)
            yield copied


def has_null(data: Any) -> bool:
    if isinstance(data, dict | list):
        return any(has_null(one) for one in (data.values() if isinstance(data, dict) else data))
    return data is None


def shape_problems(data: dict[str, Any]) -> set[str]:
    """Return the types of pydantic's errors."""
    known = {key: value for key, value in data.items() if not key.startswith("x-")}
    try:
        Config.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        return {one["type"] for one in error.errors()}
    return {"null"} if has_null(known) else set()


def agree(data: dict[str, Any]) -> bool:
    """Whether only what a function of ours says of a single value is not in the schema."""
    problems = shape_problems(data)
    if VALIDATOR.is_valid(data):
        return not problems or "value_error" in problems
    return bool(problems)


def test_the_schema_is_valid_2020_12() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_every_option_has_a_description() -> None:
    bare = [
        f"{title}.{name}"
        for title, model in json_schema()["$defs"].items()
        for name, option in model.get("properties", {}).items()
        if "description" not in option
    ]
    assert not bare


@pytest.mark.parametrize(
    "data", [*EXAMPLES, HARDWARE], ids=lambda data: data["resources"][0]["name"]
)
def test_the_schema_and_the_loader_accept_every_option(data: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(data)
    assert not shape_problems(data)


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data["resources"][0]["name"])
def test_the_schema_and_the_loader_judge_any_single_change_alike(data: dict[str, Any]) -> None:
    assert [one for one in changed(data, VALUES) if not agree(one)] == []


def test_the_loader_accepts_no_file_that_the_schema_refuses() -> None:
    for data in EXAMPLES:
        for one in changed(data, (None, [])):
            loaded = loads(yaml.dump(one, Dumper=yaml.CSafeDumper))
            assert loaded.config is None or VALIDATOR.is_valid(one), one
