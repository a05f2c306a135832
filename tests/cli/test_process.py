"""The program as a process: its exit status, its signals, and an output that takes nothing."""

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Final

import pytest

import devhost
from devhost.config.json_schema import json_schema
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.command import PROGRAM, called, environment, process
from tests.support.daemon import Daemon, tokens, until

TOKEN: Final = "example.com/token"
MISTAKE: Final = tokens(token=3).replace("static", "statics")


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    write(path, tokens(token=3))
    return path


def test_version_and_schema_are_printed() -> None:
    assert process("--version").stdout == f"devhost, version {devhost.__version__}\n"
    assert json.loads(process("schema").stdout) == json_schema()


def test_every_command_has_help_with_an_example() -> None:
    listed = called("--help").stdout.partition("Commands:\n")[2].splitlines()
    names = [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "]
    assert "run" in names
    for name in names:
        text = called(name, "--help").stdout
        assert text.startswith(f"Usage: devhost {name} ")
        assert re.search(rf"^  Example: `devhost {name} .+`$", text, re.MULTILINE)


IMPORTS: Final = """\
import contextlib, sys
from devhost.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*{"google.protobuf", "grpc"} & sys.modules.keys(), file=sys.stderr)
"""


def test_validate_imports_nothing_that_only_serving_needs(config: Path) -> None:
    """Every editor and CI job runs it; `try` imports all of it, so the check sees imports."""
    heavy = []
    for command in (["validate"], ["try", "--once"]):
        arguments = [sys.executable, "-c", IMPORTS, *command, str(config)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        heavy.append(len(done.stderr.splitlines()[-1].split()))
    assert heavy == [0, 2]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "cannot write to standard output: No space left on device"),
    ],
)
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("args", ["plan", "try --once"])
def test_output_unwritable(config: Path, args: str, where: str, says: str, buffered: str) -> None:
    command = f"exec {shlex.join(PROGRAM)} {args} {config} {where}"
    variables = environment(PYTHONUNBUFFERED=buffered)
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=variables
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"devhost: {says}\n")


def test_output_that_is_read_no_further_is_no_error(config: Path) -> None:
    command = f"{shlex.join(PROGRAM)} plan {config} | true; exit 0"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_yaml_of_several_slices_has_no_aliases(config: Path) -> None:
    write(config, tokens(token=65).replace(" sources", " backend: dra, sources"))
    printed = called("plan", config, "-o", "yaml").stdout
    assert "resourceSliceCount: 2" in printed
    assert "&id" not in printed


async def test_try_shows_changes_until_it_is_interrupted(config: Path) -> None:
    write(config, tokens(token=3).replace(" sources", " nodeNames: [other], sources"))
    running = await asyncio.create_subprocess_exec(
        *(*PROGRAM, "try", str(config), "--node-name", "here"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(),
    )
    assert running.stdout is not None
    assert running.stderr is not None
    nothing = await running.stderr.readline()
    assert nothing == b"devhost: no resources for node here (--node-name)\n"
    write(config, tokens(token=23).replace(" sources", " replicas: 2, sources"))
    line = (await running.stdout.readline()).decode()
    first = " ".join(map(str, range(20)))
    assert line == f"example.com/token: 46 of 46 shares allocatable: {first} and 3 more\n"
    running.send_signal(signal.SIGINT)
    _, errors = await running.communicate()
    assert running.returncode == 0
    assert b"Traceback" not in errors


async def test_run_follows_file_until_sigterm(daemon: Daemon, standin: SimulatedKubelet) -> None:
    await daemon.start(tokens(token=3))
    await standin.wait(TOKEN, 3, 3)
    before = daemon.sockets()
    daemon.write(tokens(token=5))
    await standin.wait(TOKEN, 5, 5)
    daemon.signal(signal.SIGHUP)
    daemon.write(MISTAKE)
    line = await daemon.logged("unknown key 'statics'", level="error")
    assert line["msg"].startswith(f"{daemon.config}:3:")
    await daemon.logged("configuration file invalid; still serving")
    assert daemon.sockets() == before
    assert await standin.capacity() == {TOKEN: (5, 5)}
    assert await daemon.stop() == 0
    assert daemon.sockets() == set()
    assert not [line for line in daemon.lines if line["level"] == "raw"]


async def test_run_after_a_bad_edit_is_last_good(daemon: Daemon, standin: SimulatedKubelet) -> None:
    copy = daemon.state / "last-good.yaml"
    await daemon.start(tokens(token=3))
    await standin.wait(TOKEN, 3, 3)
    await until(copy.exists, "saved")
    assert await daemon.stop() == 0
    await daemon.start(MISTAKE)
    await standin.wait(TOKEN, 3, 3)
    line = await daemon.logged("starting with the last good")
    assert line["used"] == str(copy)
    daemon.write(tokens(token=4))
    await standin.wait(TOKEN, 4, 4)
    await until(lambda: copy.read_text().endswith(tokens(token=4)), "saved again")
    assert await daemon.stop() == 0
    copy.write_text("version: v3\n")
    await daemon.start(MISTAKE)
    assert await daemon.ended() == 1
    files = {line["msg"].partition(":")[0] for line in daemon.lines[-3:]}
    assert files >= {str(daemon.config), str(copy)}


async def test_stdin_is_read_once(config: Path, directory: Path, standin: SimulatedKubelet) -> None:
    running = await asyncio.create_subprocess_shell(
        f"exec {shlex.join(PROGRAM)} run - --plugin-dir {directory}/plugins < {config}", stderr=PIPE
    )
    assert running.stderr is not None
    await standin.wait(TOKEN, 3, 3)
    running.send_signal(signal.SIGHUP)
    while b"cannot be read again" not in (line := await running.stderr.readline()):
        assert line
    running.terminate()
    await running.communicate()
    assert running.returncode == 0


def test_run_refused_logs_each_problem_as_object_or_line(config: Path, short_path: Path) -> None:
    config.write_text(MISTAKE)
    arguments = ("run", config, "--plugin-dir", short_path, "--log-format")
    done = process(*arguments, "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (problem,) = [line for line in lines if line["level"] == "error"]
    assert (done.returncode, done.stdout) == (1, "")
    where = {"file": str(config), "line": 3, "path": "resources[0].sources[0].statics"}
    assert {key: problem[key] for key in where} == where
    printed = called("validate", config).stdout.strip()
    assert problem["msg"] == printed
    line = process(*arguments, "text").stderr.splitlines()[-1].partition(" ERROR   ")[2]
    assert line == f"{printed}  resource={TOKEN}"
