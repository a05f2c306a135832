"""``devhost plan`` of some resources, and in its other forms."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from devhost.cli import main

CONFIG = """\
version: v1
resources:
  - {name: example.com/one, sources: [static: 1]}
  - {name: example.com/two, sources: [static: [a, b]]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


def plan(*args: object, **variables: str) -> Result:
    return CliRunner(env=variables).invoke(main, ["plan", *map(str, args)])


def names(*args: object, **variables: str) -> list[str]:
    """Return the names of the resources that are shown."""
    done = plan(*args, "-o", "json", **variables)
    assert done.exit_code == 0, done.stderr
    return [one["name"] for one in json.loads(done.stdout)["resources"]]


def test_some_resources(config: Path) -> None:
    assert names(config) == ["example.com/one", "example.com/two"]
    assert names(config, "example.com/two") == ["example.com/two"]
    assert names(config, "example.com/two", "example.com/one") == names(config)
    assert names(config, "example.com/two", "--allocate", "example.com/one=1") == names(config)
    done = plan(config, "example.com/two", "--against", config)
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [["example.com/two", "keep"]]


def test_the_file_may_be_left_out(config: Path) -> None:
    """But a file is never taken for a name."""
    assert names("example.com/two", DEVHOST_CONFIG=str(config)) == ["example.com/two"]
    done = plan("examples/two.yaml", DEVHOST_CONFIG=str(config))
    assert done.exit_code == 1
    assert "examples/two.yaml" in done.stderr


def test_explain_takes_no_value(config: Path) -> None:
    done = plan("--explain", config, "example.com/two")
    assert done.exit_code == 0, done.stderr
    assert "sources[0]:" in done.stdout
    assert "example.com/one" not in done.stdout


@pytest.mark.parametrize("more", [[], ["--against", "c.yaml"]])
def test_a_resource_that_there_is_not(
    config: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    done = plan("c.yaml", "example.com/three", *more)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no resource example.com/three for this node in c.yaml" in done.stderr


def test_a_resource_without_its_domain(config: Path) -> None:
    done = plan(config, "--allocate", "two=1")
    assert done.exit_code == 1
    assert "no resource two for this node" in done.stderr
    assert done.stderr.endswith("; did you mean 'example.com/two'?\n")


def test_two_files(config: Path) -> None:
    done = plan(config, config)
    assert done.exit_code == 2
    assert "only one CONFIG can be given" in done.stderr


@pytest.mark.parametrize("against", [False, True])
def test_the_same_as_yaml(config: Path, against: bool) -> None:
    more = ["--against", config] if against else []
    as_json, as_yaml = (plan(config, *more, "-o", form).stdout for form in ("json", "yaml"))
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_wide_has_every_column(config: Path) -> None:
    lines = plan(config, "example.com/two", "-o", "wide").stdout.splitlines()
    assert lines[1:] == [
        "DEVICE   HEALTH    NUMA   PATHS   CHECKED   REASON",
        "a        Healthy   -      -       -",
        "b        Healthy   -      -       -",
    ]
