"""Attacks by commands: none runs without --allow-exec, wherever the configuration comes from."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.config.loader import loads
from devhost.model.config import Config
from devhost.node.config_file import ConfigFile
from devhost.node.state_dir import LastGoodConfig
from devhost.watch.inotify import Watcher
from tests.security.attack import NAME, config, policy
from tests.support.command import process

HARMLESS = config({"sources": [{"static": 1}]})


def running(argv: Sequence[str], place: str, **more: object) -> dict[str, Any]:
    """Return a resource that would run a command."""
    found: dict[str, Any] = {"sources": [{"static": 1}], **more}
    if place == "preStart":
        return {**found, "preStart": [{"waitFor": "/x"}, {"run": [*argv], "every": "start"}]}
    checks = ["readable", {"exec": [*argv]}]
    return {**found, "health": checks if place == "health" else {"checks": checks}}


PLACES = pytest.mark.parametrize("place", ["preStart", "health", "health.checks"])


@PLACES
def test_command_without_the_flag_is_refused_at_load(place: str) -> None:
    """A path that is allowed allows none; that a resource is not for this node hides none."""
    for more in ({}, {"nodeNames": ["elsewhere"]}, {"sources": [{"static": 0}]}):
        text = config(running(["true"], place, **more))
        loaded = loads(text, policy=policy("*"))
        assert loaded.config is None
        (problem,) = loaded.problems
        assert problem.severity == "error"
        assert "--allow-exec" in problem.message
        assert loads(text, policy=policy(execs=True)).config is not None


async def test_command_in_a_reloaded_file_is_refused_and_the_former_file_stays(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HARMLESS)
    source = ConfigFile(str(file), policy(), LastGoodConfig(tmp_path / "state"))
    loaded, _ = source.load_first()
    assert loaded.config is not None
    applied: asyncio.Queue[Config] = asyncio.Queue()
    async with Watcher() as watcher:
        task = asyncio.create_task(source.run(watcher, applied.put_nowait))
        try:
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
    kept = LastGoodConfig(tmp_path / "state").read() or b""
    assert b"run" not in kept
    assert b"exec" not in kept


@pytest.mark.parametrize("place", ["preStart", "health"])
def test_command_in_the_last_good_copy_is_refused(tmp_path: Path, place: str) -> None:
    """It may be from the time of more flags, or by who may write it."""
    file, last_good = tmp_path / "config.yaml", LastGoodConfig(tmp_path / "state")
    file.write_text("invalid")
    for text, used in ((config(running(["true"], place)), False), (HARMLESS, True)):
        last_good.write(text.encode())
        loaded, copy = ConfigFile(str(file), policy("*"), last_good).load_first()
        assert loaded.config is None
        assert copy is not None
        assert (copy.config is not None) is used


@pytest.mark.parametrize(
    ("arguments", "place"),
    [(["plan", "--allocate", f"{NAME}=1"], "preStart"), (["plan"], "health"),
     (["try", "--once"], "preStart"), (["try", "--once"], "health"), (["validate"], "preStart")],
)  # fmt: skip
def test_command_is_shown_and_not_run_by_plan_try_and_validate(
    tmp_path: Path, arguments: list[str], place: str
) -> None:
    file, marker = tmp_path / "config.yaml", tmp_path / "it-ran"
    file.write_text(config(running(["touch", str(marker)], place)))
    command, *options = arguments
    done = process(command, file, *options)
    assert "--allow-exec" in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
    if command == "plan" and place == "preStart":
        assert "touch" in done.stdout
