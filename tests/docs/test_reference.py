"""Each key of docs/reference has an example that loads; DRA takes it or says why it does not."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from devhost.config.loader import loads
from tools.site import reference

EXAMPLES: Final = reference.load_examples()


@pytest.mark.parametrize("model", EXAMPLES)
def test_reference_examples_load(model: str) -> None:
    entry = EXAMPLES[model]
    for key, text in entry["keys"].items():
        example = yaml.safe_load(text)
        assert list(example) == [key]
        file = copy.deepcopy(entry.get("files", {}).get(key, entry["file"]))
        (place,) = places(file)
        del place["HERE"]
        place.update(example)
        loads(yaml.safe_dump(file), f"{model}.{key}").require()
        by_dra = loads(yaml.safe_dump({"backend": "dra", **file}), f"{model}.{key} by DRA")
        errors = [problem for problem in by_dra.problems if problem.severity == "error"]
        assert all("DRA" in problem.message for problem in errors), errors


def places(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "HERE" in value:
            yield value
        for child in value.values():
            yield from places(child)
    elif isinstance(value, list):
        for child in value:
            yield from places(child)
