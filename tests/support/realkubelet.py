"""Drive the device manager of a real kubelet, run as a process of its own.

The process is the Go program in tests/support/go/kubelet, see protocol.go there; kubelet_build.py
beside it makes the binary.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

import pytest

from devhost.fake_kubelet.kubelet import AdmissionError, Answer

# Answers come as lines, and one may list tens of thousands of devices.
LONGEST_LINE = 64 * 1024 * 1024

STOP_TIMEOUT = 60.0


def real_kubelets() -> dict[str, Path]:
    """Return the binaries that `make test` builds, by version, the newest last."""
    paths = [Path(path) for path in os.environ.get("DEVHOST_TEST_KUBELET", "").split(":") if path]
    by_version = {binary_version(path): path for path in paths}
    return {".".join(map(str, key)): by_version[key] for key in sorted(by_version)}


def binary_version(binary: Path) -> tuple[int, ...]:
    """Read a kubelet's version from its file's name, as kubelet_build.py writes it."""
    match = re.match(r"kubelet-v(\d+)\.(\d+)\.(\d+)-", binary.name)
    if match is None:
        raise ValueError(f"DEVHOST_TEST_KUBELET: no version in the name of {binary}")
    return tuple(map(int, match.groups()))


UNSET = "DEVHOST_TEST_KUBELET is not set: run `make test`"

# The real kubelets as parameters of the fixture `kubelet`; one that is skipped if there are none.
# A test that needs what only a real kubelet has says
# @pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True).
_NEEDED = [pytest.mark.real_kubelet, pytest.mark.program("kubelet")]
REAL_KUBELETS = [
    pytest.param(path, id=f"real-{version}", marks=_NEEDED)
    for version, path in real_kubelets().items()
] or [pytest.param(None, id="real", marks=pytest.mark.skip(reason=UNSET))]


class KubeletError(Exception):
    """The kubelet could not do as told; the text is its own."""


class KubeletDied(Exception):  # noqa: N818 - what happened, not a kind of error
    """The process ended, with the last lines of its log: a panic shows here."""


OWN_POD: Final = {
    "uid": "devhost",
    "name": "devhost",
    "namespace": "devhost",
    "containers": [{"name": "devhost", "limits": {}}],
}


class Hint(NamedTuple):
    """NUMA nodes whose devices would do for a container."""

    nodes: tuple[int, ...]
    preferred: bool  # no smaller set of nodes could ever do


class RealKubelet:
    """A kubelet in a directory of its own, which outlives its kills and restarts.

    It serves the kubelet's own pod-resources API at the socket ``pod_resources`` while it runs. A
    kill leaves a dead socket behind, as a kubelet's end does.
    """

    def __init__(
        self, binary: Path, plugin_dir: Path, pod_resources: Path, *, numa_nodes: int = 0
    ) -> None:
        self.plugin_dir = plugin_dir
        self.pod_resources = pod_resources
        self.version = binary_version(binary)  # for what has changed between versions
        self._command = [str(binary), "--dir", str(plugin_dir), "-v", "4"]
        self._command += ["--pod-resources", str(pod_resources)]
        if numa_nodes:
            self._command += ["--numa-nodes", str(numa_nodes)]
        self._pods: dict[str, dict[str, Any]] = {}  # the active ones, by name
        self._started: dict[str, set[str]] = {}  # the containers of each that were started
        self._new_uids: dict[str, str] = {}  # of pods that were spoken of and are not admitted yet
        self._uids = itertools.count(1)
        self._ids = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._log: deque[str] = deque(maxlen=200)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def log(self) -> str:
        """The end of what the process has logged."""
        return "\n".join(self._log)

    async def start(self, *, knows_pods: bool = True) -> None:
        """Start the process with the pods of an earlier one, unless its API server is away."""
        if self._process is not None:
            raise RuntimeError("the kubelet was started already")
        self._log.clear()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LONGEST_LINE
        )
        readers = (self._read_replies(process), self._read_log(process))
        self._readers = [asyncio.create_task(reader) for reader in readers]
        try:
            pods = [OWN_POD, *self._pods.values()] if knows_pods else []
            await self._call("pods", pods=pods)
            await self._call("start", sourcesReady=knows_pods)
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """Stop the manager, then end the process; raise if it has died on its own before."""
        if self._process is None:
            return
        try:
            if self._process.returncode is None:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await self._call("stop")
                    self._stdin.close()  # the process ends with its input
                    await self._process.wait()
            await asyncio.gather(*self._readers)
            if self._process.returncode != 0:
                raise self._death()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End the process as a crash does: kubelet.sock stays, and nobody listens on it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.gather(*self._readers)

    async def restart(self, down: float = 0.0) -> None:
        """Crash, stay away for so many seconds, and start again with the same pods."""
        await self.kill()
        await asyncio.sleep(down)
        await self.start()

    async def capacity(self) -> dict[str, tuple[int, int]]:
        """Return capacity and allocatable of each resource."""
        reply = await self._call("capacity")
        allocatable = reply["allocatable"]
        return {name: (n, allocatable.get(name, 0)) for name, n in reply["capacity"].items()}

    async def wait(
        self,
        resource: str,
        capacity: int | None,
        allocatable: int | None,
        timeout: float = 120.0,  # noqa: ASYNC109 - the process keeps the time
    ) -> None:
        """Wait until the kubelet counts so many devices; None means no such resource."""
        arguments = {"resource": resource, "capacity": capacity, "allocatable": allocatable}
        try:
            await self._call("wait", **arguments, timeout=timeout)
        except KubeletError as error:
            raise AssertionError(str(error)) from None

    async def healthy_devices(self, resource: str) -> dict[str, list[int]]:
        """Return the NUMA nodes of each healthy device."""
        reply = await self._call("devices", resource=resource)
        return {device["id"]: device["numaNodes"] for device in reply["devices"]}

    async def admit(
        self,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        *,
        init: Collection[str] = (),
        sidecars: Collection[str] = (),
        start: bool = True,
    ) -> dict[str, Answer]:
        """Admit a pod, again if it is active, and start its containers, or raise `AdmissionError`.

        The `init` containers and `sidecars` (which go on running) come first, in the order of
        `containers`. Without `start` the answer is empty.
        """
        spec = self._spec(pod, containers, init, sidecars)
        self._pods[pod], self._started[pod] = spec, set()
        self._new_uids.pop(pod, None)
        try:
            await self._call("admit", pod=spec)
        except KubeletError as error:
            del self._pods[pod], self._started[pod]
            raise AdmissionError(str(error)) from None
        if not start:
            return {}
        first = [name for name in containers if name in init or name in sidecars]
        try:
            names = dict.fromkeys([*first, *containers])
            return {name: await self.start_container(pod, name) for name in names}
        except AdmissionError:  # a kubelet would try again and again
            await self.free(pod)
            raise

    async def start_container(self, pod: str, container: str) -> Answer:
        """Start a container of an admitted pod; after an `AdmissionError` it keeps its devices."""
        spec, started = self._pods[pod], self._started[pod]
        try:
            reply = await self._call("start_container", uid=spec["uid"], container=container)
        except KubeletError as error:
            raise AdmissionError(str(error)) from None
        started.add(container)
        if started.issuperset(container["name"] for container in spec["containers"]):
            spec["running"] = True  # what a restarted kubelet finds
        return cast("Answer", reply["container"])

    async def free(self, pod: str) -> None:
        await self._call("free", uid=self._uid(pod))
        del self._pods[pod], self._started[pod]

    async def hints(
        self, pod: str, containers: Mapping[str, Mapping[str, int]]
    ) -> dict[str, dict[str, list[Hint] | None]]:
        """Return the hints of each container and resource; None if any NUMA node will do."""
        reply = await self._call("hints", pod=self._spec(pod, containers))
        return {
            container: {
                resource: hints and [Hint(tuple(h["nodes"]), h["preferred"]) for h in hints]
                for resource, hints in of_container.items()
            }
            for container, of_container in reply["hints"].items()
        }

    async def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return the device health in the pod's status: container, resource, device, health."""
        reply = await self._call("status", uid=self._uid(pod))
        return cast("dict[str, dict[str, dict[str, str]]]", reply["health"])

    def _spec(
        self,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        init: Collection[str] = (),
        sidecars: Collection[str] = (),
    ) -> dict[str, Any]:
        specs: list[dict[str, Any]] = []
        for name, limits in containers.items():
            specs.append({"name": name, "limits": dict(limits)})
            if name in sidecars:
                specs[-1]["sidecar"] = True
            elif name in init:
                specs[-1]["init"] = True
        uid = self._uid(pod, new=True)
        return {"uid": uid, "name": pod, "namespace": "default", "containers": specs}

    def _uid(self, pod: str, *, new: bool = False) -> str:
        if new and pod not in self._pods:
            return self._new_uids.setdefault(pod, f"{pod}-{next(self._uids)}")
        return str(self._pods[pod]["uid"])

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the kubelet is not running")
        return self._process.stdin

    async def _call(self, command: str, **arguments: object) -> dict[str, Any]:
        stdin = self._stdin
        if self._readers[0].done():
            raise self._death()
        number = next(self._ids)
        reply = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            line = json.dumps({"id": number, "cmd": command, **arguments})
            stdin.write(line.encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # the reader of replies tells why
                await stdin.drain()
            answer: dict[str, Any] = await reply
        finally:
            del self._replies[number]
        if not answer["ok"]:
            raise KubeletError(answer["error"])
        return answer

    async def _read_replies(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            answer = json.loads(line)
            reply = self._replies.get(answer["id"])
            if reply is not None and not reply.done():  # else its caller was cancelled
                reply.set_result(answer)
        # The end of the output is the end of the process. Its log, with the
        # reason, may still be on the way.
        await asyncio.gather(process.wait(), self._readers[1])
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._death(process))

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._log.append(line.decode(errors="replace").rstrip())

    def _death(self, process: asyncio.subprocess.Process | None = None) -> KubeletDied:
        process = process or self._process
        status = process.returncode if process else None
        return KubeletDied(f"the kubelet has ended with status {status}; its log:\n{self.log}")
