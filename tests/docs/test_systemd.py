"""The unit for a node without the chart: systemd takes it, and what it starts serves kubelet."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devhost.cli.run_command import command as run_command
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, tokens

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "devhost.service"
DEVHOST = Path(sys.executable).with_name("devhost")


def analyze(*arguments: str | Path) -> str:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is not installed (package systemd)")
    done = subprocess.run(
        [command, *arguments], check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_unit_is_taken_by_systemd(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/devhost/bin/devhost", str(DEVHOST)))
    assert not re.findall(r".*devhost\.service.*", analyze("verify", "--man=no", unit))


def test_unit_leaves_little_open(tmp_path: Path) -> None:
    """systemd's own measure of what a service could reach, 0 to 10."""
    assert "devhost.service" in analyze("security", "--offline=true", "--threshold=35", UNIT)


async def test_unit_started_serves_kubelet(directory: Path) -> None:
    """The command and the environment of the unit, with directories of the test."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]
    settings = [(key, value) for key, _, value in lines if value]
    (command,) = (value for key, value in settings if key == "ExecStart")
    program, run, config = shlex.split(command)
    assert (program, run, config) == ("/opt/devhost/bin/devhost", "run", "/etc/devhost/config.yaml")
    assert {"MemoryMax", "TasksMax"} <= {key for key, _ in settings}
    variables = dict(value.split("=", 1) for key, value in settings if key == "Environment")
    names = {option.envvar for option in run_command.params}
    assert set(variables) <= names
    kubelet = SimulatedKubelet(directory / "plugins", directory / "pr.sock")
    await kubelet.start()
    daemon = Daemon(directory)
    variables |= {"DEVHOST_LISTEN": "127.0.0.1:0", "DEVHOST_STATUS_LISTEN": "127.0.0.1:0"}
    variables["DEVHOST_STATE_DIR"] = f"{directory}/state"
    daemon.wrapper = ["env", *(f"{key}={value}" for key, value in variables.items())]
    await daemon.start(tokens(slot=3))
    await kubelet.wait("example.com/slot", 3, 3)
    daemon.signal(signal.SIGHUP)
    assert await daemon.stop() == 0
    await kubelet.stop()
