"""Attacks by commands: none runs without --allow-exec, wherever the configuration comes from."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.host.config_source import ConfigSource
from devhost.host.state_files import LastGood
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.config import Config
from devhost.model.device import HostDevice
from devhost.watch.watcher import Watcher
from tests.support.steps import run_step, start_of
from tests.trust.attack import NAME, Victim, config, made_in, policy

HARMLESS = config({"sources": [{"static": 1}]})
CONSTANTS = {"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"}


def running(argv: Sequence[str], place: str) -> dict[str, Any]:
    """Return a resource that would run a command."""
    found: dict[str, Any] = {"sources": [{"static": 1}]}
    if place == "preStart":
        return {**found, "preStart": [{"waitFor": "/x"}, {"run": [*argv], "every": "start"}]}
    checks = ["readable", {"exec": [*argv]}]
    return {**found, "health": checks if place == "health" else {"checks": checks}}


PLACES = pytest.mark.parametrize("place", ["preStart", "health", "health.checks"])


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What a command would make."""
    return tmp_path / "it-ran"


@PLACES
def test_a_command_is_refused_at_load(place: str) -> None:
    """The loader names the flag; a path that is allowed does not allow a command."""
    loaded = loads(config(running(["true"], place)), policy=policy("*"))
    assert loaded.config is None
    (problem,) = loaded.problems
    assert problem.severity == "error"
    assert "--allow-exec" in problem.message
    assert loads(config(running(["true"], place)), policy=policy(execs=True)).config is not None


@PLACES
def test_a_command_for_other_nodes_or_without_devices_is_refused_too(place: str) -> None:
    """That a resource is not for this node, or finds nothing, does not hide its command."""
    others: list[dict[str, Any]] = [
        {"nodeNames": ["elsewhere"]},
        {"maxDevices": 1},
        {"sources": ["/nowhere/*"]},
        {"sources": [{"static": 0}]},
    ]
    for more in others:
        loaded = loads(config({**running(["true"], place), **more}), policy=policy())
        assert any("--allow-exec" in one.message for one in loaded.problems), more
        assert loaded.config is None


@pytest.mark.parametrize(
    "text",
    [
        "x-a: &a {{preStart: [{{run: [true-cmd]}}]}}\n{head}- {{<<: *a, name: e.com/a, sources: [static: 1]}}",
        "x-a: &a [{{run: [true-cmd]}}]\n{head}- {{name: e.com/a, sources: [static: 1], preStart: *a}}",
        "x-a: &a {{exec: true-cmd}}\n{head}- {{name: e.com/a, sources: [static: 1], health: [*a]}}",
        "{head}- &a {{name: e.com/a, sources: [static: 1], preStart: [{{<<: {{run: [true-cmd]}}}}]}}",
        "{head}- {{name: e.com/a, sources: [static: 1], health: {{<<: [{{checks: [{{exec: true-cmd}}]}}]}}}}",
        "{head}- {{name: e.com/a, sources: [static: 1], preStart: [{{!!str run: [true-cmd]}}]}}",
        '{head}- {{name: e.com/a, sources: [static: 1], "pre\\u0053tart": [{{run: [true-cmd]}}]}}',
    ],
)
def test_yaml_does_not_hide_a_command(text: str) -> None:
    """Anchors, merges, tags and escapes give the same command, and it is refused."""
    loaded = loads(text.format(head="version: v1\nresources:\n"), policy=policy("*"))
    assert loaded.config is None
    if "exec: true-cmd" not in text:  # where a list is wanted
        assert any("--allow-exec" in one.message for one in loaded.problems), loaded.problems


async def test_a_step_does_not_run_even_where_nobody_has_checked(tmp_path: Path) -> None:
    """The step itself looks at the policy: it does not trust that the loader did."""
    resource = running(["touch", f"{tmp_path}/it-ran"], "preStart")
    (loaded,) = loads(config(resource), policy=policy(execs=True)).require().resources
    start = start_of(
        resource=NAME,
        device=HostDevice("0", ()),
        constants=CONSTANTS,
        files=HostFiles(),
        policy=policy("*"),
        deadline=asyncio.get_running_loop().time() + 60,
    )
    with pytest.raises(PreStartError, match="--allow-exec"):
        await run_step(1, loaded.pre_start[1], start)
    assert made_in(tmp_path) == []


def test_a_check_does_not_run_even_where_nobody_has_checked(node: Victim, marker: Path) -> None:
    """So does a health check: what may not be run is unknown."""
    scanner = node.scanner(running(["touch", str(marker)], "health"), execs=True)
    (device,) = node.scan(scanner).devices.values()
    assert scanner.resource.health is not None
    outcome = check(
        scanner.resource.health, device, node.files, scanner.constants, allow=policy("*")
    )
    assert "--allow-exec" in (outcome.unknown or "")
    assert not marker.exists()


async def test_a_command_does_not_come_by_a_reload(tmp_path: Path) -> None:
    """A running host takes no configuration that asks for more; the former stays in force."""
    file = tmp_path / "config.yaml"
    file.write_text(HARMLESS)
    source = ConfigSource(str(file), policy(), LastGood(tmp_path / "state"))
    loaded, _ = source.first()
    assert loaded.config is not None
    applied: asyncio.Queue[Config] = asyncio.Queue()
    async with Watcher() as watcher:
        task = asyncio.create_task(source.run(watcher, applied.put_nowait))
        try:
            async with asyncio.timeout(60):
                for count, place in enumerate(("preStart", "health"), 1):
                    file.write_text(config(running(["true"], place)))
                    while source.status.failures < count:
                        source.reload_soon()
                        await asyncio.sleep(0.01)
                    assert any("--allow-exec" in one.message for one in source.status.problems)
                assert applied.empty()
                file.write_text(config({"sources": [{"static": 2}]}))
                source.reload_soon()
                taken = await applied.get()
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert not any(one.pre_start or one.health for one in taken.resources)
    kept = LastGood(tmp_path / "state").read() or b""
    assert b"run" not in kept
    assert b"exec" not in kept


@PLACES
def test_a_command_does_not_come_by_the_last_good_copy(tmp_path: Path, place: str) -> None:
    """A copy from the time of more flags, or by who may write it, is judged as the file is."""
    file = tmp_path / "config.yaml"
    file.write_text("invalid")
    last_good = LastGood(tmp_path / "state")
    last_good.write(config(running(["true"], place)).encode())
    loaded, copy = ConfigSource(str(file), policy("*"), last_good).first()
    assert loaded.config is None
    assert copy is not None
    assert copy.config is None
    last_good.write(HARMLESS.encode())
    _, copy = ConfigSource(str(file), policy(), last_good).first()
    assert copy is not None
    assert copy.config is not None


@pytest.mark.parametrize(
    "arguments", [["plan", "--allocate", f"{NAME}=1"], ["try", "--once"], ["validate"]]
)
@pytest.mark.parametrize("place", ["preStart", "health"])
def test_a_look_at_a_configuration_runs_nothing(
    tmp_path: Path, marker: Path, arguments: list[str], place: str
) -> None:
    """`plan`, `try` and `validate` of a stranger's configuration run none of its commands."""
    file = tmp_path / "config.yaml"
    file.write_text(config(running(["touch", str(marker)], place)))
    command, *options = arguments
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("DEVHOST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "devhost", command, str(file), *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=250,
    )
    assert "--allow-exec" in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
    if command == "plan" and place == "preStart":
        assert "touch" in done.stdout  # it is shown


def test_run_does_not_start_with_a_command(tmp_path: Path) -> None:
    """`run` refuses it, and names the flag."""
    file = tmp_path / "config.yaml"
    file.write_text(config(running(["true"], "preStart")))
    (tmp_path / "plugins").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "devhost",
            "run",
            str(file),
            "--plugin-dir",
            str(tmp_path / "plugins"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 1
    assert "--allow-exec" in done.stderr
