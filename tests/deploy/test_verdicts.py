"""A file gets one verdict: of `devhost validate`, of Helm with the chart, and of devhost on a node."""

import itertools
import json
import re
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.config.chart_values import InstanceValues, Profile, Values
from devhost.config.loader import load_all, loads
from devhost.config.yaml_tree import parse
from devhost.model.values import key_of
from tests.deploy.helm import Helm
from tests.support.command import called
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.unit.test_loading_problems import AROUND, GOLDEN, cases, text_of
from tools import chart
from tools.helm import CHART, RefusedError

# By group: configurations, as in tests/unit/golden, and values.
CORPUS: Final[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("verdicts.yaml").read_text()
)
# As a message has it, to be pasted.
FLAG: Final = re.compile(r"(--allow-\w+)(?: (?:'([^']+)'|([^-(]\S*)))?")
_PLURAL: Final = {"path", "device", "resource", "annotation"}


def values_of(case: str) -> str:
    """Return the text of values with the case."""
    if case.split(" ", 1)[0] not in AROUND:
        return f"{case}\n"
    return f"config:\n{textwrap.indent(text_of(case), '  ')}\n"


def validated(values: str, file: Path) -> bool:
    """Return the verdict of `devhost validate`."""
    file.write_text(values, encoding="utf-8")
    parts = load_all(str(file), Policy(adds_values=True))
    return all(part.config is not None for part in parts)


def rendered(values: str, file: Path, helm: Helm) -> list[Mapping[str, Any]] | None:
    """Return what Helm makes of a file of values; ``None`` if it refuses it."""
    file.write_text(values, encoding="utf-8")
    try:
        text = helm.run("template", "test", str(CHART), "--kube-version=1.37.0", f"-f={file}")
    except RefusedError:
        return None
    return [document for document in yaml.safe_load_all(text) if document]


def served(documents: list[Mapping[str, Any]]) -> bool:
    """Return the verdict of `devhost run` in the pods, with their flags."""
    maps = {doc["metadata"]["name"]: doc for doc in documents if doc["kind"] == "ConfigMap"}
    verdicts = []
    for daemon_set in (document for document in documents if document["kind"] == "DaemonSet"):
        (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
        flags: dict[str, Any] = {}
        for variable in container.get("env", ()):
            key = variable["name"].lower().removeprefix("devhost_allow_")
            if key != variable["name"].lower():
                words = tuple(variable["value"].split())
                flags[f"allow_{key}{'s' * (key in _PLURAL)}"] = key == "exec" or words
            elif variable["name"] == "DEVHOST_DRA":
                flags["dra"] = True
        if "--allow-exec" in container["args"]:
            flags["allow_exec"] = True
        if (config_map := maps.get(daemon_set["metadata"]["name"])) is not None:
            policy = Policy(**flags)
            verdicts.append(loads(config_map["data"]["config.yaml"], policy=policy).config)
    return all(config is not None for config in verdicts)


def admitted(documents: list[Mapping[str, Any]], file: Path) -> bool:
    """Return the verdict of the chart's hook: of its command on its ConfigMap."""
    hooks = {doc["kind"]: doc for doc in documents if "annotations" in doc["metadata"]}
    (container,) = hooks["Job"]["spec"]["template"]["spec"]["containers"]
    *arguments, path = container["args"]
    file.write_text(hooks["ConfigMap"]["data"][Path(path).name], encoding="utf-8")
    return CliRunner().invoke(main, [*arguments, str(file)]).exit_code == 0


@pytest.mark.parametrize(
    ("group", "validates", "renders", "admits", "serves"),
    [
        ("right", True, True, True, True),
        ("warned", True, True, False, True),
        ("wrong", False, False, False, False),
        ("together", False, True, False, False),
        ("values", False, True, False, True),
        ("notation", False, True, True, True),
    ],
)
def test_file_has_one_verdict(
    helm: Helm,
    tmp_path: Path,
    group: str,
    validates: bool,
    renders: bool,
    admits: bool,
    serves: bool,
) -> None:
    files = [tmp_path / f"{index}.yaml" for index, _ in enumerate(CORPUS[group])]

    def outcome(case: str, file: Path) -> tuple[bool, list[Mapping[str, Any]] | None]:
        values = values_of(case)
        return validated(values, file), rendered(values, file, helm)

    with ThreadPoolExecutor(2) as threads:
        outcomes = [*threads.map(outcome, CORPUS[group], files)]
    verdicts = [
        (case, valid, False, False, False)
        if documents is None
        else (case, valid, True, admitted(documents, file), served(documents))
        for case, file, (valid, documents) in zip(CORPUS[group], files, outcomes, strict=True)
    ]
    assert [v for v in verdicts if v[1:] != (validates, renders, admits, serves)] == []


@needs_root
@pytest.mark.parametrize("case", CORPUS["rights"], ids=str)
def test_missing_right_is_told_and_refused(case: dict[str, Any], tmp_path: Path) -> None:
    tree, file = HostTree(tmp_path / "host"), tmp_path / "c.yaml"
    tree.hardware(CORPUS["machine"])
    resource = {key: value for key, value in case.items() if key != "rights"}
    allowed = {"name": "a.b/other", "sources": ["/dev/hw_random"]}
    text = {"version": "v1", "resources": [{"name": "a.b/c", **resource}, allowed]}
    file.write_text(yaml.safe_dump(text))

    def reasons(*rights: str) -> list[str | None]:
        done = called("plan", file, "--root", tree.root, "-o", "json", *rights)
        refused, beside = json.loads(done.stdout)["resources"]
        assert beside["allocatable"] == 1
        return [device["reason"] for device in refused["devices"]]

    answer = called("validate", "--enforce", file)
    rights = case.get("rights", pasted(answer.stdout))
    assert (answer.returncode == 0) == (rights == [])
    refusals = reasons()
    assert refusals
    assert all(pasted(reason or "") != [] for reason in refusals) == (rights != [])
    assert called("validate", "--enforce", file, *rights).returncode == 0
    assert set(reasons(*rights)) == {None}


def pasted(text: str) -> list[str]:
    """Return the flags that messages name, as words of a command line."""
    return [word for words in FLAG.findall(text) for word in words if word]


def test_schema_of_the_chart_takes_what_the_loader_takes() -> None:
    schema = jsonschema.Draft7Validator(chart.schema())
    taken = 0
    for case, _ in itertools.chain.from_iterable(map(cases, GOLDEN)):
        text = text_of(case)
        if loads(text).config is not None:
            data = parse(text).data
            if isinstance(data.get("resources"), list):  # not a manifest, or values
                taken += 1
                assert schema.is_valid({"config": data}), case
    assert taken > len(GOLDEN)


@pytest.mark.parametrize(
    ("model", "schema"),
    [(Values, chart.schema()), (Profile, chart.schema()["properties"]["profiles"]["items"])],
)
def test_validate_has_the_keys_of_values(
    model: type[InstanceValues], schema: Mapping[str, Any]
) -> None:
    keys = {key_of(model, name) for name in model.model_fields}
    assert keys | {*model.unexamined} == set(schema["properties"])
