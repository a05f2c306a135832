"""``devhost plan --against``: what a change of configuration would do, on the command line."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.command import Done, called

PROGRAM: Final = (sys.executable, "-m", "devhost")
OLD: Final = """\
version: v1
resources:
  - name: example.com/token
    sources: [static: 3]
  - name: example.com/cola
    sources: [directory: /etc/colas]
  - name: example.com/fuse
    sources: [dev: fuse]
"""
NEW: Final = """\
version: v1
resources:
  - name: example.com/cola
    sources: [directory: /etc/colas]
    replicas: 3
    maxDevices: 2
  - name: example.com/token
    sources: [static: 3]
  - name: example.org/fuse
    sources: [dev: fuse]
"""
BAD: Final = OLD.replace("static: 3", "statik: 3")
MOUNT: Final = OLD + "    allocate: {mounts: [/opt/tools]}\n"


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what would change devhost's defaults."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DEVHOST_", "_DEVHOST", "NO_COLOR", "FORCE_COLOR"))
    }
    return kept | variables


def run(*args: object, stdin: str = "", **variables: str) -> Done:
    """Run ``devhost plan`` to its end."""
    return called("plan", *args, stdin=stdin, **variables)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return written(tmp_path / "old.yaml", OLD)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return written(tmp_path / "new.yaml", NEW)


def compared(*args: object, **options: str) -> list[dict[str, Any]]:
    """Return what ``-o json`` prints."""
    done = run(*args, "-o", "json", **options)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def actions(found: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: one["action"] for one in found}


# ── json ──


def test_as_json(old: Path, new: Path) -> None:
    """The contract: a list of names, actions and reasons in the new file's order."""
    found = compared(new, "--against", old)
    assert [list(one) for one in found] == [["name", "action", "reasons"]] * 4
    assert list(actions(found).items()) == [
        ("example.com/cola", "update"),
        ("example.com/token", "keep"),
        ("example.org/fuse", "start"),
        ("example.com/fuse", "drain"),
    ]
    cola, token, started, drained = (one["reasons"] for one in found)
    assert cola[0] == "maxDevices default → 2"
    assert cola[1].startswith("replicas 1 → 3: devices stay Unhealthy until ")
    assert token == []
    assert started[-1].startswith("looks renamed from example.com/fuse: ")
    assert drained[-1].startswith("looks renamed to example.org/fuse: ")


def test_the_direction(old: Path, new: Path) -> None:
    """CONFIG is the new one, --against the old one."""
    found = compared(old, "--against", new)
    assert actions(found)["example.com/fuse"] == "start"
    assert found[1]["reasons"][0] == "maxDevices 2 → default"


def test_the_configuration_by_variable(old: Path, new: Path) -> None:
    """Without an argument the new one is that of DEVHOST_CONFIG."""
    found = compared("--against", old, DEVHOST_CONFIG=str(new))
    assert actions(found)["example.org/fuse"] == "start"


@pytest.mark.parametrize("piped", ["new", "old"])
def test_either_by_standard_input(old: Path, new: Path, piped: str) -> None:
    """``kubectl get configmap … | devhost plan new.yaml --against -``, or the other way."""
    args = ("-", "--against", old) if piped == "new" else (new, "--against", "-")
    done = run(*args, "-o", "json", stdin=NEW if piped == "new" else OLD)
    assert done.returncode == 0
    assert json.loads(done.stdout) == compared(new, "--against", old)


def test_the_same_file(old: Path) -> None:
    """Nothing to do is no error."""
    assert set(actions(compared(old, "--against", old)).values()) == {"keep"}


def test_the_node_counts(tmp_path: Path, old: Path) -> None:
    """A resource that is for other nodes drains, or is kept, by the node's name."""
    text = OLD.replace("[static: 3]", "[static: 3]\n    nodeNames: [gpu-*]")
    new = written(tmp_path / "new.yaml", text)
    for node, action in (("gpu-7", "keep"), ("a", "drain")):
        found = compared(new, "--against", old, "--node-name", node)
        assert actions(found)["example.com/token"] == action
    assert actions(compared(new, "--against", new, "--node-name", "a")) == {
        "example.com/cola": "keep",
        "example.com/fuse": "keep",
    }


def test_the_host_is_not_touched(tmp_path: Path, old: Path) -> None:
    """What a source would find, or fail at, does not matter."""
    long = "x" * 300  # no filesystem has such a name: a scan fails
    new = written(tmp_path / "new.yaml", OLD.replace("/etc/colas", f"/{long}"))
    assert run(new).returncode == 1
    assert actions(compared(new, "--against", old))["example.com/cola"] == "update"


# ── for people ──


def test_as_a_table(old: Path, new: Path) -> None:
    """A line for each reason of a resource, for programs."""
    done = run(new, "--against", old)
    assert (done.returncode, done.stderr) == (0, "")
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["RESOURCE", "ACTION", "REASON"]
    starts = dict.fromkeys(tuple(line.split()[:2]) for line in lines)
    assert [*map(list, starts)] == [
        ["example.com/cola", "update"],
        ["example.com/token", "keep"],
        ["example.org/fuse", "start"],
        ["example.com/fuse", "drain"],
    ]
    column = heading.index("REASON")
    assert lines[0][column:] == "maxDevices default → 2"
    assert lines[1][column:].startswith("replicas 1 → 3: ")
    assert "\x1b" not in done.stdout


def test_without_resources(tmp_path: Path) -> None:
    """No resources on either side are no failure."""
    empty = written(tmp_path / "c.yaml", "version: v1\nresources: []\n")
    done = run(empty, "--against", empty)
    assert (done.returncode, done.stdout) == (0, "RESOURCE   ACTION   REASON\n")
    assert compared(empty, "--against", empty) == []


# ── refused ──


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("bad", ["new", "old", "both"])
def test_an_invalid_configuration(tmp_path: Path, bad: str, output: str) -> None:
    """Exit 1, the problems of both files on standard error, nothing on standard output."""
    old = written(tmp_path / "old.yaml", BAD if bad != "new" else OLD)
    new = written(tmp_path / "new.yaml", BAD if bad != "old" else OLD)
    done = run(new, "--against", old, "-o", output)
    assert (done.returncode, done.stdout) == (1, "")
    wrong = {"new": [new], "old": [old], "both": [old, new]}[bad]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        str(path) for path in wrong
    ]
    assert all(": error: " in line for line in done.stderr.splitlines())


def test_a_missing_file(new: Path) -> None:
    """A file that cannot be read is one line and exit 1."""
    done = run(new, "--against", "/no/such/file")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("/no/such/file:1:1: error: cannot be read: ")


def test_warnings_of_both_files(tmp_path: Path) -> None:
    """What `run` would refuse without a flag is a warning, apart from the JSON; a flag silences it."""
    old = written(tmp_path / "old.yaml", MOUNT)
    new = written(tmp_path / "new.yaml", MOUNT)
    done = run(new, "--against", old, "-o", "json")
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [str(old), str(new)]
    assert set(actions(json.loads(done.stdout)).values()) == {"keep"}
    compared(new, "--against", old, "--allow-path", "/opt/*")


@pytest.mark.parametrize(
    "args",
    [
        ("c.yaml", "--against"),
        ("c.yaml", "--against", "d.yaml", "--allocate", "example.com/token=1"),
        ("-", "--against", "-"),
    ],
)
def test_usage(args: tuple[str, ...]) -> None:
    """A usage error exits 2 and prints nothing on standard output."""
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--against" in done.stderr
