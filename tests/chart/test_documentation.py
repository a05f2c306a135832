"""What the chart says of itself is current and complete."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.helm import Helm
from tools import chart as generate
from tools.chart import Value
from tools.helm import CHART

TEMPLATES = [*(CHART / "templates").rglob("*.yaml"), *(CHART / "templates").rglob("*.t*")]


def leaves(values: tuple[Value, ...]) -> Iterator[Value]:
    for value in values:
        yield from leaves(value.children) if value.children else [value]


def test_the_table_of_values_is_current() -> None:
    text = generate.README.read_text()
    assert generate.readme(text) == text, "run make generate"


def test_each_value_has_a_description_and_a_section() -> None:
    found = list(leaves(generate.values()))
    assert len(found) > 50
    assert [value.path for value in found if not (value.description and value.section)] == []


def test_templates_use_each_value_and_no_other() -> None:
    """What a DaemonSet takes may come from a profile: then it is `$values.…` or of a helper."""
    text = "".join(path.read_text() for path in TEMPLATES)
    # A helper is handed its instance's values as the dot.
    used = set(re.findall(r"(?:\$?\.Values|\$?values)\.([A-Za-z.]+[A-Za-z])", text, re.IGNORECASE))
    used |= set(re.findall(r"[ (]\.((?:allow|deviceAccess)\.[a-z]+|securityContext)\b", text))
    paths = {value.path for value in leaves(generate.values())}
    # `.Values.image.tag` uses image.tag; `$values.probes.startup` uses probes.
    assert {path for path in paths if not any(covers(one, path) for one in used)} == set()
    assert {one for one in used if not any(covers(one, path) for path in paths)} == set()


def covers(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def test_a_profile_may_have_what_a_daemonset_takes() -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (keys,) = re.findall(r"\$keys := list (.*?) }}", helpers)
    profile = generate.schema()["properties"]["profiles"]["items"]["properties"]
    assert set(json.loads(f"[{keys.replace(' ', ',')}]")) == set(profile) - {"name", "config"}


def test_the_chart_describes_itself() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == ">=1.28.0-0"
    annotations = chart["annotations"]
    assert all(isinstance(value, str) for value in annotations.values())
    for change in yaml.safe_load(annotations["artifacthub.io/changes"]):
        kinds = {"added", "changed", "deprecated", "removed", "fixed", "security"}
        assert change["kind"] in kinds
        assert change["description"]


def test_no_template_speaks_of_a_single_file_mount() -> None:
    assert not [path for path in TEMPLATES if "subPath" in path.read_text()]


@pytest.mark.parametrize(
    "block", re.findall(r"```yaml\n(.*?)```", generate.README.read_text(), re.DOTALL)
)
def test_the_readmes_examples_render(helm: Helm, block: str) -> None:
    # "…" stands for what is the reader's own.
    resources = '[{"name": "e.com/t", "sources": [{"static": 2}]}]'
    text = block.replace("[…]", resources).replace("…", "images.example.com")
    assert helm.render(yaml.safe_load(text)).of("DaemonSet")
