"""Configurations in manifests and in the chart's values, with the positions of that file."""

import json
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.loading.loaded import Loaded
from devhost.loading.loader import load, load_all, load_bytes

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


def test_a_folded_string_loses_its_lines(tmp_path: Path) -> None:
    (part,) = checked(tmp_path, config_map("  config.yaml: >\n", inside(BODY, 4)))
    assert [one.message for one in part.problems] == [
        "'>' joins the lines of a text; write 'config.yaml: |'"
    ]


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
        (
            "config: {resources: []}\nprofiles:\n  - name: a\n    config:\n" + inside(BODY, 6),
            "9:11 profiles[0].config.resources[0].replcas",
        ),
    ],
)
def test_the_values_of_the_chart(tmp_path: Path, text: str, at: str) -> None:
    assert found(tmp_path, text) == [at]


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("config: {existingConfigMap: a}\n", "1:29", "the configuration is not here: check the ConfigMap of this name"),
        (config_map("  config.yaml:\n", inside(BODY, 4)), "6:3", "should be a string; write 'config.yaml: |'"),
        (config_map("  nginx.conf: a\n"), "5:1", "no key of this ConfigMap has a configuration"),
        ("apiVersion: v1\nkind: List\nitems: [1]\n", "2:7", "a Kubernetes manifest (List), not a configuration"),
    ],
)  # fmt: skip
def test_where_there_is_none(tmp_path: Path, text: str, at: str, says: str) -> None:
    (part,) = checked(tmp_path, text)
    (problem,) = part.problems
    assert f"{problem.line}:{problem.column}" == at
    assert problem.message.startswith(says)


def test_a_command_for_one_configuration_refuses_several(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(config_map("  a.yaml: |\n", inside(GOOD, 4), "  b.yaml: |\n", inside(GOOD, 4)))
    (problem,) = load(str(file)).problems
    assert problem.message == (
        "has 2 configurations (a.yaml of ConfigMap a, b.yaml of ConfigMap a); one is needed here"
    )


VALUES = """\
hostPaths: [/srv]
allow:
  paths: [/srv/a]
config:
  resources:
    - name: example.com/a
      sources: [static: 1]
      allocate: {mounts: [/srv/a, /srv/b]}
profiles:
  - name: big
    allow: {paths: [/srv/b]}
    config:
      version: v1
      resources:
        - name: example.com/b
          sources: [static: 1]
          allocate: {mounts: [/srv/a, /srv/b]}
  - name: own
    allow: {paths: [], exec: true}
    config: {version: v1, resources: []}
"""
ONE = VALUES.partition("profiles:")[0]


@pytest.mark.parametrize(
    ("profile", "line", "refused"), [("default", 8, "/srv/b"), ("big", 17, "/srv/a")]
)
def test_values_decide_what_is_allowed(
    tmp_path: Path, profile: str, line: int, refused: str
) -> None:
    """As the chart does: a list of a profile replaces the one above. Flags are added."""
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    (problem,) = load(str(file), profile=profile).problems
    assert (problem.line, problem.severity) == (line, "warning")
    assert problem.message == f"mounts need --allow-path '{refused}'"
    flags = Policy(enforced=True, allow_paths=(refused,))
    assert not load(str(file), flags, profile).problems
    parts = load_all(str(file))
    assert [part.policy.allow_paths for part in parts] == [("/srv/a",), ("/srv/b",), ()]
    assert [part.policy.allow_exec for part in parts] == [False, False, True]


def test_a_running_host_takes_nothing_from_the_values() -> None:
    """Who may edit its file could else allow itself everything."""
    loaded = load_bytes(ONE.encode(), "values.yaml", Policy(enforced=True))
    assert [one.message for one in loaded.problems] == [
        "mounts need --allow-path '/srv/a'",
        "mounts need --allow-path '/srv/b'",
    ]


def test_one_of_several_profiles_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    (problem,) = load(str(file)).problems
    assert problem.message == (
        "has 3 profiles: default, big, own; choose one with --profile, or with 'profile' in a "
        "file of tests"
    )
    (problem,) = load(str(file), profile="bog").problems
    assert problem.message == "no profile 'bog'; there are: default, big, own"
    file.write_text(ONE)
    assert load(str(file)).config is not None
    file.write_text(GOOD)
    (problem,) = load(str(file), profile="big").problems
    assert problem.message.endswith("there are: none, as these are not values of the chart")


@pytest.mark.parametrize(
    ("allow", "at", "says"),
    [
        ("{path: [/a]}", "1:9", "allow.path: unknown key 'path'; did you mean 'paths'?"),
        ("{paths: /a}", "1:16", "allow.paths: should be a list of strings"),
        ("{paths: [a]}", "1:17", "allow.paths[0]: 'a' does not begin with '/'"),
        ("{devices: [tty*]}", "1:19", "allow.devices[0]: 'tty*' is not a class; a glob on paths"),
        ("{devices: ['']}", "1:19", "allow.devices[0]: '' is empty or contains a space"),
        ("{paths: ['/a b']}", "1:17", "allow.paths[0]: '/a b' is empty or contains a space; '?'"),
        ("{path: null}", "1:9", "allow.path: unknown key 'path'"),
        ("{exec: true, exec: false}", "1:21", "duplicate key (first defined on line 1)"),
        ("", "1:7", "allow: should be a mapping"),
        ("{exec: always}", "1:15", "allow.exec: should be true or false"),
        ("[/a]", "1:8", "allow: should be a mapping"),
    ],
)
def test_what_values_cannot_allow(tmp_path: Path, allow: str, at: str, says: str) -> None:
    (part,) = checked(tmp_path, f"allow: {allow}\nconfig:\n{inside(GOOD, 2)}")
    (problem,) = part.problems
    assert f"{problem.line}:{problem.column}" == at
    assert problem.message.startswith(says)


def test_mistakes_in_what_values_allow_hide_no_others(tmp_path: Path) -> None:
    text = "allow:\n  path: [/a]\n  paths: [a, /srv/ok]\nhostPaths: [/srv]\nconfig:\n"
    assert found(tmp_path, text + inside(BODY, 2)) == [
        "2:3 ",
        "3:11 ",
        "10:7 config.resources[0].replcas",
    ]


@pytest.mark.parametrize(
    ("values", "glob", "hint"),
    [
        ("hostPaths: []", "/srv/a", "add /srv/a, or a parent directory that all nodes have, to"),
        ("hostPaths: [/srv/ab]", "/srv/a*", "add /srv, or a parent"),
        ("hostPaths: [/srv]", "*", "set hostRoot.enabled, or a narrower path"),
        ("hostPaths: [/srv/]", "/srv/a*", None),
        ("hostRoot: {enabled: true}", "/srv/a", None),
        ("hostPaths: []", "/dev/sd[b-z]", None),
    ],
)
def test_the_chart_refuses_to_allow_what_it_does_not_mount(
    tmp_path: Path, values: str, glob: str, hint: str | None
) -> None:
    """A warning: another file of values may mount it."""
    text = f"{values}\nallow:\n  paths: ['{glob}']\nconfig:\n{inside(GOOD, 2)}"
    (part,) = checked(tmp_path, text)
    said = f"allow.paths[0]: '{glob}' is not below a directory that the chart mounts; {hint}"
    assert [one.message.startswith(said) for one in part.problems] == [True] * bool(hint)
    assert part.config is not None


def test_sources_that_the_chart_does_not_mount(tmp_path: Path) -> None:
    body = GOOD.replace("[static: 1]", "[/srv/a*, directory: /srv/b/c, /etc/x*, /dev/kvm]")
    assert body != GOOD
    (part,) = checked(tmp_path, f"hostPaths: [/srv/b]\nconfig:\n{inside(body, 2)}")
    assert [one.message.partition(", or")[0] for one in part.problems] == [
        "'/srv/a*' is not below a directory that the chart mounts; add /srv",
        "'/etc/x*' is not below a directory that the chart mounts; add /etc",
    ]


def test_values_may_say_what_the_pods_need(tmp_path: Path) -> None:
    """The chart's `resources` is not that of a configuration."""
    text = "resources: {limits: {memory: 1Gi}}\nconfig:\n" + inside(BODY, 2)
    assert found(tmp_path, text) == ["7:7 config.resources[0].replcas"]


def test_without_resources_of_its_own_the_chart_serves_profiles_alone(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        "config: {version: v1, resources: []}\n"
        "profiles:\n  - name: a\n    config:\n" + inside(GOOD, 6)
    )
    assert [part.profile for part in load_all(str(file))] == ["a"]


def test_a_dependency_that_is_there_twice_has_no_profile_to_choose(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("".join(f"{name}:\n  config:\n{inside(GOOD, 4)}" for name in "ab"))
    (problem,) = load(str(file)).problems
    assert problem.message == "has 2 configurations (a.config, b.config); one is needed here"


@pytest.mark.parametrize(
    "block", ["", "    \n    \n", "    # nothing yet\n", "    {{ .Values.a }}\n"]
)
def test_a_block_without_a_configuration_is_at_its_mark(tmp_path: Path, block: str) -> None:
    text = config_map("  config.yaml: |\n", block) + "immutable: true\n"
    assert found(tmp_path, text) == ["6:16 "]


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
