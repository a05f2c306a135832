"""The command line as its users meet it: the real program, its output, its exit status."""

import asyncio
import contextlib
import json
import os
import pty
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click
import jsonschema
import pytest

import devhost
from devhost.cli import run_command, validate_command
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.command import called

Done = subprocess.CompletedProcess[str]
Process = asyncio.subprocess.Process

PROGRAM: Final = (sys.executable, "-m", "devhost")
STOP_S: Final = 60.0
TOKENS: Final = """\
version: v1
resources:
  - name: example.com/token
    sources: [static: 3]
    allocate:
      env:
        TOKENS: ${id}
"""
BAD: Final = """\
version: v1
resources:
  - name: example.com/token
    sources: [static: 3]
    allocatee: {}
"""
MOUNT: Final = """\
version: v1
resources:
  - name: example.com/token
    sources: [static: 3]
    allocate:
      mounts: [/opt/tools]
"""
SERIAL: Final = """\
version: v1
resources:
  - name: example.com/serial
    sources:
      - /dev/serial/by-id/usb-FTDI_*
    allocate:
      devices:
        - hostPath: ${path}
          containerPath: /dev/serial${index}
      env:
        SERIAL_PORTS: /dev/serial${index}
"""


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what would change devhost's defaults."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DEVHOST_", "_DEVHOST", "NO_COLOR", "FORCE_COLOR"))
    }
    return kept | variables


def run(*args: object, stdin: str = "", **variables: str) -> Done:
    """Run devhost to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=environment(**variables),
    )


def refused_in_one_line(done: Done, status: int = 1) -> str:
    """Return the one line that a refusal says, on whichever stream; of a log, its one error."""
    text = done.stdout + done.stderr
    assert done.returncode == status, text
    if text.startswith("{"):
        lines = [json.loads(line) for line in text.splitlines()]
        text = "\n".join(line["msg"] for line in lines if line["level"] != "info")
    assert len(text.splitlines()) == 1, text
    assert "Traceback" not in text
    return text


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return written(tmp_path / "tokens.yaml", TOKENS)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "bad.yaml", BAD)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    return written(tmp_path / "mount.yaml", MOUNT)


@pytest.fixture
def plugins(short_path: Path) -> Path:
    return short_path


@pytest.fixture
async def kubelet(plugins: Path) -> AsyncIterator[SimulatedKubelet]:
    kubelet = SimulatedKubelet(plugins)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@contextlib.asynccontextmanager
async def running(*args: object) -> AsyncIterator[Process]:
    """A devhost that is killed at the end, should it still run."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *map(str, args),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: Process) -> tuple[int, str, str]:
    """Wait for the end; return exit status, standard output and standard error."""
    async with asyncio.timeout(STOP_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def sockets(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("devhost-*.sock")]


# ── usage ──────────────────────────────────────────────────────────────────────────────


def test_the_version_is_the_packages() -> None:
    """--version names the program and its version."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"devhost, version {devhost.__version__}\n")


@pytest.mark.parametrize("command", ["run", "validate", "plan", "try", "schema"])
def test_each_command_explains_itself(command: str) -> None:
    """Every command is in the program's help and has one of its own."""
    assert f"\n  {command} " in called("--help").stdout
    done = called(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: devhost {command}")


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("validate",),
        ("plan", "--nonsense"),
        ("plan", "a", "b"),
        ("plan", "-o", "xml"),
        ("plan", "--root", "/no/such/directory"),
        ("plan", "--allocate", "example.com/token"),
        ("plan", "--allocate", "example.com/token="),
        ("run", "--log-level", "loud"),
        ("run", "--allow-path", "opt/*"),
        ("run", "--last-good", "../good.yaml"),
        ("validate", "f", "--allow-path", "/opt/*", "--allow-path", ""),
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2(args: tuple[str, ...]) -> None:
    """A wrong command line exits 2, says so on standard error and prints nothing else."""
    done = (run if args[0] == "run" else called)(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error: " in done.stderr


def test_a_misspelt_command() -> None:
    assert "No such command 'vaildate'; did you mean 'validate'?" in called("vaildate").stderr


def test_schema_is_a_json_schema() -> None:
    """`schema` prints a 2020-12 schema that accepts a good configuration and refuses a bad one."""
    done = run("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = {"version": "v1", "resources": [{"name": "a.io/b", "sources": [{"dev": "kvm"}]}]}
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {"resource": []})


# ── validate ───────────────────────────────────────────────────────────────────────────


def test_a_valid_configuration(tokens: Path) -> None:
    """A valid file exits 0, with nothing on standard output."""
    done = run("validate", tokens)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"{tokens} is valid\n"


def test_a_problem_is_a_line_with_its_place(bad: Path) -> None:
    """Text is file:line:column: severity: path: message, with what would be right."""
    line = refused_in_one_line(called("validate", bad))
    where = f"{bad}:5:5: error: resources[0].allocatee: "
    assert line.startswith(where)
    assert "did you mean 'allocate'?" in line


def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    """What follows from a mistake is no further problem."""
    text = TOKENS.replace("sources: [static: 3]", "sources:\n      - directry: /etc/colas")
    config = written(tmp_path / "c.yaml", text)
    line = refused_in_one_line(called("validate", config))
    assert line.startswith(f"{config}:5:9: error: resources[0].sources[0].directry: ")
    assert "did you mean 'directory'?" in line


def test_validate_as_json(tokens: Path, bad: Path) -> None:
    """JSON has exactly the keys that the contract names."""
    assert json.loads(called("validate", "-o", "json", tokens).stdout) == {
        "valid": True,
        "problems": [],
    }
    done = called("validate", "-o", "json", bad)
    assert done.returncode == 1
    shown = json.loads(done.stdout)
    assert list(shown) == ["valid", "problems"]
    assert shown["valid"] is False
    (problem,) = shown["problems"]
    message = problem.pop("message")
    assert "allocatee" in message
    assert problem == {
        "severity": "error",
        "file": str(bad),
        "line": 5,
        "column": 5,
        "path": "resources[0].allocatee",
        "resource": "example.com/token",
    }


def test_warnings_are_errors_when_strict(mount: Path) -> None:
    """What needs a flag of `run` is a warning: exit 0, or 1 with --strict."""
    done = called("validate", mount)
    assert done.returncode == 0
    assert ": warning: " in done.stdout
    assert "--allow-path" in done.stdout
    assert called("validate", "--strict", mount).returncode == 1
    assert json.loads(called("validate", "--strict", "-o", "json", mount).stdout)["valid"] is False


def test_a_flag_that_would_allow_it_silences_the_warning(mount: Path) -> None:
    """With run's --allow-path, validate says nothing of the mount."""
    done = called("validate", "--strict", "--allow-path", "/opt/*", mount)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        ("sources: [{dev: {pattern: sdz, types: block}}]", "--allow-device"),
        ("sources: [static: 1]\n    allocate: {devices: [{hostPath: /opt/x}]}", "--allow-device"),
        ("sources: [static: 1]\n    preStart: [{run: [a], every: start}]", "--allow-exec"),
    ],
)
def test_what_run_refuses_is_an_error_when_enforced(
    more: str, needed: str, tmp_path: Path, plugins: Path
) -> None:
    """With --enforce, what needs a flag of `run` is an error; without, `run` alone refuses it."""
    text = f"version: v1\nresources:\n  - name: example.com/x\n    {more}\n"
    config = written(tmp_path / "c.yaml", text)
    assert called("validate", config).returncode == 0
    for done in (
        called("validate", "--enforce", config),
        run("run", config, "--plugin-dir", plugins),
    ):
        assert done.returncode == 1
        assert any(needed in line for line in (done.stdout + done.stderr).splitlines())
    told = called("validate", "--enforce", "-o", "json", config)
    assert json.loads(told.stdout)["valid"] is False
    allowed = ("--allow-path", "*", "--allow-device", "/opt/*", "--allow-exec")
    assert called("validate", "--enforce", *allowed, config).returncode == 0


def test_other_warnings_stay_warnings_when_enforced(tmp_path: Path) -> None:
    """--enforce is about trust alone; --strict is for the rest."""
    text = "version: v1\nresources:\n  - {name: example.com/x, sources: [dev: ttyUSB0]}\n"
    config = written(tmp_path / "c.yaml", text)
    done = called("validate", "--enforce", config)
    assert done.returncode == 0
    assert ": warning: " in done.stdout


@pytest.mark.parametrize("command", [validate_command.command, run_command.command])
def test_the_variable_of_allowed_paths_is_split_at_blanks(
    command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEVHOST_ALLOW_PATH is a list, and the option's help says so."""
    monkeypatch.setenv("DEVHOST_ALLOW_PATH", "/a /opt/*")
    with command.make_context("devhost", ["c.yaml"]) as context:
        assert context.params["allow_paths"] == ("/a", "/opt/*")
        assert "split at spaces" in " ".join(command.get_help(context).split())


def test_several_files_are_all_checked(tokens: Path, bad: Path, tmp_path: Path) -> None:
    """Each file's problems bear its own name; one bad file makes the whole not valid."""
    other = written(tmp_path / "other.yaml", BAD)
    done = called("validate", bad, tokens, other)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [str(bad), str(other)]
    assert called("validate", tokens, tokens).returncode == 0


def test_standard_input() -> None:
    """'-' is standard input."""
    assert run("validate", "-", stdin=TOKENS).returncode == 0
    assert refused_in_one_line(called("validate", "-", stdin=BAD)).startswith("-:5:5: error: ")


@pytest.mark.parametrize("command", ["validate", "plan", "try", "run"])
@pytest.mark.parametrize("what", ["missing", "directory", "latin-1", "10 MB"])
def test_an_unreadable_file_is_one_line(
    command: str, what: str, tmp_path: Path, plugins: Path
) -> None:
    """A file that cannot be a configuration is reported in one line, by every command."""
    path = tmp_path / "config.yaml"
    match what:
        case "directory":
            path.mkdir()
        case "latin-1":
            path.write_bytes("version: v1\n# Köln\n".encode("latin-1"))
        case "10 MB":
            path.write_bytes(b"# filler\n" * (10_000_000 // 9))
        case _:
            pass
    call = run if command == "run" else called
    args = ("--plugin-dir", plugins) if command == "run" else ()
    line = refused_in_one_line(call(command, path, *args))
    assert line.startswith(f"{path}:")


def test_the_place_of_a_byte_that_is_not_utf8(tmp_path: Path) -> None:
    """The line and column are those of the first such byte."""
    path = tmp_path / "config.yaml"
    path.write_bytes("version: v1\n# Köln\n".encode("latin-1"))
    assert refused_in_one_line(called("validate", path)).startswith(f"{path}:2:4: error: ")


def test_an_empty_file_is_not_valid(tmp_path: Path) -> None:
    """Nothing is no configuration, and the answer says so without a traceback."""
    path = written(tmp_path / "empty.yaml", "")
    assert refused_in_one_line(called("validate", path)).startswith(f"{path}:1:1: error: ")


HEAVY: Final = (
    "asyncio",
    "google.protobuf",
    "grpc",
    "ssl",
)
IMPORTS: Final = f"""\
import contextlib, sys
from devhost.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*({set(HEAVY)!r} & sys.modules.keys()), file=sys.stderr)
"""


def imported(*args: object) -> set[str]:
    """Return what a command imports of that which takes long."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *map(str, args)], capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def test_validate_is_light(tokens: Path, tmp_path: Path) -> None:
    """`validate` runs in every editor and CI job: it loads nothing that only serving takes."""
    wrong = written(tmp_path / "wrong.yaml", "version: v1\nresources: [x]")
    assert imported("validate", tokens) == set()
    assert imported("validate", wrong) == set()


def test_what_is_said_to_be_heavy_can_be_seen(tokens: Path) -> None:
    """The test above would pass for names that nothing has; a whole host has these."""
    seen = imported("try", "--once", tokens)
    assert seen == {"asyncio", "google.protobuf", "grpc", "ssl"}


# ── plan ───────────────────────────────────────────────────────────────────────────────


def plan(config: Path, *args: object) -> dict[str, Any]:
    """Return a plan's only resource."""
    done = called("plan", config, "-o", "json", *args)
    assert done.stdout, done.stderr
    (resource,) = json.loads(done.stdout)["resources"]
    return dict(resource)


@pytest.fixture
def serial(tmp_path: Path) -> tuple[Path, Path]:
    """A root with a serial adapter and a link to one that is gone, and its configuration."""
    root = tmp_path / "host"
    links = root / "dev" / "serial" / "by-id"
    links.mkdir(parents=True)
    try:
        os.mknod(root / "dev" / "ttyUSB0", 0o600 | stat.S_IFCHR, os.makedev(188, 0))
    except PermissionError:
        pytest.skip("making device nodes is not permitted")
    (links / "usb-FTDI_A1").symlink_to("../../ttyUSB0")
    (links / "usb-FTDI_gone").symlink_to("../../ttyUSB1")
    return root, written(tmp_path / "serial.yaml", SERIAL)


def serial_report() -> dict[str, Any]:
    return {
        "name": "example.com/serial",
        "capacity": 1,
        "allocatable": 1,
        "error": None,
        "warnings": [],
        "devices": [
            {
                "id": "usb-FTDI_A1",
                "health": "Healthy",
                "reason": None,
                "numaNodes": [],
                "paths": ["/dev/serial/by-id/usb-FTDI_A1"],
            }
        ],
        "skipped": [
            {"candidate": "/dev/serial/by-id/usb-FTDI_gone", "reason": "dangling link"},
        ],
        "allocation": {
            "deviceIds": ["usb-FTDI_A1"],
            "envs": {"SERIAL_PORTS": "/dev/serial0"},
            "mounts": [],
            "devices": [
                {
                    "hostPath": "/dev/serial/by-id/usb-FTDI_A1",
                    "containerPath": "/dev/serial0",
                    "permissions": "rw",
                }
            ],
            "annotations": {},
            "cdiDevices": [],
            "preStart": [],
            "error": None,
        },
    }


def test_plan_as_json(serial: tuple[Path, Path]) -> None:
    """The shape is the design's sample; paths are the host's, links stay inside the root."""
    root, config = serial
    done = called(
        "plan", config, "--root", root, "-o", "json", "--allocate", "example.com/serial=1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"resources": [serial_report()]}
    unasked = plan(config, "--root", root)
    assert "allocation" not in unasked


def test_a_number_takes_the_first_in_natural_order(tokens: Path) -> None:
    """NAME=N allocates so many."""
    answer = plan(tokens, "--allocate", "example.com/token=2")["allocation"]
    assert (answer["deviceIds"], answer["envs"]) == (["0", "1"], {"TOKENS": "0,1"})


def test_a_number_takes_distinct_devices_before_a_second_share(tmp_path: Path) -> None:
    """As kubelet asks, also where nothing is said of a preference."""
    config = written(tmp_path / "config.yaml", TOKENS + "    replicas: 3\n")
    for count, ids in ((3, "0::0 1::0 2::0"), (5, "0::0 0::1 1::0 1::1 2::0")):
        answer = plan(config, "--allocate", f"example.com/token={count}")["allocation"]
        assert " ".join(answer["deviceIds"]) == ids


def test_ids_are_allocated_as_named(tmp_path: Path) -> None:
    """NAME=id,id allocates these."""
    text = TOKENS.replace("static: 3", 'static: {ids: ["north", "south", "west"]}')
    config = written(tmp_path / "config.yaml", text)
    answer = plan(config, "--allocate", "example.com/token=west,north")["allocation"]
    assert answer["deviceIds"] == ["north", "west"]
    assert answer["envs"] == {"TOKENS": "north,west"}


@pytest.mark.parametrize("wish", ["4", "9" * 18, "9" * 19, "9" * 5000, "nobody,0"])
def test_an_impossible_allocation(tokens: Path, wish: str) -> None:
    """More than there are, or an unknown ID: exit 1, the reason in the allocation."""
    done = called("plan", tokens, "-o", "json", "--allocate", f"example.com/token={wish}")
    assert done.returncode == 1
    (resource,) = json.loads(done.stdout)["resources"]
    assert resource["capacity"] == 3
    assert resource["allocation"]["deviceIds"] == []
    assert resource["allocation"]["error"].startswith("example.com/token: ")


def test_allocating_of_an_unknown_resource(tokens: Path) -> None:
    """A resource that the file does not declare: exit 1, named in one line."""
    line = refused_in_one_line(called("plan", tokens, "--allocate", "example.com/other=1"))
    assert "example.com/other" in line


def test_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    """A directory that does not exist yet is a state: exit 0, no devices, a note."""
    config = written(tmp_path / "c.yaml", TOKENS.replace("static: 3", "directory: /etc/colas"))
    (tmp_path / "root").mkdir()
    done = called("plan", config, "--root", tmp_path / "root", "-o", "json")
    assert done.returncode == 0
    (resource,) = json.loads(done.stdout)["resources"]
    assert (resource["capacity"], resource["error"]) == (0, None)
    (note,) = resource["warnings"]
    assert "/etc/colas" in note


def test_a_file_in_the_place_of_a_directory_is_named_so(tmp_path: Path) -> None:
    """It is there, and will not become one by itself."""
    (tmp_path / "f").touch()
    config = written(tmp_path / "c.yaml", TOKENS.replace("static: 3", f"directory: {tmp_path}/f"))
    (resource,) = json.loads(called("plan", config, "-o", "json").stdout)["resources"]
    assert resource["warnings"] == [f"{tmp_path}/f is not a directory"]


def test_a_failed_source_exits_1(tmp_path: Path) -> None:
    """What cannot be read is an error, and the other resources are shown nevertheless."""
    broken = "  - {name: example.com/broken, sources: [directory: /%s]}\n" % ("x" * 300)
    config = written(tmp_path / "c.yaml", TOKENS + broken)
    done = called("plan", config, "-o", "json")
    assert done.returncode == 1
    token, failed = json.loads(done.stdout)["resources"]
    assert (token["capacity"], token["error"]) == (3, None)
    assert "File name too long" in failed["error"]


def test_plan_of_an_invalid_configuration(bad: Path) -> None:
    """Exit 1, the problem on standard error, nothing on standard output."""
    done = called("plan", bad, "-o", "json")
    assert done.stdout == ""
    assert refused_in_one_line(done).startswith(f"{bad}:5:5: error: ")


def test_plan_warns_where_run_would_refuse(mount: Path) -> None:
    """Without --allow-path plan goes on, with a warning apart from its JSON."""
    done = called("plan", mount, "-o", "json")
    assert done.returncode == 0
    assert "--allow-path" in done.stderr
    assert json.loads(done.stdout)["resources"][0]["capacity"] == 3


def test_the_configuration_by_variable(tokens: Path) -> None:
    """Without an argument the path is that of DEVHOST_CONFIG."""
    done = run("plan", DEVHOST_CONFIG=str(tokens))
    assert done.returncode == 0
    assert "example.com/token: 3 of 3 allocatable" in done.stdout


def test_a_resource_for_other_nodes_is_left_out(tmp_path: Path) -> None:
    """Only resources whose nodeNames match the node's name are shown."""
    config = written(tmp_path / "c.yaml", TOKENS + "    nodeNames: [gpu-*]\n")
    assert json.loads(called("plan", config, "-o", "json", "--node-name", "a").stdout) == {
        "resources": []
    }
    assert plan(config, "--node-name", "gpu-7")["capacity"] == 3


# ── colour ─────────────────────────────────────────────────────────────────────────────


def on_a_terminal(*args: object, **variables: str) -> str:
    """Return what devhost writes to a terminal."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
        subprocess.run(
            [*PROGRAM, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            check=True,
            timeout=250,
            env=environment(**{"TERM": "xterm-256color", **variables}),
        )
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # EIO is a terminal's end of file
            while chunk := terminal.read(4096):
                written += chunk
    return written.decode()


def test_no_escape_codes_in_a_pipe(tokens: Path) -> None:
    """Programs read plain text, also where the terminal is known to have colours."""
    done = run("plan", tokens, "--allocate", "example.com/token=1", TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}])
def test_no_escape_codes_where_not_wanted(tokens: Path, variable: dict[str, str]) -> None:
    """NO_COLOR is respected on a terminal, and what the terminal cannot do."""
    shown = on_a_terminal("plan", tokens, **variable)
    assert "example.com/token" in shown
    assert "\x1b" not in shown


# ── an output that takes nothing ──


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "cannot write to standard output: No space left on device"),
    ],
)
@pytest.mark.parametrize(
    ("args", "buffered"),
    [
        (("schema",), ""),
        (("plan",), ""),
        (("plan",), "1"),
        (("plan", "-o", "json"), ""),
        (("plan", "--against"), ""),
        (("try", "--once"), ""),
    ],
)
def test_an_output_that_cannot_be_written(
    tokens: Path, args: tuple[str, ...], where: str, says: str, buffered: str
) -> None:
    """One line says so, and the exit status that something failed."""
    files = {"schema": [], "plan --against": [tokens, tokens]}.get(" ".join(args), [tokens])
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *PROGRAM, *args, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=environment(PYTHONUNBUFFERED=buffered),
    )
    assert refused_in_one_line(done) == f"devhost: {says}\n"


def test_an_output_that_is_read_no_further(tokens: Path) -> None:
    """As by `head`: nothing is said."""
    command = f"{shlex.join([*PROGRAM, 'plan', str(tokens)])} | true; exit 0"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# ── try ────────────────────────────────────────────────────────────────────────────────


def test_try_once(serial: tuple[Path, Path]) -> None:
    """`try --once` registers with its own kubelet and prints plan's shape with `registered`."""
    root, config = serial
    done = run("try", "--once", config, "--root", root)
    assert done.returncode == 0, done.stderr
    wanted = serial_report() | {"registered": True}
    del wanted["allocation"]
    assert json.loads(done.stdout) == {"resources": [wanted]}


def test_try_once_holds_nothing_back(tmp_path: Path) -> None:
    """What an earlier source could still name is shown, as by `plan`: nothing comes any more."""
    (tmp_path / "a1").touch()
    text = f"""\
version: v1
resources:
  - name: example.com/a
    sources: [{{glob: "{tmp_path}/b*"}}, {{glob: "{tmp_path}/a*"}}]
"""
    config = written(tmp_path / "c.yaml", text)
    (shown,) = json.loads(run("try", "--once", config).stdout)["resources"]
    assert shown.pop("registered")
    (planned,) = json.loads(called("plan", "-o", "json", config).stdout)["resources"]
    assert shown == planned
    assert shown["allocatable"] == 1


def test_try_once_says_what_plan_says(tmp_path: Path) -> None:
    """Why there are no devices is no less said."""
    (tmp_path / "empty").mkdir()
    text = f"""\
version: v1
resources:
  - {{name: example.com/a, sources: [directory: {tmp_path}/no]}}
  - {{name: example.com/b, sources: [directory: {tmp_path}/empty]}}
  - {{name: example.com/c, sources: [glob: '{tmp_path}/*/tty*']}}
"""
    config = written(tmp_path / "c.yaml", text)
    tried, planned = (
        [one["warnings"] for one in json.loads(done.stdout)["resources"]]
        for done in (run("try", "--once", config), called("plan", "-o", "json", config))
    )
    assert tried == planned
    assert planned == [
        [f"{tmp_path}/no does not exist yet"],
        [f"directory {tmp_path}/empty: there is nothing to select"],
        [f"glob {tmp_path}/*/tty*: there is nothing to select"],
    ]


ELSEWHERE: Final = TOKENS.replace("    sources:", "    nodeNames: [other]\n    sources:")
NOTHING: Final = "devhost: no resources for node here (--node-name)\n"


def test_plan_without_a_resource_for_the_node(tmp_path: Path) -> None:
    """An author does not look at an empty terminal."""
    config = written(tmp_path / "c.yaml", ELSEWHERE)
    done = called("plan", config, "--node-name", "here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", NOTHING)


async def test_try_without_a_resource_for_the_node(tmp_path: Path) -> None:
    """Nor there."""
    config = written(tmp_path / "c.yaml", ELSEWHERE)
    async with running("try", config, "--node-name", "here") as process, asyncio.timeout(60):
        assert process.stderr is not None
        assert await process.stderr.readline() == NOTHING.encode()
        process.send_signal(signal.SIGINT)
        await ended(process)


def test_try_once_without_resources(tmp_path: Path) -> None:
    """No resources are no failure."""
    config = written(tmp_path / "c.yaml", "version: v1\nresources: []\n")
    done = run("try", "--once", config)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"resources": []})


async def test_try_shows_changes_until_interrupted(tmp_path: Path) -> None:
    """`try` prints a line for each change, and Ctrl-C ends it with 0."""
    colas = tmp_path / "colas"
    colas.mkdir()
    text = TOKENS.replace("static: 3", f"directory: {colas}")
    config = written(tmp_path / "c.yaml", text)
    async with running("try", config) as process, asyncio.timeout(60):
        assert process.stdout is not None
        assert await process.stdout.readline() == b"example.com/token: 0 of 0 allocatable\n"
        (colas / "cherry").touch()
        line = await process.stdout.readline()
        assert line == b"example.com/token: 1 of 1 allocatable: cherry\n"
        process.send_signal(signal.SIGINT)
        status, _, err = await ended(process)
    assert status == 0, err
    assert "Traceback" not in err


# ── run ────────────────────────────────────────────────────────────────────────────────


async def test_run_serves_until_sigterm(
    kubelet: SimulatedKubelet, plugins: Path, tokens: Path
) -> None:
    """`run` registers, hands out devices, and on SIGTERM exits 0 without a socket left."""
    async with running("run", tokens, "--plugin-dir", plugins) as process:
        await kubelet.wait("example.com/token", 3, 3)
        answer = await kubelet.admit("pod", {"app": {"example.com/token": 3}})
        assert answer["app"]["envs"] == {"TOKENS": "0,1,2"}
        assert len(sockets(plugins)) == 1
        process.terminate()
        status, out, err = await ended(process)
    assert status == 0, err
    assert out == ""
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert sockets(plugins) == []
    assert kubelet.panics == []


async def test_logs_for_machines(kubelet: SimulatedKubelet, plugins: Path, tokens: Path) -> None:
    """In a pipe every line of the log is a JSON object, to its last."""
    async with running("run", tokens, "--plugin-dir", plugins) as process:
        await kubelet.wait("example.com/token", 3, 3)
        process.terminate()
        status, _, err = await ended(process)
    assert status == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert any(line.get("resource") == "example.com/token" for line in lines)


async def test_run_waits_for_a_kubelet(plugins: Path, tokens: Path) -> None:
    """Without a kubelet `run` goes on; it registers when one appears."""
    async with running("run", tokens, "--plugin-dir", plugins) as process:
        kubelet = SimulatedKubelet(plugins)
        await kubelet.start()
        await kubelet.wait("example.com/token", 3, 3)
        process.terminate()
        status, _, err = await ended(process)
        await kubelet.stop()
    assert status == 0, err


async def test_a_hundred_resources_stop_cleanly(
    kubelet: SimulatedKubelet, plugins: Path, tmp_path: Path
) -> None:
    """A hundred resources in one process: all are served, none leaves a socket."""
    names = [f"example.com/r{number}" for number in range(100)]
    lines = "".join(f"  - {{name: {name}, sources: [static: 2]}}\n" for name in names)
    config = written(tmp_path / "c.yaml", f"version: v1\nresources:\n{lines}")
    async with running("run", config, "--plugin-dir", plugins, "--log-level", "error") as process:
        for name in names:
            await kubelet.wait(name, 2, 2)
        assert len(sockets(plugins)) == 100
        process.terminate()
        status, _, err = await ended(process)
    assert (status, err) == (0, "")
    assert sockets(plugins) == []


def test_run_refuses_what_it_was_not_allowed(mount: Path, plugins: Path) -> None:
    """A mount without --allow-path makes the configuration invalid; the flag is named."""
    line = refused_in_one_line(run("run", mount, "--plugin-dir", plugins))
    assert line.startswith(f"{mount}:6:")
    assert ": error: " in line
    assert "--allow-path '/opt/tools'" in line
    assert sockets(plugins) == []


async def test_run_serves_what_it_was_allowed(
    kubelet: SimulatedKubelet, plugins: Path, tmp_path: Path
) -> None:
    """With --allow-path the same mount is handed out."""
    tools = tmp_path / "tools"
    tools.mkdir()
    config = written(tmp_path / "c.yaml", MOUNT.replace("/opt/tools", str(tools)))
    allowed = ("--allow-path", f"{tmp_path}/*")
    async with running("run", config, "--plugin-dir", plugins, *allowed):
        await kubelet.wait("example.com/token", 3, 3)
        answer = await kubelet.admit("pod", {"app": {"example.com/token": 1}})
    path = str(tools)
    assert answer["app"]["mounts"] == [{"hostPath": path, "containerPath": path, "readOnly": True}]


def test_run_without_a_plugin_directory(tokens: Path, tmp_path: Path) -> None:
    """A plugin directory that is not there: exit 1, in one line that names the flag and it."""
    missing = tmp_path / "missing"
    line = refused_in_one_line(run("run", tokens, "--plugin-dir", missing))
    assert "--plugin-dir" in line
    assert str(missing) in line
    assert "without a kubelet, use `devhost try`" in line
