"""A demonstration without a cluster: a resource, changes of its devices, and an allocation."""

import asyncio
import sys
import tempfile
from pathlib import Path

from devhost.config.loader import loads
from devhost.fake_kubelet.trial import Trial
from devhost.node.node import Settings
from devhost.observe import logs

CONFIG = """\
version: v1
resources:
  - name: myway5.com/cola
    sources:
      - directory: {directory}
    allocate:
      env:
        COLA_DEVICES: ${{id}}
"""


def step(text: str) -> None:
    print(f"\n── {text}", flush=True)


async def show(trial: Trial, capacity: int, allocatable: int) -> None:
    name = "myway5.com/cola"
    await trial.kubelet.wait(name, capacity, allocatable)
    print(f"   kubelet: {name}: capacity {capacity}, allocatable {allocatable}")
    for device_id, health in sorted(trial.kubelet.devices(name).items()):
        print(f"            {device_id:8} {health}")


async def demo(directory: Path) -> None:
    colas = directory / "colas"
    colas.mkdir()
    for name in ("cherry", "classic"):
        (colas / name).touch()
    text = CONFIG.format(directory=colas)
    step("The configuration: each file of a directory is a device")
    print(text, end="")
    config = loads(text, "demo.yaml").require()
    (directory / "plugins").mkdir()
    trial = Trial(config, Settings("laptop"), directory / "plugins")
    async with trial.running():
        step("devhost serves it and registers with the (stand-in) kubelet")
        await show(trial, 2, 2)
        step("A new device: touch colas/vanilla")
        (colas / "vanilla").touch()
        await show(trial, 3, 3)
        step("A pod requests two devices; its container receives")
        answer = await trial.kubelet.admit("pod-1", {"app": {"myway5.com/cola": 2}})
        for name, value in answer["app"]["envs"].items():
            print(f"   env {name}={value}")
        step("A device is removed: rm colas/classic (first unhealthy, later it leaves the list)")
        (colas / "classic").unlink()
        await show(trial, 3, 2)
        step("kubelet restarts and deletes all sockets; devhost registers again")
        await trial.kubelet.restart()
        await show(trial, 3, 2)
        if sys.stdout.isatty():
            step(f"Try it: create and remove files in {colas} (Ctrl-C to exit)")
            known = await trial.kubelet.capacity()
            while True:
                await asyncio.sleep(0.2)
                if (now := await trial.kubelet.capacity()) != known:
                    known = now
                    await show(trial, *now["myway5.com/cola"])


def main() -> None:
    logs.set_up("warning", "text")
    with tempfile.TemporaryDirectory(prefix="devhost-demo-") as directory:
        try:
            # Not by the log's thread, which may be late: each warning belongs to its step.
            with logs.redirect_to(lambda line: print(line, file=sys.stderr, flush=True)):
                asyncio.run(demo(Path(directory)))
        except KeyboardInterrupt:
            print()
    step("Next: what this machine has, and a first file for it")
    print("   .venv/bin/devhost devices\n   .venv/bin/devhost init")


if __name__ == "__main__":
    main()
