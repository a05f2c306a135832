"""Attacks on a command by the names of devices, which anybody who writes to a directory chooses."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.host.prestart.steps import Start, run_step
from devhost.loading.loader import loads
from devhost.model import pattern
from tests.trust.attack import NAME, Victim, config, policy

CONSTANTS: Final = {"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"}
OPTION: Final = "begins with '-'"
SHELL: Final = "the shell would run"


def step(*argv: str) -> dict[str, Any]:
    return {"preStart": [{"run": [*argv], "every": "start"}]}


def warnings(resource: dict[str, Any]) -> list[str]:
    loaded = loads(config(resource), policy=policy("*", execs=True))
    assert loaded.config is not None, loaded.problems
    return [one.message for one in loaded.problems]


# ── at load ──

FILES: Final = {"sources": [{"directory": "/d"}]}


@pytest.mark.parametrize(
    ("sources", "argument", "warned"),
    [
        (FILES, "${name}", True),
        (FILES, "${id}", True),
        (FILES, "${name}.conf", True),
        (FILES, "${path}", False),
        (FILES, "${realpath}", False),
        (FILES, "--name=${name}", False),
        (FILES, "./${name}", False),
        (FILES, "${resource}", False),
        (FILES, "${index}", False),
        ({**FILES, "id": "x${name}"}, "${id}", False),
        ({**FILES, "id": "x${name}"}, "${name}", True),
        ({**FILES, "id": ["${name}", "x${path}"]}, "${id}", True),
        ({**FILES, "id": "-${name}"}, "${id}", True),
        ({**FILES, "group": "g${name}"}, "${id}", False),
        ({**FILES, "group": "${name}"}, "${id}", True),
        ({"sources": [{"static": 3}]}, "${id}", False),
        ({"sources": [{"static": {"ids": ["a", "-b"]}}]}, "${id}", True),
        ({"sources": [{"dev": "tty(?P<n>[0-9]+)"}]}, "${n}", False),
        ({"sources": [{"dev": "tty(?P<n>.+)"}]}, "${n}", True),
        ({"sources": [{"dev": "tty(?P<n>a|-b)"}]}, "${n}", True),
        ({"sources": [{"dev": "tty(?P<n>[a-z]+)"}, {"dev": "(?P<n>.*)"}]}, "${n}", True),
        ({"sources": [{"directory": "/d", "as": "a"}], "group": "x"}, "${a.name}", True),
        ({"sources": [{"directory": "/d", "as": "a"}], "group": "x"}, "${a.path}", False),
    ],
)
@pytest.mark.parametrize("place", ["preStart", "health"])
def test_an_argument_that_may_be_an_option_is_a_warning(
    sources: dict[str, Any], argument: str, warned: bool, place: str
) -> None:
    """With what would be right; a path always begins with a slash."""
    if place == "health" and argument == "${index}":
        pytest.skip("not available there")
    command = step("tool", argument)
    if place == "health":
        command = {"health": [{"exec": ["tool", argument]}]}
    assert any(OPTION in one for one in warnings({**sources, **command})) is warned


def test_the_warning_has_its_position() -> None:
    text = (
        "version: v1\nresources:\n  - name: e.com/a\n    sources: [directory: /d]\n"
        '    preStart: [{every: start, run: [tool, -x, "${name}"]}]\n'
    )
    (problem,) = loads(text, "f.yaml", policy(execs=True)).problems
    assert str(problem).startswith("f.yaml:5:47: warning: resources[0].preStart[0].run[2]: if ")


@pytest.mark.parametrize(
    ("argv", "warned"),
    [
        (["sh", "-c", "tool ${path}"], True),
        (["/bin/bash", "-ec", "tool '${name}'"], True),
        (["sh", "-c", 'tool "$$1"', "sh", "${path}"], False),
        (["sh", "-c", "tool ${resource} ${index}"], False),
        (["tool", "-c", "${path}"], False),
        (["sh", "script", "${path}"], False),
    ],
)
def test_a_script_with_a_devices_name_is_a_warning(argv: list[str], warned: bool) -> None:
    """A file's name may have a semicolon."""
    assert any(SHELL in one for one in warnings({**FILES, **step(*argv)})) is warned


@pytest.mark.parametrize(
    ("text", "group", "may"),
    [
        ("(?P<n>[0-9]+)", "n", False),
        ("(?<n>[0-9]+)", "n", False),
        ("a(?P<n>(x|y)z)-(?P<m>-)", "n", False),
        ("a(?P<n>(x|y)z)-(?P<m>-)", "m", True),
        (r"(?P<n>\(a)(-)", "n", False),
        (r"(?P<n>[)-])x", "n", True),
        (r"(?P<n>\Q)\E-)", "n", False),
        (r"(?P<n>\Q-)\E)", "n", True),
        ("(?P<n>-?a)", "n", True),
        ("(?P<n>.*)", "n", True),
        ("(?i)(?P<n>[a-z]+)", "n", False),
    ],
)
def test_what_a_group_may_begin_with(text: str, group: str, may: bool) -> None:
    assert pattern.may_begin_with(text, group, "-") is may


# ── at run time ──


@pytest.mark.parametrize("name", ["-rf", "--config=x", "-"])
@pytest.mark.parametrize("argument", ["${name}", "${id}", "${name}.x"])
async def test_a_devices_name_becomes_no_option(node: Victim, name: str, argument: str) -> None:
    """Neither in a step nor in a check; a name that begins otherwise, and a path, are passed."""
    node.file(f"/d/{name}")
    node.file("/d/fine")
    out = node.root / "out"
    record = f"import json, sys; open({str(out)!r}, 'a').write(json.dumps(sys.argv[1:]))"
    argv = [sys.executable, "-c", record, argument, "--x=${name}", "${path}"]
    resource = {**FILES, **step(*argv), "health": [{"exec": argv}]}
    scanner = node.scanner(resource, "*", execs=True)
    snapshot = node.scan(scanner)
    checks, (first, *_) = scanner.resource.health, scanner.resource.pre_start
    assert checks is not None

    async def run(device_id: str) -> None:
        start = Start(
            resource=NAME,
            device=snapshot.devices[device_id],
            constants=CONSTANTS,
            files=node.files,
            policy=scanner.policy,
            deadline=asyncio.get_running_loop().time() + 60,
        )
        await run_step(0, first, start)

    with pytest.raises(PreStartError, match="would be an option"):
        await run(name)
    outcome = await asyncio.to_thread(
        check, checks, snapshot.devices[name], node.files, CONSTANTS, allow=scanner.policy
    )
    assert "would be an option" in (outcome.failure or "")
    assert not out.exists()
    await run("fine")
    assert json.loads(out.read_text())[1:] == ["--x=fine", str(Path(node.root) / "d/fine")]
