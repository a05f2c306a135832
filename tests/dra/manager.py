"""Drives the DRA manager of a real kubelet: tests/support/go/dra as a process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Self

from tests.dra.world import World


class DraManager:
    """The manager in a world's directory; it outlives its kills."""

    def __init__(self, binary: Path, world: World) -> None:
        self._binary, self._world = binary, world
        self._process: asyncio.subprocess.Process | None = None
        self.log = world.directory / "manager.log"

    async def start(self, running: Iterable[str] = ()) -> None:
        """Start it, with the pods that run already."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._binary,
                *("-v", "4", "-root", str(self._world.directory)),
                *("-api", self._world.api.url, "-node", "node-1"),
                *("-running", ",".join(running)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def kill(self) -> None:
        """End it as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        await self.start()
        try:
            yield self
        finally:
            await self.kill()

    async def prepare(
        self, pod: str, claim: str, resource: str = "", beside: str = ""
    ) -> list[str]:
        """Prepare a pod's claims; return the CDI names that its container gets."""
        names = {"claim": claim, "resource": resource, "own": beside}
        answer = await self._ask(command="prepare", pod=pod, **names)
        if error := answer.get("error"):
            raise RuntimeError(error)
        return list(answer["cdi"])

    async def unprepare(self, pod: str, claim: str, resource: str = "", beside: str = "") -> str:
        """Unprepare what a pod has; return why that failed, or nothing."""
        names = {"claim": claim, "resource": resource, "own": beside}
        return str((await self._ask(command="unprepare", pod=pod, **names)).get("error", ""))

    async def health(self, pod: str, claim: str) -> list[dict[str, str]]:
        """Return the health of the devices of a pod's claim, as the pod's status shows it."""
        answer = await self._ask(command="health", pod=pod, claim=claim)
        return list(answer.get("health", ()))

    async def _ask(self, **request: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the manager has died:\n{self.log.read_text()[-4000:]}")
        return dict(json.loads(line))
