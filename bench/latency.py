"""How long does an Allocate of one resource wait while devhost works for others?

python -m bench.latency [reload] [changes] [holders] [--seconds 20] [--tree OTHER_CHECKOUT]
"""

import argparse
import asyncio
import contextlib
import json
import os
import select
import shutil
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import grpc

from devhost.api.podresources.v1 import podresources_pb2 as podresources
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

CALM: Final = "example.com/calm"
STORM: Final = "example.com/storm"
RESOURCES: Final = 1000
FILES: Final = 14_000  # devhost.limits.ENTRIES_MAX, with room for the changes
CHANGES_PER_S: Final = 1000
CONTAINERS, HELD_PER_CONTAINER = 60_000, 15
RELOAD_PAUSE_S: Final = 4.0
PROBE_PAUSE_S: Final = 0.01
START_S: Final = 120.0
Context = grpc.aio.ServicerContext[Any, Any]


class Kubelet(pb_grpc.RegistrationServicer):
    """Takes registrations and reads the lists without looking at them: it is to cost little."""

    def __init__(self, directory: Path) -> None:
        self.endpoints: dict[str, Path] = {}
        self._directory = directory
        self._tasks: set[asyncio.Task[None]] = set()

    async def Register(self, request: pb.RegisterRequest, _context: Context) -> pb.Empty:  # noqa: N802
        task = asyncio.create_task(self._watch(request.resource_name, request.endpoint))
        self._tasks.add(task)
        return pb.Empty()

    async def _watch(self, resource: str, endpoint: str) -> None:
        socket = self._directory / endpoint
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch"
            )
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in watch(b""):
                    self.endpoints[resource] = socket
                    self.received(resource)

    def received(self, _resource: str) -> None:
        """Is called at each list; does nothing here."""

    async def until(self, count: int) -> None:
        async with asyncio.timeout(START_S):
            while len(self.endpoints) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


# ── loads ──


def directories(root: Path, count: int, files: int) -> list[Path]:
    made = [root / f"d{number}" for number in range(count)]
    for directory in made:
        directory.mkdir()
        for number in range(files):
            (directory / f"f{number}").touch()
    return made


def configuration(root: Path, storms: list[Path], value: int = 0) -> str:
    lines = ["version: v1", "resources:"]
    lines.append(f"  - {{name: {CALM}, sources: [directory: {root}/calm]}}")
    for number, directory in enumerate(storms):
        name = STORM if len(storms) == 1 else f"{STORM}{number}"
        lines.append(f"  - {{name: {name}, sources: [directory: {directory}],")
        lines.append(f"     allocate: {{env: {{A{number}: 'v{value}-${{id}}'}}}}}}")
    return "\n".join(lines) + "\n"


async def reloading(root: Path, storms: list[Path]) -> None:
    """Change all resources but one, again and again."""
    value = 0
    while True:
        value += 1
        fresh = root / "etc" / ".fresh"
        fresh.write_text(configuration(root, storms, value))
        fresh.replace(root / "etc" / "config.yaml")
        await asyncio.sleep(RELOAD_PAUSE_S)


_CHANGER: Final = """
import pathlib, random, sys, time
place, rate = pathlib.Path(sys.argv[1]), int(sys.argv[2])
began, done = time.monotonic(), 0
while True:
    path = place / f"g{random.randrange(1000)}"
    if path.exists():
        path.unlink()
    else:
        path.touch()
    done += 1
    time.sleep(max(0.0, began + done / rate - time.monotonic()))
"""


async def changing(_root: Path, storms: list[Path]) -> None:
    """Have files come and go in a large directory."""
    arguments = (sys.executable, "-c", _CHANGER, str(storms[0]), str(CHANGES_PER_S))
    process = await asyncio.create_subprocess_exec(*arguments)
    try:
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def held() -> bytes:
    answer = podresources.ListPodResourcesResponse()
    for number in range(CONTAINERS):
        pod = answer.pod_resources.add(name=f"p{number}", namespace="n")
        ids = (f"{number:05}-{share:06}" for share in range(HELD_PER_CONTAINER))
        pod.containers.add(name="c").devices.add(resource_name=STORM, device_ids=ids)
    return answer.SerializeToString()


@contextlib.asynccontextmanager
async def pod_resources(socket: Path, answer: bytes) -> AsyncIterator[None]:
    """Serve one answer to every question."""

    async def listed(_request: bytes, _context: Context) -> bytes:
        return answer

    handlers: dict[str, Any] = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def nothing(_root: Path, _storms: list[Path]) -> None:
    await asyncio.Event().wait()


Load = Callable[[Path, list[Path]], Coroutine[Any, Any, None]]
LOADS: Final[dict[str, tuple[Load, int, int]]] = {  # with directories, and files in each
    "reload": (reloading, RESOURCES, 5),
    "changes": (changing, 1, FILES),
    "holders": (nothing, 1, 10),
}


# ── measuring ──


def probe(socket: str) -> None:
    """Allocate again and again until standard input ends; print how long that took."""
    waits = []
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.DevicePluginStub(channel)
        one = pb.ContainerAllocateRequest(devices_ids=["0"])
        request = pb.AllocateRequest(container_requests=[one])
        while not select.select([0], [], [], 0)[0]:
            began = time.monotonic()
            stub.Allocate(request, timeout=60)
            waits.append((time.monotonic() - began) * 1000)
            time.sleep(PROBE_PAUSE_S)
    print(json.dumps(waits))


async def ended(process: Process, input_: bytes | None = None) -> bytes:
    output, _ = await process.communicate(input_)
    return output


async def measure(name: str, seconds: float, tree: Path) -> None:
    root = Path(tempfile.mkdtemp(prefix="dhl"))
    load, count, files = LOADS[name]
    for directory in ("plugins", "state", "etc", "calm", "storm"):
        (root / directory).mkdir()
    (root / "calm" / "0").touch()
    storms = directories(root / "storm", count, files)
    (root / "etc" / "config.yaml").write_text(configuration(root, storms))
    kubelet, server = Kubelet(root / "plugins"), grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{root}/plugins/kubelet.sock")
    await server.start()
    command = [sys.executable, "-m", "devhost", "run", str(root / "etc" / "config.yaml")]
    command += ["--plugin-dir", str(root / "plugins"), "--state-dir", str(root / "state")]
    command += ["--log-format", "json"]
    command += ["--pod-resources", str(root / "pr.sock")] if name == "holders" else []
    log = (root / "log").open("wb")
    devhost = await asyncio.create_subprocess_exec(*command, cwd=tree, stderr=log, stdout=DEVNULL)
    try:
        await kubelet.until(count + 1)
        begin = [sys.executable, "-m", "bench.latency", "--probe", str(kubelet.endpoints[CALM])]
        prober = await asyncio.create_subprocess_exec(*begin, stdin=PIPE, stdout=PIPE)
        async with contextlib.AsyncExitStack() as stack:
            if name == "holders":
                await stack.enter_async_context(pod_resources(root / "pr.sock", held()))
            work = asyncio.create_task(load(root, storms))
            await asyncio.sleep(seconds)
            work.cancel()
            waits = sorted(json.loads(await ended(prober, b"x")))
            with contextlib.suppress(asyncio.CancelledError):
                await work
        median, last = statistics.median(waits), waits[len(waits) * 99 // 100]
        busy = os.getloadavg()[0]
        print(
            f"{name:8} {len(waits):5} Allocates: median {median:6.1f} ms, "
            f"99 % {last:7.1f} ms, worst {waits[-1]:8.1f} ms (load {busy:.1f})",
            flush=True,
        )
        for line in (root / "log").read_text().splitlines():
            if json.loads(line)["level"] not in {"info", "debug"}:
                print("   ", line[:300])
    finally:
        devhost.kill()
        await devhost.wait()
        log.close()
        await server.stop(None)
        shutil.rmtree(root)


async def measure_all(names: list[str], seconds: float, tree: Path) -> None:
    for name in names:
        await measure(name, seconds, tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tree", type=Path, default=Path.cwd())
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe)
        return
    asyncio.run(measure_all(options.loads, options.seconds, options.tree))


if __name__ == "__main__":
    main()
