"""Configurations in manifests and in the chart's values, with the positions of that file."""

import json
from pathlib import Path

import pytest

from devhost.loading.loader import Loaded, load, load_all

BODY = (
    "version: v1\nresources:\n  - name: example.com/a\n    sources: [static: 1]\n    replcas: 2\n"
)
GOOD = BODY.replace("replcas", "replicas")


def inside(text: str, columns: int) -> str:
    return "".join(f"{' ' * columns}{line}\n" for line in text.splitlines())


def config_map(*values: str, name: str = "a") -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n{''.join(values)}"


def checked(tmp_path: Path, text: str) -> list[Loaded]:
    file = tmp_path / "f.yaml"
    file.write_bytes(text.encode())
    return load_all(str(file))


def found(tmp_path: Path, text: str) -> list[str]:
    loaded = checked(tmp_path, text)
    return [f"{one.line}:{one.column} {one.path}" for part in loaded for one in part.problems]


@pytest.mark.parametrize("mark", ["|", "|-", "|+", "|2-", "| # a comment"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_block_has_the_positions_of_the_manifest(tmp_path: Path, mark: str, end: str) -> None:
    text = config_map(f"  config.yaml: {mark}\n", inside(BODY, 4))
    (part,) = checked(tmp_path, text.replace("\n", end))
    (problem,) = part.problems
    assert (problem.line, problem.column) == (11, 9)
    assert problem.resource == "example.com/a"
    assert part.name == "config.yaml of ConfigMap a"


def test_messages_have_the_numbers_of_the_manifest_too(tmp_path: Path) -> None:
    twice = GOOD + "    replicas: 3\n"
    (part,) = checked(tmp_path, config_map("  config.yaml: |\n", inside(twice, 4)))
    (problem,) = part.problems
    assert (problem.line, problem.column) == (12, 9)
    assert problem.message == "duplicate key (first defined on line 11)"


def test_an_error_of_yaml_in_a_block(tmp_path: Path) -> None:
    broken = BODY.replace("    replcas", "   replcas")
    text = config_map("  config.yaml: |\n", inside(broken, 4))
    assert found(tmp_path, text) == ["11:8 "]


def test_a_quoted_string_says_where_in_it(tmp_path: Path) -> None:
    (part,) = checked(tmp_path, config_map(f"  config.yaml: {json.dumps(BODY)}\n"))
    (problem,) = part.problems
    assert (problem.line, problem.column) == (6, 16)
    assert problem.message.startswith("line 5, column 5 of 'config.yaml': unknown key 'replcas'")
    assert problem.excerpt is not None
    assert (problem.excerpt.text, problem.excerpt.line) == ("    replcas: 2", 0)


def test_each_of_several_keys_and_documents_is_judged(tmp_path: Path) -> None:
    one = config_map("  a.yaml: |\n", inside(BODY, 4), "  b.yaml: |\n", inside(BODY, 6))
    other = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: x}\n"
    text = f"---\n{one}---\n{other}---\n{config_map('  nginx.conf: |', chr(10), '    a {}')}\n"
    parts = checked(tmp_path, text)
    assert [part.name for part in parts] == ["a.yaml of ConfigMap a", "b.yaml of ConfigMap a"]
    assert found(tmp_path, text) == [
        "12:9 resources[0].replcas",
        "18:11 resources[0].replcas",
    ]


def test_a_list_of_manifests(tmp_path: Path) -> None:
    item = inside(config_map("  config.yaml: |\n", inside(BODY, 4)), 4).replace(
        "    api", "  - api"
    )
    text = f"apiVersion: v1\nkind: List\nitems:\n{item}"
    assert found(tmp_path, text) == ["14:13 resources[0].replcas"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("image: {tag: a}\nconfig:\n" + inside(BODY, 2), "7:7 config.resources[0].replcas"),
        (
            "config:\n" + inside(BODY.replace("version: v1\n", ""), 2),
            "5:7 config.resources[0].replcas",
        ),
        ("devhost:\n  config:\n" + inside(BODY, 4), "7:9 devhost.config.resources[0].replcas"),
    ],
)
def test_the_values_of_the_chart(tmp_path: Path, text: str, at: str) -> None:
    assert found(tmp_path, text) == [at]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("config: {existingConfigMap: a}\n", "1:1"),
        (config_map("  config.yaml:\n", inside(BODY, 4)), "2:7"),
        (config_map("  config.yaml: |\n", "    # nothing yet\n"), "2:7"),
        ("apiVersion: v1\nkind: List\nitems: [1]\n", "2:7"),
    ],
)
def test_a_file_without_a_configuration_is_an_error(tmp_path: Path, text: str, at: str) -> None:
    (part,) = checked(tmp_path, text)
    (problem,) = part.problems
    assert f"{problem.line}:{problem.column}" == at
    assert "'version: v1' and 'resources:'" in problem.message


def test_a_dashboard_beside_a_configuration_is_none(tmp_path: Path) -> None:
    """As in what `helm template` prints."""
    dashboard = config_map('  dashboard.json: |\n    {\n      "version": 1\n    }\n')
    configuration = config_map("  config.yaml: |\n", inside(BODY, 4))
    assert len(found(tmp_path, f"{dashboard}---\n{configuration}")) == 1


def test_a_command_for_one_configuration_refuses_several(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(config_map("  a.yaml: |\n", inside(GOOD, 4), "  b.yaml: |\n", inside(GOOD, 4)))
    (problem,) = load(str(file)).problems
    assert problem.message == (
        "has 2 configurations (a.yaml of ConfigMap a, b.yaml of ConfigMap a); one is needed here"
    )


PROFILES = "profiles:\n  - name: a\n    config:\n" + inside(GOOD, 6)


def test_configurations_of_profiles_are_left_to_helm_with_a_warning(tmp_path: Path) -> None:
    (part,) = checked(tmp_path, f"config:\n{inside(GOOD, 2)}{PROFILES}")
    assert part.config is not None
    (problem,) = part.problems
    assert (problem.severity, problem.line) == ("warning", 7)
    assert problem.message.endswith("not read here: helm template … | devhost validate -")
    (part,) = checked(tmp_path, f"config: {{version: v1, resources: []}}\n{PROFILES}")
    (problem,) = part.problems
    assert (problem.severity, problem.line) == ("error", 2)


def test_what_values_allow_is_not_read(tmp_path: Path) -> None:
    """Who may edit a file could else allow itself everything."""
    values = "allow: {paths: [/srv]}\nconfig:\n" + inside(GOOD, 2)
    (part,) = checked(tmp_path, values + "      allocate: {mounts: [/srv]}\n")
    assert [one.message for one in part.problems] == ["mounts need --allow-path '/srv'"]


def test_values_may_say_what_the_pods_need(tmp_path: Path) -> None:
    """The chart's `resources` is not that of a configuration."""
    text = "resources: {limits: {memory: 1Gi}}\nconfig:\n" + inside(BODY, 2)
    assert found(tmp_path, text) == ["7:7 config.resources[0].replcas"]


def test_a_dependency_that_is_there_twice_has_no_one_configuration(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("".join(f"{name}:\n  config:\n{inside(GOOD, 4)}" for name in "ab"))
    (problem,) = load(str(file)).problems
    assert problem.message == "has 2 configurations (a.config, b.config); one is needed here"


def test_what_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Other readers take the second: what was checked must be what is applied."""
    key = f"  config.yaml: |\n{inside(GOOD, 4)}"
    assert found(tmp_path, config_map(key, key)) == ["12:3 "]
    values = f"config:\n{inside(GOOD, 2)}"
    assert found(tmp_path, values * 2) == ["7:1 "]


def test_the_configurations_of_a_file_are_limited(tmp_path: Path) -> None:
    key = "  a{}: |\n    version: v1\n    resources: []\n"
    text = config_map(*(key.format(number) for number in range(101)))
    ((problem,),) = [part.problems for part in checked(tmp_path, text)]
    assert problem.message == "more than 100 configurations in one file"
