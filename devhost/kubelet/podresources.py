"""A client of kubelet's pod-resources API: which pod holds which device.

The API is v1 of k8s.io/kubelet v0.37.0, pkg/apis/podresources/v1. What its List shows is
decided in k8s.io/kubernetes v1.37.1, pkg/kubelet/apis/podresources/server_v1.go: active pods,
those that are being admitted included, with their app containers and sidecars. Ordinary init
containers are not shown, though they hold devices.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from devhost.api.podresources.v1 import podresources_pb2 as pb
from devhost.errors import KubeletError
from devhost.kubelet.channel import connect_error, open_channel
from devhost.threads import in_thread

LIST_TIMEOUT_S: Final = 2.0
# Kubelet sets no limit to what it sends. The pods of a node with some 10,000 devices need 1 MiB;
# parsing a message holds Python's lock, for 4 MiB some 50 ms.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"
_REASONS: Final = {
    errno.ENOENT: "no such socket",
    errno.ECONNREFUSED: "connection refused",
    errno.EACCES: "permission denied",
}

T = TypeVar("T")
HeldBy = Mapping[str, frozenset[str]]


class PodResources:
    """The API on one socket; each call makes a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._identifying: asyncio.Future[object] | None = None

    async def kubelet(self) -> object:
        """Return what differs from one kubelet that serves the socket to the next.

        ``None`` where there is no socket, or its filesystem does not answer in `LIST_TIMEOUT_S`.
        """
        if self._identifying is None:
            self._identifying = in_thread("pod-resources socket", self._identity)
        done, _ = await asyncio.wait({self._identifying}, timeout=LIST_TIMEOUT_S)
        if not done:
            return None
        found, self._identifying = self._identifying.result(), None
        return found

    def _identity(self) -> object:
        try:
            found = self.socket.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    async def holders(self) -> Mapping[str, HeldBy]:
        """List which pods hold which devices, in `LIST_TIMEOUT_S` at most.

        Returns:
            Resource name to advertised device ID to the pods that hold it (``namespace/name``).

        Raises:
            KubeletError: That failed; the text names the socket and the reason.
        """
        return await self._ask(_LIST, _by_resource)

    async def served(self) -> frozenset[str]:
        """List the resources that have healthy devices, held or not, in the same time.

        Raises:
            KubeletError: As `holders` does.
        """
        return await self._ask(_ALLOCATABLE, _allocatable)

    async def _ask(self, method: str, read: Callable[[bytes], T]) -> T:
        """Call a method whose request is empty; read the answer in a thread."""
        # A channel that failed would wait before it connects again, though kubelet has restarted.
        async with open_channel(self.socket, receive_bytes_max=ANSWER_BYTES_MAX) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            try:
                answer = await call(b"", timeout=LIST_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise KubeletError(f"{self.socket}: {self._reason(error)}") from None
        try:
            return await in_thread("pod resources", lambda: read(answer))
        except DecodeError:
            raise KubeletError(f"{self.socket}: the answer cannot be read") from None

    def _reason(self, error: grpc.aio.AioRpcError) -> str:
        details = error.details() or error.code().name.lower()
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"did not answer in {LIST_TIMEOUT_S:g} s"
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return f"the answer may be larger than {ANSWER_BYTES_MAX >> 20} MiB: {details}"
            case grpc.StatusCode.UNIMPLEMENTED:
                return f"not the kubelet's pod-resources API: {details}"
            case grpc.StatusCode.UNAVAILABLE:
                # gRPC's text wraps the reason in others, and differs between versions.
                return _REASONS.get(connect_error(self.socket), details)
            case _:
                return details


def _allocatable(answer: bytes) -> frozenset[str]:
    listed = pb.AllocatableResourcesResponse.FromString(answer)
    return frozenset(entry.resource_name for entry in listed.devices)


def _by_resource(answer: bytes) -> Mapping[str, HeldBy]:
    listed = pb.ListPodResourcesResponse.FromString(answer)
    found: dict[str, dict[str, set[str]]] = {}
    for pod in listed.pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        for container in pod.containers:
            for entry in container.devices:
                holders = found.setdefault(entry.resource_name, {})
                for device_id in entry.device_ids:
                    holders.setdefault(device_id, set()).add(name)
    return {
        resource: {device_id: frozenset(names) for device_id, names in holders.items()}
        for resource, holders in found.items()
    }
