"""Attacks on a command by the names of devices, which anybody who writes to a directory chooses."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.loading.loader import loads
from tests.support.steps import run_step, start_of
from tests.trust.attack import NAME, Victim, config, policy

CONSTANTS: Final = {"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"}
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
        start = start_of(
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
