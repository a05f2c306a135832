"""`devhost.serve` as a process: the examples, the command line, the end."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import devhost
from devhost import DevicePlugin, serve
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.library.plugin import Options
from tests.library.scripted import NAME, Plain
from tests.support.command import environment
from tests.support.daemon import tokens
from tests.support.hosting import Kubelet, contract

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "config" / "examples" / "python"
PORTS, DISKS = "netease/vpcport", "example.com/superdisk"


class Program:
    """Runs a program that serves plugins, in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "plugins"
        self.environment = environment()
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
        return (await self.process.stdout.readline()).decode()

    async def stop(self) -> tuple[int | None, str, str]:
        """End it by SIGTERM; return its status and what it has said."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> tuple[int | None, str, str]:
        assert self.process is not None
        printed, logged = await self.process.communicate()
        return self.process.returncode, printed.decode(), logged.decode()


@pytest.fixture
async def program(directory: Path) -> AsyncIterator[Program]:
    program = Program(directory)
    yield program
    if program.process is not None and program.process.returncode is None:
        program.process.kill()
        await program.process.communicate()


@contract
async def test_example_superdisk(started: Kubelet, program: Program, directory: Path) -> None:
    disks, faults, scratch = (directory / name for name in ("disks", "faults", "scratch"))
    for place in (disks, faults, scratch):
        place.mkdir()
    (disks / "sd-1").symlink_to("/dev/null")
    (disks / "sd-2").symlink_to("/dev/zero")
    places = {"DIR": disks, "FAULTS": faults, "SCRATCH": scratch}
    program.environment |= {f"SUPERDISK_{key}": str(place) for key, place in places.items()}
    await program.start(EXAMPLES / "superdisk.py")
    await started.wait(DISKS, 2, 2)
    (faults / "sd-2").write_text("bad sectors")
    await started.wait(DISKS, 2, 1)
    (faults / "sd-2").unlink()
    await started.wait(DISKS, 2, 2)
    answer = (await started.admit("pod", {"app": {DISKS: 2}}))["app"]
    assert answer["envs"] == {"SUPERDISKS": "sd-1 sd-2"}
    nodes = {node["containerPath"] for node in answer["devices"]}
    assert nodes == {"/dev/superdisk0", "/dev/superdisk1"}
    mounts = {mount["hostPath"]: mount["containerPath"] for mount in answer["mounts"]}
    assert mounts == {f"{scratch}/sd-1": "/scratch/0", f"{scratch}/sd-2": "/scratch/1"}
    (scratch / "sd-1" / "left").mkdir()
    (scratch / "sd-2" / "over").touch()
    await started.start_container("pod", "app")
    assert [place.name for place in scratch.glob("*/*")] == []
    status, _, logged = await program.stop()
    assert status == 0
    assert '"started"' in logged
    assert logged.count('"stopped"') == 1


async def test_yaml_is_served(standin: SimulatedKubelet, program: Program, directory: Path) -> None:
    config = directory / "config.yaml"
    config.write_text(tokens(yaml=1))
    program.environment["DEVHOST_CONFIG"] = str(config)
    program.environment["DEVHOST_PLUGIN_DIR"] = str(program.plugins)
    await program.start(EXAMPLES / "vpcport.py", plugin_dir=False)
    await standin.wait(PORTS, 4, 4)
    await standin.wait("example.com/yaml", 1, 1)
    answer = (await standin.admit("pod", {"app": {PORTS: 4}}))["app"]
    assert answer["envs"] == {"VPC_PORTS": "port-0,port-1,port-2,port-3"}
    config.write_text(tokens(yaml=2))
    await standin.wait("example.com/yaml", 2, 2)
    status, printed, _ = await program.stop()
    assert (status, printed) == (0, "")
    assert not list(program.plugins.glob("devhost-*.sock"))


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--bogus"], 2, "No such option"),
        (["--help"], 0, "Usage: vpcport.py [OPTIONS] [CONFIG]"),
        (["--plugin-dir", "/no"], 1, "--plugin-dir: /no is not a directory; kubelet makes it"),
        (["bad.yaml"], 1, "bad.yaml:2:12: error: resources: should be a list"),
        (["--once"], 2, "Error: --once is for --try"),
    ],
)
async def test_command_line(
    program: Program, tmp_path: Path, arguments: list[str], status: int, text: str
) -> None:
    (tmp_path / "bad.yaml").write_text("version: v1\nresources: 7\n")
    at = [str(tmp_path / word) if word == "bad.yaml" else word for word in arguments]
    await program.start(EXAMPLES / "vpcport.py", *at, plugin_dir="--plugin-dir" not in at)
    ended, printed, logged = await program.ended()
    assert ended == status
    assert text in printed + logged


async def test_class_of_the_page_serves_devices(program: Program, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    options = text.partition("## Options")[2].partition("\n## ")[0]
    assert {*Options.__annotations__} <= {*re.findall(r"`(\w+)`", options)}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = (code for code in blocks if "class" in code)
    (tmp_path / "run" / "scanners").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / "dev" / f"scanner{number}").touch()
    (tmp_path / "run" / "scanners" / "scanner1").write_text("lamp is broken")
    await program.start("-c", shown, "--try", "--root", tmp_path, plugin_dir=False)
    line = await program.line()
    assert line == "example.com/scanner: 1 of 2 allocatable: scanner0 (scanner1)\n"


CODE = """
import devhost

class Plugin(devhost.DevicePlugin):
    def devices(self):
        return ["a", "b"]

    def destroy(self):
        print("destroy", flush=True)

def allocate(devices):
    return devhost.Allocation(envs={"IDS": " ".join(device.id for device in devices)})

def pre_start(devices):
    print("preparing", *[device.id for device in devices], flush=True)

devhost.serve(Plugin("example.com/plugin", allocate=allocate, pre_start=pre_start))
"""


async def test_functions_are_called_as_methods_and_destroy_at_sigterm(
    standin: SimulatedKubelet, program: Program
) -> None:
    await program.start("-c", CODE)
    await standin.wait("example.com/plugin", 2, 2)
    answer = await standin.admit("pod", {"app": {"example.com/plugin": 2}})
    assert answer["app"]["envs"] == {"IDS": "a b"}
    assert await program.line() == "preparing a b\n"
    status, printed, _ = await program.stop()
    assert (status, printed) == (0, "destroy\n")


async def test_try_once_prints_the_resources(program: Program) -> None:
    await program.start(EXAMPLES / "vpcport.py", "--try", "--once", plugin_dir=False)
    status, printed, _ = await program.ended()
    (resource,) = json.loads(printed)["resources"]
    assert (status, resource["name"], resource["registered"]) == (0, PORTS, True)


class Empty(DevicePlugin):
    """Finds nothing."""


async def get_devices() -> list[str]:
    return ["a"]


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((NAME, ["a"]), {}, "get_devices must be a function"),
        ((Plain,), {}, "is not an instance of a subclass of DevicePlugin"),
        ((Empty(NAME),), {}, r"Empty must define devices\(\)"),
        ((Plain([]), Plain([])), {}, r"duplicate plugin example\.com/coded"),
        ((NAME, get_devices), {}, r"coded: devices\(\) is async: methods are sync"),
        ((Plain([]),), {"replicas": 2}, "unexpected replicas"),
        ((NAME, list), {"backend": "dra"}, "only a device plugin offers devices from code"),
        ((NAME, list), {"replica": 2}, "'replica'; did you mean 'replicas'"),
        ((NAME, list), {"maxDevices": 2}, "'maxDevices'; did you mean 'max_devices'"),
        ((NAME, list), {"zz": 2}, "'zz'; known options: interval, "),
    ],
)
def test_serve_refuses_arguments(arguments: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        serve(*arguments, **options, argv=[])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replicas": 0}, "example.com/coded: replicas: "),
        ({"prefer": "paked"}, "prefer: should be .*not 'paked'"),
        ({"allocate": {"env": {"A": "${idd}"}}}, "allocate.env.A: unknown variable .*idd"),
        ({"allocate": object()}, "that YAML cannot represent"),
        ({"interval": 3600}, "interval: should be 0.1 to 30 seconds"),
        ({"name": "coded"}, "write example.com/coded"),
    ],
)
def test_option_with_invalid_value_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Plain([], **options)


def test_public_names_exist() -> None:
    assert set(devhost.__all__) <= set(dir(devhost))
    assert all(getattr(devhost, name) for name in devhost.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sevre'"):
        devhost.sevre  # type: ignore[attr-defined] # noqa: B018
