"""The documentation of the chart and of the manifest is complete and valid."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from tests.deploy.helm import Helm
from tools import chart as generate
from tools.chart import Value
from tools.helm import CHART
from tools.manifest import MANIFEST

TEMPLATES = [*(CHART / "templates").rglob("*.yaml"), *(CHART / "templates").rglob("*.t*")]


def leaves(values: tuple[Value, ...]) -> Iterator[Value]:
    for value in values:
        yield from leaves(value.children) if value.children else [value]


def test_values_have_a_description_and_a_section() -> None:
    described = list(leaves(generate.values()))
    assert len(described) > 50
    assert [value.path for value in described if not (value.description and value.section)] == []


def test_templates_use_each_value_and_no_others() -> None:
    """A DaemonSet may take a value from a profile: then it is `$values.…` or of a helper."""
    text = "".join(path.read_text() for path in TEMPLATES)
    # A helper is handed its instance's values as the dot.
    used = set(
        re.findall(r"(?:\$?\.Values|\$?values)\.(?!yaml)([A-Za-z.]+[A-Za-z])", text, re.IGNORECASE)
    )
    used |= set(re.findall(r"[ (]\.((?:allow|deviceAccess)\.[a-z]+|securityContext)\b", text))
    paths = {value.path for value in leaves(generate.values())}
    # `.Values.image.tag` uses image.tag; `$values.probes.startup` uses probes.
    assert {path for path in paths if not any(covers(use, path) for use in used)} == set()
    assert {use for use in used if not any(covers(use, path) for path in paths)} == set()


def covers(path: str, part: str) -> bool:
    return f"{path}.".startswith(f"{part}.") or f"{part}.".startswith(f"{path}.")


def test_profile_keys_are_those_that_templates_merge() -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (keys,) = re.findall(r"\$keys := list (.*?) }}", helpers)
    profile = generate.schema()["properties"]["profiles"]["items"]["properties"]
    assert set(json.loads(f"[{keys.replace(' ', ',')}]")) == set(profile) - {"name", "config"}


@pytest.mark.parametrize(
    "block", re.findall(r"```yaml\n(.*?)```", generate.README.read_text(), re.DOTALL)
)
def test_readme_examples_render(helm: Helm, block: str) -> None:
    # "…" stands for what is the reader's own.
    resources = '[{"name": "e.com/t", "sources": [{"static": 2}]}]'
    text = block.replace("[…]", resources).replace("…", "images.example.com")
    assert helm.render(yaml.safe_load(text)).of("DaemonSet")


def test_manifest_has_a_configuration_that_devhost_serves_without_flags() -> None:
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    assert {document["metadata"].get("namespace") for document in documents[1:]} == {"devhost"}
    (text,) = next(doc for doc in documents if doc["kind"] == "ConfigMap")["data"].values()
    loaded = loads(text, policy=Policy(enforced=True))
    assert loaded.problems == ()
    assert loaded.config is not None
