"""The values that devhost writes mean the same to Helm, to Python and to devhost."""

import base64
import json
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from devhost.cli import main
from devhost.config import yaml_tree
from devhost.drafts.draft import yaml_lines
from devhost.model.names import text_problem
from tests.deploy.helm import Helm
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.unit.test_machines import FLAGS, MACHINES
from tools.helm import CHART

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
ECHO: Final = {
    "Chart.yaml": "apiVersion: v2\nname: echo\nversion: 1.0.0\n",
    "templates/echo.yaml": "echo: {{ toJson .Values.config | b64enc }}\n",
}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """A chart that renders its values."""
    for name, text in ECHO.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def read_by_helm(helm: Helm, chart: Path, text: str) -> Any:
    values = chart / "values.yaml"
    values.write_text(text, encoding="utf-8")
    output = helm.run("template", "x", str(chart), f"--values={values}")
    return json.loads(base64.b64decode(output.partition("echo: ")[2]))


@settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(AMBIGUOUS)
@given(st.lists(TEXTS, min_size=50, max_size=100))
def test_texts_are_the_same_for_readers(helm: Helm, chart: Path, texts: list[str]) -> None:
    written = {"a": texts, "b": {text: text for text in texts}, "c": {"d": {"e": [*texts, 1]}}}
    lines = yaml_lines([written])
    text = "\n".join(["config:", *(f"  {line}" for line in lines)])
    assert yaml.safe_load(text) == {"config": [written]}
    assert yaml_tree.parse(text, yaml_tree.Extent()).data == {"config": [written]}
    assert read_by_helm(helm, chart, text) == [written]


def test_validate_warns_of_strings_that_helm_changes(helm: Helm, chart: Path) -> None:
    texts = [text for text in AMBIGUOUS if text[0].isalnum() or text[1:].isdecimal()]
    text = "config:\n" + "".join(f"- {text}\n" for text in texts)
    tree = yaml_tree.parse(text)
    helms = read_by_helm(helm, chart, text)
    differing = [
        path
        for path, value_of_helm in ((("config", index), value) for index, value in enumerate(helms))
        if isinstance(tree.value(path), str) and not isinstance(value_of_helm, str)
    ]
    assert [problem.path for problem in tree.ambiguous] == differing
    assert len(differing) > 10


@needs_root
@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_helm_accepts_the_values_that_init_writes(helm: Helm, path: Path, tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(path.read_text())
    values, flags = tmp_path / "values.yaml", tmp_path / "first.yaml"
    for file, options in ((values, ["--values"]), (flags, [])):
        arguments = ["init", "--yes", *options, "-o", str(file), "--root", str(tree.root)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    rendered = helm.run("template", "x", str(CHART), f"--values={values}")
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all(rendered)
        if document and document["kind"] == "DaemonSet"
    ]
    container = pod["containers"][0]
    allowed = [v["value"] for v in container["env"] if v["name"] == "DEVHOST_ALLOW_DEVICE"]
    named = shlex.split(flags.read_text().partition(FLAGS)[2])
    pairs = zip(named[::2], named[1::2], strict=True)
    rights = [value for flag, value in pairs if flag == "--allow-device"]
    assert " ".join(allowed).split() == rights
    assert ("inject: cdi" in flags.read_text()) == any(
        "--cdi-dir" in argument for argument in container["args"]
    )
    assert CliRunner().invoke(main, ["validate", str(values)]).exit_code == 0
