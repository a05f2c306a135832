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
from tests.deploy.values import TOKENS, Values
from tests.unit.test_schema import EXAMPLES, VALUES, changed
from tools import chart as generate
from tools.helm import RefusedError

SCHEMA = generate.schema()
BASE = TOKENS["resources"][0]
PROFILE: Values = {"name": "a", "nodeSelector": {"a": "b"}, "config": TOKENS}


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


BAD = [
    ({"name": "x.kubernetes.io/a"}, "resources/0/name", "value must be 'domain/name, such as"),
    (
        {"sources": [{"directry": "/a"}]},
        "resources/0/sources/0",
        "additional properties 'directry'",
    ),
    ({"sources": [{"dev": "a", "glob": "/b"}]}, "resources/0/sources/0", "exactly one of direct"),
    ({"sources": [{"dev": 1}]}, "resources/0/sources/0/dev", "got number, want string or object"),
    ({"sources": [{"dev": "a("}]}, "resources/0/sources/0/dev", "missing closing )"),
    ({"sources": [{"usb": "1"}]}, "resources/0/sources/0/usb", "'vendor:product, such as"),
    ({"sources": [{"usb": {}}]}, "resources/0/sources/0/usb", "at least one of device, manuf"),
    ({"health": [{"exec": ["a"], "every": "1s"}]}, "health/0", "additional properties 'every'"),
    ({"health": {"checks": "radable"}}, "health/checks", "must be one of 'readable', 'writable'"),
    ({"removeMissingAfter": "soon"}, "removeMissingAfter", "'never, or a duration such as 5m'"),
    ({"allocate": {"env": {"A": "$id"}}}, "resources/0/allocate/env/A", "such as ${name}, and $$"),
    (
        {"allocate": {"devices": [{"hostPath": "/dev/a", "permissions": "rr"}]}},
        "permissions",
        "'letters: r (read)",
    ),
]


@pytest.mark.parametrize(("resource", "path", "reason"), BAD)
def test_bad_resource_is_refused_by_place(
    helm: Helm, resource: Values, path: str, reason: str
) -> None:
    config = {"version": "v1", "resources": [BASE | resource]}
    assert loads(json.dumps(config)).config is None, "the loader takes it"
    profile = PROFILE | {"config": config}
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


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tolerationz": []}, "additional properties 'tolerationz' not allowed"),
        ({"hostPaths": ["/"]}, "/hostPaths/0': '/' does not match"),
        ({"allow": {"paths": ["/opt/a b"]}}, "/allow/paths/0': value must be 'a glob of"),
        ({"probes": {"live": {}}}, "/probes': additional properties 'live' not allowed"),
        ({"probes": {"readiness": {"timeoutSeconds": "5"}}}, "got string, want null or integer"),
        ({"nodeSelector": {"a": True}}, "/nodeSelector/a': got boolean, want null or string"),
        ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type': value must be one of"),
        ({"fullnameOverride": "a.b"}, "/fullnameOverride': 'a.b' does not match"),
        ({"profiles": [PROFILE | {"podLabels": {"a": 1}}]}, "/profiles/0/podLabels/a'"),
        ({"profiles": [PROFILE | {"nodeSelector": {"a": None}}]}, "/profiles/0/nodeSelector'"),
        ({"image": {"digest": "sha256:0"}}, "/image/digest': 'sha256:0' does not match"),
        ({"profiles": [{"name": "a", "config": TOKENS}]}, "missing property 'nodeSelector'"),
        ({"profiles": [PROFILE | {"name": "A"}]}, "/profiles/0/name"),
        ({"profiles": [PROFILE | {"config": {}}]}, "config': missing properties 'version', 'reso"),
    ],
)
def test_bad_value_is_refused_with_its_place(helm: Helm, values: Values, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        helm.render(values)
    assert reason in str(refused.value)
