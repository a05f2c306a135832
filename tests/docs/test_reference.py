"""docs/reference is what the code says, and each key has an example that loads."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from devhost.loading.loader import loads
from devhost.loading.schema import json_schema
from tools.site import reference

EXAMPLES: Final = reference.load_examples()
KEYS: Final = [(model, key) for model, one in EXAMPLES.items() for key in one["keys"]]


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_pages_are_current(name: str) -> None:
    kept = (reference.DIRECTORY / name).read_text(encoding="utf-8")
    assert reference.PAGES[name]() == kept, "run make generate"


def test_every_mapping_has_a_section() -> None:
    schema = json_schema()
    described = {model.__name__ for model in reference.SECTIONS} - {"Config"}
    assert described | set(reference._SAME) == set(schema["$defs"])
    for name, same in reference._SAME.items():
        fewer, more = (schema["$defs"][one]["properties"] for one in (name, same))
        assert fewer.keys() <= more.keys()


def test_every_key_has_an_example() -> None:
    schema = json_schema()
    properties = {"Config": schema["properties"]} | {
        name: one["properties"] for name, one in schema["$defs"].items()
    }
    wanted = [
        (model.__name__, key) for model in reference.SECTIONS for key in properties[model.__name__]
    ]
    assert sorted(wanted) == sorted(KEYS)


@pytest.mark.parametrize("model", EXAMPLES)
def test_the_examples_load(model: str) -> None:
    one = EXAMPLES[model]
    for key, text in one["keys"].items():
        example = yaml.safe_load(text)
        assert list(example) == [key]
        file = copy.deepcopy(one.get("files", {}).get(key, one["file"]))
        (place,) = places(file)
        del place["HERE"]
        place.update(example)
        loads(yaml.safe_dump(file), f"{model}.{key}").require()


def places(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "HERE" in value:
            yield value
        for one in value.values():
            yield from places(one)
    elif isinstance(value, list):
        for one in value:
            yield from places(one)
