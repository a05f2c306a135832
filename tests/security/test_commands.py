"""Attacks by commands: none runs without --allow-exec, wherever the configuration comes from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.config.loader import loads
from tests.security.attack import NAME, config, policy
from tests.support.command import process


def running(argv: Sequence[str], place: str, **options: object) -> dict[str, Any]:
    resource: dict[str, Any] = {"sources": [{"static": 1}], **options}
    if place == "preStart":
        return {**resource, "preStart": [{"waitFor": "/x"}, {"run": [*argv], "every": "start"}]}
    checks = ["readable", {"exec": [*argv]}]
    return {**resource, "health": checks if place == "health" else {"checks": checks}}


PLACES = pytest.mark.parametrize("place", ["preStart", "health", "health.checks"])


@PLACES
def test_command_without_the_flag_is_told_of_each_file(place: str) -> None:
    """An allowed path allows none; a resource for another node hides none."""
    for options in ({}, {"nodeNames": ["elsewhere"]}, {"sources": [{"static": 0}]}):
        text = config(running(["true"], place, **options))
        loaded = loads(text, policy=policy("*"))
        assert loaded.config is None
        (problem,) = loaded.problems
        assert problem.severity == "error"
        assert "--allow-exec" in problem.message
        assert loads(text, policy=policy(execs=True)).config is not None


@pytest.mark.parametrize(
    ("arguments", "place"),
    [(["plan", "--allocate", f"{NAME}=1"], "preStart"), (["plan"], "health"),
     (["try", "--once"], "preStart"), (["try", "--once"], "health"), (["validate"], "preStart")],
)  # fmt: skip
def test_command_is_not_run_by_dry_runs(tmp_path: Path, arguments: list[str], place: str) -> None:
    file, marker = tmp_path / "config.yaml", tmp_path / "it-ran"
    file.write_text(config(running(["touch", str(marker)], place)))
    command, *options = arguments
    done = process(command, file, *options)
    assert "--allow-exec" in done.stdout + done.stderr
    impossible = "--allocate" in options  # its device is not healthy
    assert done.returncode == impossible, done.stderr
    assert not marker.exists()
