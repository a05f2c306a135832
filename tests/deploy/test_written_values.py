"""What devhost writes means the same to Helm, to Python and to devhost."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devhost.config import yaml_tree
from devhost.config.messages import ambiguous_scalars
from devhost.drafts.draft import resource_lines
from devhost.model.names import text_problem
from tests.deploy.helm import Helm

# Numbers, truth values, dates or nothing for some reader of YAML.
AMBIGUOUS: Final = """
    021323051182 7112E098 1e10 1E+10 12e-3 0e0 0x10 0X1F 0b11 0o17 017 08 09_1 1_000 1.5 1. .5 -.5 +5
    1:30 12:34:56 0403:6001 2001-01-01 2001-01-01T00:00:00Z 9223372036854775808 .inf -.INF .nan
    y Y n N yes No on OFF true FALSE tRue null Null NULL ~ = << - + ? : * & ! % @ ` | > # [] {}
""".split()  # noqa: SIM905 (a list has a line for each)
TEXTS: Final = st.one_of(
    st.sampled_from(AMBIGUOUS),
    st.from_regex(r"[0-9A-Fa-fxob_.:+-]{1,12}", fullmatch=True),
    st.text(max_size=20).filter(lambda text: text_problem(text) is None),
)
CHART: Final = {
    "Chart.yaml": "apiVersion: v2\nname: echo\nversion: 1.0.0\n",
    "templates/echo.yaml": "echo: {{ toJson .Values.config }}\n",
}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """A chart that renders its values."""
    for name, text in CHART.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def read_by_helm(helm: Helm, chart: Path, text: str) -> Any:
    values = chart / "values.yaml"
    values.write_text(text, encoding="utf-8")
    output = helm.run("template", "x", str(chart), f"--values={values}")
    return json.loads(output.partition("echo: ")[2])


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(AMBIGUOUS)
@given(st.lists(TEXTS, min_size=200, max_size=400))
def test_written_texts_are_the_same_texts_for_every_reader(
    helm: Helm, chart: Path, texts: list[str]
) -> None:
    written = {"a": texts, "b": {text: text for text in texts}, "c": {"d": {"e": [*texts, 1]}}}
    lines = resource_lines(written)
    text = "\n".join(["config:", *(f"  {line}" for line in lines)])
    assert yaml.safe_load(text) == {"config": [written]}
    assert yaml_tree.parse(text, yaml_tree.Extent()).data == {"config": [written]}
    assert read_by_helm(helm, chart, text) == [written]


def test_validate_warns_of_the_strings_that_helm_reads_as_something_else(
    helm: Helm, chart: Path
) -> None:
    texts = [text for text in AMBIGUOUS if text[0].isalnum() or text[1:].isdecimal()]
    text = "config:\n" + "".join(f"- {text}\n" for text in texts)
    tree = yaml_tree.parse(text)
    helms = read_by_helm(helm, chart, text)
    differing = [
        path
        for path, theirs in ((("config", index), value) for index, value in enumerate(helms))
        if isinstance(tree.value(path), str) and not isinstance(theirs, str)
    ]
    assert [path for path, _, _ in ambiguous_scalars(tree)] == differing
    assert len(differing) > 10
