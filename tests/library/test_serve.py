"""`devhost.serve` as a process: the examples, the command line, the end."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import tokens
from tests.support.hosting import Kubelet
from tests.support.realkubelet import REAL_KUBELETS

EXAMPLES = Path(__file__).resolve().parents[2] / "config" / "examples" / "python"
PORTS, DISKS = "netease/vpcport", "example.com/superdisk"
ENDINGS = """
import sys
import devhost

class Plugin(devhost.DevicePlugin):
    def devices(self):
        return ["a"]

    def refresh(self):
        print("refresh", flush=True)

    def destroy(self):
        print("destroy", flush=True)

devhost.serve(Plugin("example.com/plugin"))
"""


class Program:
    """Runs a program that serves plugins, in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "plugins"
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("DEVHOST_")
        }
        self.process: Process | None = None

    async def start(self, *arguments: str | Path, plugin_dir: bool = True) -> Process:
        place = ["--plugin-dir", str(self.plugins)] if plugin_dir else []
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, *map(str, arguments), *place),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=self.environment,
        )
        return self.process

    async def line(self) -> str:
        """Wait for the next line that it says; return it."""
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode()

    async def stop(self) -> tuple[int | None, str, str]:
        """End it by SIGTERM; return its status and what it has said."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> tuple[int | None, str, str]:
        assert self.process is not None
        async with asyncio.timeout(60):
            said, logged = await self.process.communicate()
        return self.process.returncode, said.decode(), logged.decode()


@pytest.fixture
async def program(directory: Path) -> AsyncIterator[Program]:
    program = Program(directory)
    yield program
    if program.process is not None and program.process.returncode is None:
        program.process.kill()
        await program.process.communicate()


# ── the examples, on real kubelets ──


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
async def test_vpcport(started: Kubelet, program: Program) -> None:
    await program.start(EXAMPLES / "vpcport.py")
    await started.wait(PORTS, 4, 4)
    answer = (await started.admit("pod", {"app": {PORTS: 4}}))["app"]
    assert answer["envs"] == {"VPC_PORTS": "port-0,port-1,port-2,port-3"}
    await started.restart()
    await started.wait(PORTS, 4, 4)
    status, said, _ = await program.stop()
    assert (status, said) == (0, "")
    assert not list(program.plugins.glob("devhost-*.sock"))


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
async def test_superdisk(started: Kubelet, program: Program, directory: Path) -> None:
    """Found, faulty, well again, handed out, prepared at each start, told of its life."""
    disks, faults, scratch = (directory / name for name in ("disks", "faults", "scratch"))
    for place in (disks, faults, scratch):
        place.mkdir()
    (disks / "sd-1").symlink_to("/dev/null")
    (disks / "sd-2").symlink_to("/dev/zero")
    program.environment |= {
        "SUPERDISK_DIR": str(disks),
        "SUPERDISK_FAULTS": str(faults),
        "SUPERDISK_SCRATCH": str(scratch),
    }
    await program.start(EXAMPLES / "superdisk.py")
    await started.wait(DISKS, 2, 2)
    (faults / "sd-2").write_text("bad sectors")
    await started.wait(DISKS, 2, 1)
    (faults / "sd-2").unlink()
    await started.wait(DISKS, 2, 2)
    answer = (await started.admit("pod", {"app": {DISKS: 2}}))["app"]
    assert answer["envs"] == {"SUPERDISKS": "sd-1 sd-2"}
    assert sorted(one["containerPath"] for one in answer["devices"]) == [
        "/dev/superdisk0",
        "/dev/superdisk1",
    ]
    mounts = {one["hostPath"]: one["containerPath"] for one in answer["mounts"]}
    assert mounts == {f"{scratch}/sd-1": "/scratch/0", f"{scratch}/sd-2": "/scratch/1"}
    (scratch / "sd-1" / "left").mkdir()
    (scratch / "sd-2" / "over").touch()
    await started.start_container("pod", "app")
    assert [place.name for place in scratch.glob("*/*")] == []
    await started.restart()
    await started.wait(DISKS, 2, 2)
    (faults / "sd-2").write_text("bad sectors again")
    await started.wait(DISKS, 2, 1)
    status, _, logged = await program.stop()
    assert status == 0
    assert '"started"' in logged
    assert logged.count('"stopped"') == 1
    assert "bad sectors" in logged


# ── the command line, and the end ──


async def test_with_a_configuration(
    standin: SimulatedKubelet, program: Program, directory: Path
) -> None:
    """Its resources are served beside, and the file is followed."""
    config = directory / "config.yaml"
    config.write_text(tokens(yaml=1))
    await program.start(EXAMPLES / "vpcport.py", config)
    await standin.wait(PORTS, 4, 4)
    await standin.wait("example.com/yaml", 1, 1)
    config.write_text(tokens(yaml=2))
    await standin.wait("example.com/yaml", 2, 2)
    status, _, logged = await program.stop()
    assert status == 0
    assert "configuration in force" in logged


async def test_a_configuration_by_environment(
    standin: SimulatedKubelet, program: Program, directory: Path
) -> None:
    """DEVHOST_CONFIG and the other variables count, as with `devhost run`."""
    (directory / "config.yaml").write_text(tokens(yaml=1))
    program.environment["DEVHOST_CONFIG"] = str(directory / "config.yaml")
    program.environment["DEVHOST_PLUGIN_DIR"] = str(program.plugins)
    await program.start(EXAMPLES / "vpcport.py", plugin_dir=False)
    await standin.wait(PORTS, 4, 4)
    await standin.wait("example.com/yaml", 1, 1)
    status, _, _ = await program.stop()
    assert status == 0


async def test_a_configuration_that_is_not_valid(program: Program, directory: Path) -> None:
    (directory / "config.yaml").write_text("version: v1\nresources: 7\n")
    await program.start(EXAMPLES / "vpcport.py", directory / "config.yaml")
    status, _, logged = await program.ended()
    assert status == 1
    assert "config.yaml:2:12: error: resources: should be a list" in logged


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--bogus"], 2, "No such option"),
        (["--help"], 0, "Usage: vpcport.py [OPTIONS] [CONFIG]"),
        (["--plugin-dir", "/nowhere"], 1, "--plugin-dir: /nowhere is not a directory"),
    ],
)
async def test_the_command_line(
    program: Program, arguments: list[str], status: int, text: str
) -> None:
    await program.start(EXAMPLES / "vpcport.py", *arguments, plugin_dir=False)
    ended, said, logged = await program.ended()
    assert ended == status
    assert text in said + logged


async def test_try(program: Program) -> None:
    """`--try` needs no kubelet: it shows what one would see."""
    process = await program.start(EXAMPLES / "vpcport.py", "--try", plugin_dir=False)
    assert (
        await program.line() == "netease/vpcport: 4 of 4 allocatable: port-0 port-1 port-2 port-3\n"
    )
    process.send_signal(signal.SIGTERM)
    assert (await program.ended())[0] == 0


async def test_destroy_is_called_at_the_end(standin: SimulatedKubelet, program: Program) -> None:
    await program.start("-c", ENDINGS)
    await standin.wait("example.com/plugin", 1, 1)
    assert await program.line() == "refresh\n"  # a moment after the list
    status, said, _ = await program.stop()
    assert (status, said) == (0, "destroy\n")


async def test_destroy_is_called_after_a_failure(
    standin: SimulatedKubelet, program: Program, directory: Path
) -> None:
    """Here the plugin directory has gone for good."""
    quick = (
        "from tests.support.launch import set_constants as s; s({'kubelet.directory._GONE_S': 0.2})"
    )
    await program.start("-c", f"{quick}\n{ENDINGS}")
    await standin.wait("example.com/plugin", 1, 1)
    assert await program.line() == "refresh\n"  # a moment after the list
    await standin.kill()
    while program.plugins.exists():  # what it removes itself at this moment is no failure
        shutil.rmtree(program.plugins, ignore_errors=True)
    status, said, logged = await program.ended()
    assert (status, said) == (1, "destroy\n")
    assert "Traceback" not in logged


async def test_only_in_the_main_thread(program: Program) -> None:
    text = """
import threading
import devhost

def work():
    try:
        devhost.serve("example.com/a", list)
    except RuntimeError as error:
        print(error)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    await program.start("-c", text, plugin_dir=False)
    status, said, _ = await program.ended()
    assert (status, said) == (0, "serve() must be called in the main thread\n")


async def test_importing_devhost_is_light(program: Program) -> None:
    """Only what is used is imported: a plugin's own tests need no gRPC, nor do they wait for it."""
    text = """
import sys
import devhost
first = {name.partition(".")[0] for name in sys.modules}
devhost.Device("a"), devhost.DevicePlugin
then = {name.partition(".")[0] for name in sys.modules}
heavy = {"pydantic", "yaml", "click", "grpc", "asyncio"}
print(sorted(first & heavy), sorted(then & {"click", "grpc"}))
"""
    await program.start("-c", text, plugin_dir=False)
    assert (await program.ended())[1] == "[] []\n"
