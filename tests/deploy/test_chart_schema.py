"""values.schema.json: Helm understands it, and it refuses what the loader does."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from devhost.config.json_schema import json_schema
from devhost.config.loader import loads
from tests.deploy.helm import Helm
from tests.deploy.values import REFUSED, TOKENS, Values
from tests.unit.test_schema import EXAMPLES, VALUES, changed
from tools import chart as generate
from tools.helm import RefusedError

SCHEMA = generate.schema()
BASE = TOKENS["resources"][0]


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        yield from node.get("patternProperties", {})
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from patterns(item)


def test_schema_is_one_of_json_with_patterns_of_re2_and_its_own_references_alone() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for pattern in set(patterns(SCHEMA)):
        re2.compile(pattern)
    assert set(re.findall(r'"\$ref": "([^#"]*)', json.dumps(SCHEMA))) == {""}


CONFIG = jsonschema.Draft202012Validator(json_schema())
HELMS = jsonschema.Draft7Validator(SCHEMA)


def same(config: Any) -> bool:
    """Whether the chart's schema judges a configuration as that for editors does."""
    return HELMS.is_valid({"config": config}) is CONFIG.is_valid(config)


@pytest.mark.parametrize("data", EXAMPLES[:-1], ids=lambda data: data["resources"][0]["name"])
def test_schema_judges_a_change_as_that_for_editors(data: dict[str, Any]) -> None:
    # The chart has defaults for the two keys at the top.
    changes = (new for new in changed(data, VALUES) if {"version", "resources"} <= new.keys())
    assert [change for change in changes if not same(change)] == []


@given(
    st.text("aB1-._/")
    | st.tuples(
        st.sampled_from(
            ["a.b", "kubernetes.io", "x.kubernetes.io", "requests.a", "a" * 244, "a" * 245]
        ),
        st.sampled_from(["", "c", "c" * 63, "c" * 64, "-c", "c/kubernetes.io/d"]),
    ).map("/".join)
)
def test_schema_judges_a_name_as_that_for_editors(text: str) -> None:
    assert same({"version": "v1", "resources": [BASE | {"name": text}]})


@pytest.mark.parametrize(("resource", "path", "reason"), REFUSED["resources"])
def test_bad_resource_is_refused_by_place(
    helm: Helm, resource: Values, path: str, reason: str
) -> None:
    config = {"version": "v1", "resources": [BASE | resource]}
    assert loads(json.dumps(config)).config is None, "the loader takes it"
    profile = REFUSED["profile"] | {"config": config}
    for values, prefix in (
        ({"config": config}, "/config"),
        ({"profiles": [profile]}, "/profiles/0/config"),
    ):
        with pytest.raises(RefusedError) as refused:
            helm.render(values)
        assert prefix in str(refused.value)
        assert path in str(refused.value)
        assert reason in str(refused.value)
        lines = [line for line in str(refused.value).splitlines() if line.startswith(("- ", "  "))]
        assert len(lines) <= 3, "it says more than what is wrong"


@pytest.mark.parametrize(("values", "reason"), REFUSED["values"])
def test_bad_value_is_refused_with_its_place(helm: Helm, values: Values, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        helm.render(values)
    assert reason in str(refused.value)
