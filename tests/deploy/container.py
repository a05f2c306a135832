"""The image under runc, as the chart runs it: read-only, without capabilities or privileges."""

import asyncio
import json
import platform
import subprocess
import uuid
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.deploy import debian
from tests.deploy.build import Image
from tests.deploy.machine import Unavailable

# A path of the host, by where the container has it; those that end in ":ro" are read-only.
Mounts = Mapping[str, Path]

MEMORY: Final = 256 * 1024 * 1024  # the limit that the chart sets
PATIENCE: Final = 25.0

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Containers:
    """Runs containers of an image, each with a bundle below a directory."""

    def __init__(self, image: Image, directory: Path) -> None:
        self.image = image
        self._directory = directory
        self._bundles: list[Path] = []
        self._started: list[Process] = []

    def run(
        self, *arguments: str, mounts: Mounts | None = None, rootfs: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a container to its end.

        Args:
            arguments: For the entry point.
            mounts: What it sees of the host.
            rootfs: Other files than the image's; the arguments are the whole command then.
        """
        argv = self.argv(*arguments, mounts=mounts, rootfs=rootfs)
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=PATIENCE)

    def argv(
        self, *arguments: str, mounts: Mounts | None = None, rootfs: Path | None = None
    ) -> list[str]:
        """Return the command that runs a container, as `run` does."""
        entry = () if rootfs else self.image.config["config"]["Entrypoint"]
        return self._command([*entry, *arguments], mounts or {}, rootfs or self.image.rootfs)

    async def start(
        self, *arguments: str, mounts: Mounts, entrypoint: Sequence[str] = ()
    ) -> Process:
        """Start a container; signals to this process go to its process 1."""
        config = self.image.config["config"]
        args = [*(entrypoint or config["Entrypoint"]), *(arguments or config["Cmd"])]
        argv = self._command(args, mounts, self.image.rootfs)
        process = await asyncio.create_subprocess_exec(*argv)
        self._started.append(process)
        return process

    def execute(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run devhost once more in the container that was started last, to its end."""
        entry = self.image.config["config"]["Entrypoint"]
        argv = self._runc("exec", self._bundles[-1].name, *entry, *arguments)
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=PATIENCE)

    def process_1(self) -> Path:
        """Where the kernel shows the first process of the container that was started last."""
        return Path("/proc") / (self._bundles[-1] / "pid").read_text()

    async def close(self) -> None:
        """End what still runs."""
        for bundle in self._bundles:
            argv = self._runc("delete", "--force", bundle.name)
            await (await asyncio.create_subprocess_exec(*argv, stderr=DEVNULL)).wait()
        async with asyncio.timeout(PATIENCE):
            for process in self._started:
                await process.wait()

    def check(self) -> None:
        """Raise `Unavailable` where this machine cannot run containers, whatever the image."""
        done = self.run("/usr/bin/true", rootfs=self.image.base)
        if done.returncode != 0:
            raise Unavailable(f"no container can be run here: {done.stderr.strip()}")

    def _command(self, args: Sequence[str], mounts: Mounts, rootfs: Path) -> list[str]:
        bundle = self._directory / f"devhost-test-{uuid.uuid4().hex[:12]}"
        bundle.mkdir()
        self._bundles.append(bundle)
        subprocess.run(self._runc("spec", f"--bundle={bundle}"), check=True)
        file = bundle / "config.json"
        spec = json.loads(file.read_text())
        self._settle(spec, args, mounts, rootfs)
        file.write_text(json.dumps(spec))
        places = (f"--bundle={bundle}", f"--pid-file={bundle}/pid")
        return self._runc("run", *places, bundle.name)

    def _runc(self, *arguments: str) -> list[str]:
        root = f"--root={self._directory}/runc"
        return debian.with_tools(self.image.tools, "runc", root, *arguments)

    def _settle(
        self, spec: dict[str, Any], args: Sequence[str], mounts: Mounts, rootfs: Path
    ) -> None:
        """Make of runc's example what the chart asks for."""
        config = self.image.config["config"]
        user, group = map(int, config["User"].split(":"))
        sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
        spec["process"] |= {
            "user": {"uid": user, "gid": group},
            "args": list(args),
            "terminal": False,
            "env": [*config["Env"], "DEVHOST_NODE_NAME=node-1", "TERM=xterm"],
            "cwd": config["WorkingDir"],
            "capabilities": {kind: [] for kind in sets},
        }
        spec["root"] = {"path": str(rootfs), "readonly": True}
        spec["mounts"] = [m for m in spec["mounts"] if m["type"] not in ("cgroup", "mqueue")]
        spec["mounts"] += [_bind(to, source) for to, source in mounts.items()]
        spec["linux"]["namespaces"] = [
            entry for entry in spec["linux"]["namespaces"] if entry["type"] != "cgroup"
        ]
        spec["linux"]["resources"]["memory"] = {"limit": MEMORY}
        spec["linux"]["seccomp"] = self._seccomp()

    def _seccomp(self) -> dict[str, Any]:
        """Return the default profile of container engines, for no capability at all."""
        place = Path("usr/share/containers/seccomp.json")
        here = self.image.tools / place
        profile = json.loads((here if here.exists() else "/" / place).read_text())
        architecture = ARCHITECTURES[platform.machine()]
        applies = [
            {key: rule[key] for key in ("names", "action", "args", "errnoRet") if rule.get(key)}
            for rule in profile["syscalls"]
            if not rule["includes"].get("caps")
            and architecture in rule["includes"].get("arches", [architecture])
            and architecture not in rule["excludes"].get("arches", [])
        ]
        return {
            "defaultAction": profile["defaultAction"],
            "defaultErrnoRet": profile["defaultErrnoRet"],
            "architectures": [f"SCMP_ARCH_{platform.machine().upper()}"],
            "syscalls": applies,
        }


def _bind(to: str, source: Path) -> dict[str, Any]:
    path = to.removesuffix(":ro")
    options = ["rbind", "rprivate", "rw" if path == to else "ro"]
    return {"destination": path, "type": "bind", "source": str(source), "options": options}
