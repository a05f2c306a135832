"""The image under runc with what the chart allows it, against a kubelet."""

import asyncio
import json
import re
import time
from asyncio.subprocess import Process
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.container import PATIENCE, Containers
from tests.deploy.machine import ROOT
from tests.support.hosting import Kubelet

pytestmark = pytest.mark.slow

LIBRARY: Final = ROOT / "docs" / "library.md"
PLUGINS: Final = "/var/lib/kubelet/device-plugins"
STATE: Final = "/var/lib/kubelet/plugins/devhost"
COLA: Final = "myway5.com/cola"
NULL: Final = "example.com/null"

CONFIG: Final = f"""\
version: v1
resources:
  - name: {COLA}
    sources:
      - directory: /etc/colas
    allocate:
      env:
        COLA_DEVICES: ${{id}}
  - name: {NULL}
    sources:
      - dev: "null|zero"
    allocate:
      devices:
        - hostPath: ${{path}}
          containerPath: /dev/nothing${{index}}
"""


async def ended(process: Process) -> float:
    """End a container by SIGTERM, and return the seconds that it took."""
    began = time.monotonic()
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0
    return time.monotonic() - began


async def test_container_serves(containers: Containers, started: Kubelet, directory: Path) -> None:
    config, plugins = directory / "config", directory / "plugins"
    config.mkdir()
    (directory / "state").mkdir()
    (config / "config.yaml").write_text(CONFIG)
    (directory / "colas" / "cherry").touch()
    process = await containers.start(
        *("run", "--root=/host", f"--state-dir={STATE}", "--status-listen=127.0.0.1:9111"),
        mounts={
            PLUGINS: plugins,
            STATE: directory / "state",
            "/etc/devhost:ro": config,
            "/host/dev:ro": Path("/dev"),
            "/host/etc/colas:ro": directory / "colas",
        },
    )
    await started.wait(COLA, 1, 1, timeout=PATIENCE)
    await started.wait(NULL, 2, 2, timeout=PATIENCE)

    (directory / "colas" / "vanilla").touch()
    await started.wait(COLA, 2, 2, timeout=PATIENCE)

    answer = (await started.admit("pod", {"main": {COLA: 2, NULL: 1}}))["main"]
    assert answer["envs"] == {"COLA_DEVICES": "cherry,vanilla"}
    (device,) = answer["devices"]
    assert device["hostPath"] in {"/dev/null", "/dev/zero"}
    assert device["containerPath"] == "/dev/nothing0"

    fresh = config / ".fresh"
    fresh.write_text(CONFIG + "  - {name: example.com/slot, sources: [static: 3]}\n")
    fresh.replace(config / "config.yaml")
    await started.wait("example.com/slot", 3, 3, timeout=PATIENCE)
    assert (directory / "state" / "records" / "example.com_null.json").is_file()
    shown = await asyncio.to_thread(containers.execute, "status")
    assert COLA in shown.stdout, shown.stderr

    assert await ended(process) < 30  # what a pod is given
    assert not list(plugins.glob("devhost-*.sock"))


async def test_plugin_in_python(containers: Containers, started: Kubelet, directory: Path) -> None:
    """By the recipe of docs/library.md; a copy into the image is a mount here."""
    (recipe,) = re.findall(r"```dockerfile\n(.*?)```", LIBRARY.read_text(), re.DOTALL)
    ((source, place),) = re.findall(r"COPY (\S+) (\S+)", recipe)
    (entrypoint,) = re.findall(r"ENTRYPOINT (.*)", recipe)
    assert (ROOT / "config" / "examples" / "python" / source).is_file()
    process = await containers.start(
        "--log-format=json",
        entrypoint=json.loads(entrypoint),
        mounts={
            PLUGINS: directory / "plugins",
            f"{Path(place).parent}:ro": ROOT / "config" / "examples" / "python",
        },
    )
    await started.wait("netease/vpcport", 4, 4, timeout=PATIENCE)
    answer = (await started.admit("pod", {"main": {"netease/vpcport": 4}}))["main"]
    assert answer["envs"] == {"VPC_PORTS": "port-0,port-1,port-2,port-3"}
    await ended(process)
