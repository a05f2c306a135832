"""A running devhost follows its file: the command line's side of it."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

from devhost.standin.kubelet import SimulatedKubelet
from tests.cli.test_cli import (
    TOKENS,
    ended,
    kubelet,
    plugins,
    refused_in_one_line,
    run,
    running,
    sockets,
    tokens,
    written,
)

__all__ = ["kubelet", "plugins", "tokens"]
NAME = "example.com/token"


async def until_logged(process: Process, message: str) -> dict[str, Any]:
    """Read the log until a line with a message."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            shown: dict[str, Any] = json.loads(line)
            if message in shown["msg"]:
                return shown
    raise AssertionError(f"the log ended without {message!r}")


async def test_an_edit_is_live(kubelet: SimulatedKubelet, plugins: Path, tokens: Path) -> None:
    """What is written is served; SIGHUP reads the file again and harms nobody."""
    async with running("run", tokens, "--plugin-dir", plugins) as process:
        await kubelet.wait(NAME, 3, 3)
        before = sockets(plugins)
        written(tokens, TOKENS.replace("static: 3", "static: 5"))
        await kubelet.wait(NAME, 5, 5)
        process.send_signal(signal.SIGHUP)
        written(tokens, TOKENS.replace("static: 3", "statics: 3"))
        line = await until_logged(process, "unknown key 'statics'")
        assert line["level"] == "error"
        assert line["msg"].startswith(f"{tokens}:4:")
        assert await until_logged(process, "configuration file invalid; still serving")
        assert sockets(plugins) == before
        assert (await kubelet.capacity())[NAME] == (5, 5)
        process.terminate()
        assert (await ended(process))[0] == 0


async def test_a_start_after_a_bad_edit(
    kubelet: SimulatedKubelet, plugins: Path, tokens: Path, tmp_path: Path
) -> None:
    """With --state-dir the last good file is served, and the log says so and why; else exit 1."""
    state = ("--state-dir", tmp_path / "state" / "devhost")
    async with running("run", tokens, "--plugin-dir", plugins, *state) as process:
        await kubelet.wait(NAME, 3, 3)
        while not (tmp_path / "state" / "devhost" / "last-good.yaml").exists():
            await asyncio.sleep(0.01)
        process.terminate()
        assert (await ended(process))[0] == 0
    written(tokens, "version: v2\n")
    assert "version" in run("run", tokens, "--plugin-dir", plugins).stderr
    other = ("--state-dir", tmp_path / "other")
    assert run("run", tokens, "--plugin-dir", plugins, *other).returncode == 1
    async with running("run", tokens, "--plugin-dir", plugins, *state) as process:
        await kubelet.wait(NAME, 3, 3)
        line = await until_logged(process, "starting with the last good")
        assert line["used"].endswith("last-good.yaml")
        written(tokens, TOKENS.replace("static: 3", "static: 4"))
        await kubelet.wait(NAME, 4, 4)


async def test_standard_input_is_read_once(
    kubelet: SimulatedKubelet, plugins: Path, tokens: Path
) -> None:
    """`run -` serves; SIGHUP says that there is nothing to read again."""
    process = await asyncio.create_subprocess_shell(
        f"exec {sys.executable} -m devhost run - --plugin-dir {plugins} < {tokens}",
        stderr=asyncio.subprocess.PIPE,
    )
    await kubelet.wait(NAME, 3, 3)
    process.send_signal(signal.SIGHUP)
    assert await until_logged(process, "cannot be read again")
    process.terminate()
    assert await process.wait() == 0


def test_run_refuses_two_bad_files(plugins: Path, tokens: Path, tmp_path: Path) -> None:
    """A last good copy that the flags do not allow any more is named as well."""
    (tmp_path / "last-good.yaml").write_text("version: v3\n")
    written(tokens, "version: v2\n")
    done = run("run", tokens, "--plugin-dir", plugins, "--state-dir", tmp_path)
    assert done.returncode == 1
    assert "last-good.yaml:1:" in done.stderr
    assert f"{tokens}:1:" in done.stderr


def test_a_refused_start_as_json(plugins: Path, tokens: Path) -> None:
    """Each problem is an object, with its place in fields of their own."""
    written(tokens, TOKENS.replace("static: 3", "statics: 3"))
    done = run("run", tokens, "--plugin-dir", plugins, "--log-format", "json")
    (problem,) = (
        line for line in map(json.loads, done.stderr.splitlines()) if line["level"] == "error"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert problem["msg"].startswith(f"{tokens}:4:")
    assert {key: problem[key] for key in ("file", "line", "path")} == {
        "file": str(tokens),
        "line": 4,
        "path": "resources[0].sources[0].statics",
    }
    assert f"{tokens}:4:{problem['column']}: error: " in problem["msg"]


def test_a_refused_start_as_text(plugins: Path, tokens: Path) -> None:
    """Each problem is the line of `validate`, once, after time and level and with its resource."""
    written(tokens, TOKENS.replace("static: 3", "statics: 3"))
    done = run("run", tokens, "--plugin-dir", plugins, "--log-format", "text")
    line = done.stderr.splitlines()[-1].partition(" ERROR   ")[2]
    assert line == f"{run('validate', tokens).stdout.strip()}  resource=example.com/token"


def test_a_file_that_is_not_there(plugins: Path, tmp_path: Path) -> None:
    """Without a copy there is nothing to serve."""
    line = refused_in_one_line(run("run", tmp_path / "no.yaml", "--plugin-dir", plugins))
    assert "cannot be read" in line
