"""The memory that devhost takes in its image, in a pod as the chart makes it.

    python -m bench.image [RESOURCES...]

runs the image with 1, 100 and 1,000 resources of 10 devices each and prints, in MiB, the memory
of the process, and what the container's memory cgroup has counted at most: at rest, after an edit
of all resources, and after `devhost status` and `devhost plan` in the container.

The content of the image's files counts for who reads it first; the kernel takes that memory back
when it is short.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from bench.process import rss_mib
from bench.scene import Scene, Shape, full_name
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.deploy.build import Image, build
from tests.deploy.container import Containers
from tests.deploy.machine import Unavailable

DEVICES: Final = 10
PATIENCE: Final = 120.0
SETTLED_S: Final = 5.0
PLUGINS: Final = "/var/lib/kubelet/device-plugins"
POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"
STATE: Final = "/var/lib/kubelet/plugins/devhost"


class Memory:
    """The memory cgroup of a process, by either version of the kernel's interface.

    Attributes:
        most: The most of each part since `watched`, found by looking often.
    """

    def __init__(self, process: Path) -> None:
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                directory = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
                if (directory / "memory.stat").exists():
                    self._directory = directory
        unified = (self._directory / "memory.current").exists()
        self._usage = "memory.current" if unified else "memory.usage_in_bytes"
        self._prefix, self._anonymous = ("", "anon") if unified else ("total_", "rss")
        self.most = {"anonymous": 0.0, "working set": 0.0, "usage": 0.0}
        self._stop = Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at it until the end."""
        thread = Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            for part, now in self.now().items():
                self.most[part] = max(self.most[part], now)

    def now(self) -> dict[str, float]:
        """Return what counts at the moment, in MiB; the working set is what kubelet says it is."""
        usage = int((self._directory / self._usage).read_text())
        parts = dict(line.split() for line in (self._directory / "memory.stat").open())
        anonymous, file = (
            int(parts[self._prefix + name]) for name in (self._anonymous, "inactive_file")
        )
        sizes = {"anonymous": anonymous, "working set": usage - file, "usage": usage}
        return {part: size / 2**20 for part, size in sizes.items()}


async def measure(image: Image, resources: int, directory: Path) -> None:
    """Print the figures for so many resources."""
    scene = Scene(directory, Shape(resources, DEVICES))
    plugins, state, config = (directory / name for name in ("plugins", "state", "config"))
    for made in (plugins, state, config, directory / "runc"):
        made.mkdir()
    (config / "config.yaml").write_text(scene.config())
    kubelet = SimulatedKubelet(plugins, directory / "pod-resources" / "kubelet.sock")
    await kubelet.start()
    containers = Containers(image, directory / "runc")
    _forget(image.rootfs)
    allowed = (f"--allow-path={scene.root}/*", f"--allow-device={scene.root}/*")
    process = await containers.start(
        *("run", "--root=/host", f"--state-dir={STATE}", *allowed, "--log-level=warning"),
        *("--listen=:9110", "--status-listen=127.0.0.1:9111"),
        mounts={
            PLUGINS: plugins,
            f"{POD_RESOURCES}:ro": kubelet.pod_resources.parent,
            STATE: state,
            "/etc/devhost:ro": config,
            f"/host{scene.root}:ro": scene.root,
        },
    )
    try:
        last = scene.shape.names[-1]
        await kubelet.wait(full_name(scene.shape.names[0]), DEVICES, DEVICES, timeout=PATIENCE)
        first = containers.process_1()
        memory = Memory(first)
        with memory.watched():
            for name in scene.shape.names:
                await kubelet.wait(full_name(name), DEVICES, DEVICES, timeout=PATIENCE)
            await asyncio.sleep(SETTLED_S)
            _show(resources, "at rest", first, memory)

            fresh = config / ".fresh"
            fresh.write_text(scene.config(changed=True).replace("prefer: packed", "prefer: spread"))
            fresh.replace(config / "config.yaml")
            await kubelet.wait(full_name(scene.changed), DEVICES + 1, DEVICES + 1, timeout=PATIENCE)
            await asyncio.sleep(SETTLED_S)
            _show(resources, "edit of all", first, memory)

            for command in (("status",), ("plan", "--root=/host", *allowed)):
                began = time.monotonic()
                done = await asyncio.to_thread(containers.execute, *command)
                took = time.monotonic() - began
                if last not in done.stdout:
                    sys.exit(f"{done.stdout[-500:]}{done.stderr[-500:]}")
                _show(resources, f"{command[0]} ({took:.1f} s)", first, memory)
    finally:
        if process.returncode is None:
            process.terminate()
        await containers.close()
        await kubelet.stop()


def _forget(rootfs: Path) -> None:
    """Drop from the kernel's cache the content of the image's files, as if nobody had read them."""
    for path in rootfs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _show(resources: int, when: str, process: Path, memory: Memory) -> None:
    rss = rss_mib(int(process.name))
    most = ", ".join(f"{part} {size:5.1f}" for part, size in memory.most.items())
    sys.stdout.write(f"{resources:5} {when:15} rss {rss:5.1f}, most in the pod: {most}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("resources", nargs="*", type=int, default=[1, 100, 1000])
    options = parser.parse_args()
    try:
        image = build()
    except Unavailable as reason:
        sys.exit(f"cannot build the image here: {reason}")
    for resources in options.resources:
        directory = Path(tempfile.mkdtemp(prefix="dhfig"))
        try:
            asyncio.run(measure(image, resources, directory))
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
