"""The JSON Schema accepts what the loader's shape check accepts, but for rules in code."""

import copy
import json
import pathlib
from typing import Any, Final

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from devhost.loading.loader import loads
from devhost.loading.schema import json_schema
from devhost.model.config import Config

VALIDATOR: Final = Draft202012Validator(json_schema())


def _config(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "v1", "resources": list(resources), **more}


def _of(*sources: Any, **more: Any) -> dict[str, Any]:
    return _config({"name": "example.com/a", "sources": [*sources], **more})


RICH: Final[tuple[dict[str, Any], ...]] = (
    _config(
        {"name": "myway5.com/cola", "sources": [{"directory": "/etc/colas"}]},
        {"name": "example.com/kvm", "sources": [{"dev": "kvm"}], "replicas": 110},
        {"name": "example.com/t", "sources": [{"static": 3}, {"static": ["a", "b"]}]},
        **{"x-anchors": {"a": None}},
    ),
    _config(
        {
            "name": "example.com/serial",
            "sources": [
                "/dev/serial/by-id/*",
                {"glob": ["/dev/a*", "/dev/b*"], "as": "port", "optional": True},
                {"glob": {"paths": "/dev/c*", "exclude": "x", "types": "char", "inUse": False}},
            ],
            "id": "${name}",
            "group": "${name}",
        }
    ),
    _of(
        {
            "directory": {
                "path": "/etc/colas",
                "recursive": True,
                "types": ["file", "socket"],
                "include": ["a*"],
                "exclude": "b",
                "inUse": True,
            }
        },
        id=["${serial}", "${name}"],
        allocate={
            "env": {"A": "${id}", "B": {"value": "x", "separator": ";", "optional": True}},
            "annotations": {"example.com/a": "$$5", "b": {"value": "${id}"}},
            "cdi": ["vendor.com/class=${id}"],
            "mounts": [
                "/opt",
                {"hostPath": "/a", "containerPath": "/b", "readOnly": False, "optional": True},
            ],
            "devices": [
                "/dev/fuse",
                {
                    "hostPath": "${path}",
                    "containerPath": "/dev/x${index}",
                    "permissions": "rwm",
                    "optional": False,
                },
            ],
        },
    ),
    _of(
        {"dev": {"pattern": "tty(?P<n>.*)", "exclude": ["ttyS*"], "types": "char", "inUse": True}},
        maxDevices=4,
        overlap="allow",
        replicas=2,
        maxPerContainer=1,
        prefer="spread",
        topology="auto",
        removeMissingAfter="never",
        nodeNames="gpu-*",
    ),
    _of(
        {"static": {"count": 0}},
        topology=1,
        removeMissingAfter="5m",
        nodeNames=["a", "b"],
        health=["readable", {"file": {"path": "/sys/${id}", "matches": "ok"}}],
    ),
    _of(
        {"static": {"ids": ["a"]}},
        health={
            "checks": ["writable", {"exec": ["test", "${path}"]}],
            "interval": "1.5s",
            "timeout": "500ms",
            "failures": 3,
            "recoveries": 2,
        },
        preStart=[
            {"run": ["reset", "${path}"], "timeout": "28s", "every": "start"},
            {"mode": "0660"},
            {"waitFor": "/run/${id}"},
        ],
    ),
)
POOL: Final[tuple[Any, ...]] = (
    -1,
    0,
    1,
    20_000,
    20_001,
    True,
    False,
    1.5,
    None,
    *("", "5m", "5 m", "/x", "/x/../y", "/x/..y", "a b", "a", "${x", "${x}", "$$", "$", "rr", "rw"),
    *("never", "none", "auto", "start", "char", "readable", "0600", "600", "9", "a.io/x", "1e3s"),
    *([], ["a"], ["/x"], ["/x", "/x"], [1], [[]], [None], ["char"], ["${x"]),
    *({}, {"a": "b"}, {"value": "x"}, {"path": "/x"}, {"ids": [], "count": 0}, {"run": ["a"]}),
    *({"mode": "600", "run": ["a"]}, {"exec": ["a"]}, {"dev": "a", "glob": "/x"}, {"static": 1}),
)
# The schema says less of these than the loader does.
HARDWARE: Final[tuple[dict[str, Any], ...]] = (
    _of(
        {
            "usb": {
                "device": ["1d6b:0002", "0403:*"],
                "serial": "s*",
                "class": ["hid", "03"],
                "interface": 1,
                "node": ["tty", {"subsystem": "hidraw", "name": "h*", "attr": {"a": "b"}}],
                "split": True,
                "exclude": ["1d6b:0003", {"product": "z"}],
            }
        },
        allocate={"devices": [{"hostPath": "/x", "uid": 0, "gid": 4294967294, "mode": "0600"}]},
    ),
    _of(
        {"pci": {"class": "vga", "node": "drm", "exclude": {"class": "0300"}}, "as": "gpu"},
        {"sysfs": {"subsystem": "a", "uevent": {"K": "v"}, "parent": {"attr": {"a": "b"}}}},
    ),
    _of(
        {"usb": {"class": "hid", "exclude": "1d6b:0003"}},
        {"pci": {"class": "vga", "node": "drm", "exclude": ["8086:*", {"class": "0300"}]}},
        {"sysfs": {"subsystem": "a", "exclude": {"name": "b"}}},
        minDevices=0,
        inject="cdi",
    ),
)
NAMES: Final = (
    "x-a",
    "path",
    "paths",
    "types",
    "count",
    "ids",
    "dev",
    "value",
    "as",
    "name",
    "run",
)

Path = tuple[str | int, ...]


def _paths(data: Any, path: Path = ()) -> list[Path]:
    items: list[tuple[str | int, Any]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    return [place for key, inner in items for place in ((*path, key), *_paths(inner, (*path, key)))]


def _parent(data: Any, path: Path) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def _without(data: Any, path: Path) -> None:
    del _parent(data, path)[path[-1]]


def _renamed(data: Any, path: Path, name: str) -> None:
    parent = _parent(data, path)
    if isinstance(parent, dict):
        parent[name] = parent.pop(path[-1])


def _replaced(data: Any, path: Path, value: Any) -> None:
    _parent(data, path)[path[-1]] = copy.deepcopy(value)


@st.composite
def mutants(draw: st.DrawFn) -> dict[str, Any]:
    """A rich configuration with one to three random changes."""
    data: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(RICH)))
    for _ in range(draw(st.integers(1, 3))):
        places = _paths(data)
        if not places:
            break
        path = draw(st.sampled_from(places))
        match draw(st.sampled_from(("delete", "rename", "replace", "replace", "replace"))):
            case "delete":
                _without(data, path)
            case "rename":
                _renamed(data, path, draw(st.sampled_from(NAMES)))
            case _:
                _replaced(data, path, draw(st.sampled_from(POOL)))
    return data


def _has_null(data: Any) -> bool:
    if isinstance(data, dict):
        return any(_has_null(value) for value in data.values())
    if isinstance(data, list):
        return any(_has_null(value) for value in data)
    return data is None


def _shape_problems(data: dict[str, Any]) -> set[str]:
    """Return the types of pydantic's errors."""
    known = {key: value for key, value in data.items() if not key.startswith("x-")}
    try:
        Config.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        return {one["type"] for one in error.errors()}
    return {"null"} if _has_null(known) else set()


def _agree(data: dict[str, Any]) -> bool:
    """Whether only what a function of ours says of a single value is not in the schema."""
    problems = _shape_problems(data)
    if VALIDATOR.is_valid(data):
        return not problems or "value_error" in problems
    return bool(problems)


def test_the_schema_is_valid_2020_12() -> None:
    """The schema is itself a valid schema of the draft that it names."""
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("data", [*RICH, *HARDWARE])
def test_schema_and_shape_check_accept_the_rich_configurations(data: dict[str, Any]) -> None:
    """Configurations that use every option pass both."""
    assert not _shape_problems(data)
    assert VALIDATOR.is_valid(data)


@pytest.mark.parametrize("index", range(len(RICH)))
def test_deleting_any_key_is_judged_alike(index: int) -> None:
    """Without any one of its keys or items a configuration is legal to both or to neither."""
    for path in _paths(RICH[index]):
        data = copy.deepcopy(RICH[index])
        _without(data, path)
        assert _agree(data), data


@pytest.mark.parametrize("value", POOL, ids=repr)
def test_replacing_any_value_is_judged_alike(value: Any) -> None:
    """With any of its values replaced a configuration is legal to both or to neither."""
    disagreements = []
    for rich in RICH:
        for path in _paths(rich):
            data = copy.deepcopy(rich)
            _replaced(data, path, value)
            if not _agree(data):
                disagreements.append((path, _shape_problems(data)))
    assert not disagreements


@settings(max_examples=300)
@given(mutants())
@example(_of({"dev": None}))
@example(_of({"dev": "a", "glob": None}))
@example(_of({"static": {"count": 1, "ids": None}}))
@example(_config(**{"X-a": 1}))
@example(_config(**{"y-x-": 1}))
@example(_config(**{"x-": None}))
@example(_of({"static": "3"}))
@example(_of({"static": True}))
@example(_of({"static": 1}, topology=True))
@example(_of({"static": 1}, replicas=True))
@example(_of({"static": 1}, id=[]))
@example(_of({"static": 1}, allocate=[]))
@example(_of({"glob": {"paths": []}}))
@example(_of({"static": 1}, nodeNames=[]))
def test_schema_and_shape_check_agree_on_any_data(data: dict[str, Any]) -> None:
    assert _agree(data), data


@settings(max_examples=150)
@given(mutants())
def test_the_loader_accepts_no_file_that_the_schema_refuses(data: dict[str, Any]) -> None:
    """A file that loads is valid by the schema, and one of a wrong shape gets an error."""
    loaded = loads(yaml.safe_dump(data))
    if loaded.config is not None:
        assert VALIDATOR.is_valid(data)
    if not VALIDATOR.is_valid(data):
        assert any(problem.severity == "error" for problem in loaded.problems)


def test_every_option_has_a_description() -> None:
    """An editor shows what each option means: no property of the schema lacks its text."""
    bare = [
        f"{title}.{name}"
        for title, model in json_schema()["$defs"].items()
        for name, option in model.get("properties", {}).items()
        if "description" not in option
    ]
    assert not bare


def test_the_schema_in_the_repository_is_current() -> None:
    """The schema that the examples name is what `make generate` writes."""
    stored = pathlib.Path(__file__).parents[2] / "config" / "schema.json"
    assert json.loads(stored.read_text()) == json_schema()
