"""The JSON Schema accepts what the loader's shape check accepts, but for rules in code."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from devhost.config.json_schema import json_schema
from devhost.config.loader import loads
from devhost.model.config import Config

VALIDATOR: Final = Draft202012Validator(json_schema())
_EVERY: Final = yaml.safe_load(Path(__file__).with_name("schema.yaml").read_text())
EXAMPLES: Final[list[dict[str, Any]]] = [{"version": "v1", "resources": [r]} for r in _EVERY]
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

Place = tuple[str | int, ...]


def paths(data: Any, path: Place = ()) -> Iterator[Place]:
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
        return any(has_null(value) for value in (data.values() if isinstance(data, dict) else data))
    return data is None


def shape_problems(data: dict[str, Any]) -> set[str]:
    """Return the types of pydantic's errors."""
    standard = {key: value for key, value in data.items() if not key.startswith("x-")}
    try:
        Config.model_validate(standard)
    except ValidationError as error:
        return {problem["type"] for problem in error.errors()}
    return {"null"} if has_null(standard) else set()


def agree(data: dict[str, Any]) -> bool:
    """Whether only what a function of ours says of a single value is not in the schema."""
    problems = shape_problems(data)
    if VALIDATOR.is_valid(data):
        return not problems or "value_error" in problems
    return bool(problems)


def test_schema_is_valid_2020_12() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_schema_options_have_descriptions() -> None:
    bare = [
        f"{title}.{name}"
        for title, model in json_schema()["$defs"].items()
        for name, option in model.get("properties", {}).items()
        if "description" not in option
    ]
    assert not bare


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data["resources"][0]["name"])
def test_schema_and_loader_accept_every_option(data: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(data)
    assert not shape_problems(data)


@pytest.mark.parametrize("data", EXAMPLES[:-1], ids=lambda data: data["resources"][0]["name"])
def test_schema_and_loader_judge_a_change_alike(data: dict[str, Any]) -> None:
    assert [change for change in changed(data, VALUES) if not agree(change)] == []


def test_schema_refuses_nothing_that_the_loader_accepts() -> None:
    for data in EXAMPLES[:-1]:
        for change in changed(data, (None, [])):
            loaded = loads(yaml.dump(change, Dumper=yaml.CSafeDumper))
            assert loaded.config is None or VALIDATOR.is_valid(change), change
