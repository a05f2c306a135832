"""Tells kubelet the health of the devices that claims have; it shows that in the status of pods.

Kubelet 1.37 asks by version v1 of the protocol, 1.36 by v1alpha1. It forgets all when a stream of
the driver ends, and a device of which it has heard nothing for a time (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/dra/manager.go, HandleWatchResourcesStream).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import grpc

from devhost.api.drahealth.v1 import drahealth_pb2 as pb
from devhost.api.drahealth.v1 import drahealth_pb2_grpc as pb_grpc
from devhost.model.names import printable
from devhost.watch.threads import wait_at_most

SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_REPEAT_S: Final = 30.0  # another instance may have ended its stream
_TIMEOUT_S: Final = 120
_TEXT_MAX: Final = 1000  # bytes


class HealthStreams(pb_grpc.DRAResourceHealthServicer):
    """Streams the health of devices; `list_health` returns that of all devices that claims have."""

    def __init__(self, list_health: Callable[[], Sequence[pb.DeviceHealth]]) -> None:
        self._list_health = list_health
        self._changed, self._are_ended = asyncio.Event(), asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve kubelet on a server, by all versions."""
        self._are_ended = asyncio.Event()
        watch = grpc.unary_stream_rpc_method_handler(
            self.NodeWatchResources,
            request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
        )
        handlers = [
            grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})
            for service in SERVICES
        ]
        server.add_generic_rpc_handlers(tuple(handlers))

    def report_change(self) -> None:
        """Send what has changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self) -> None:
        """End the streams: a server that stops waits for them."""
        self._are_ended.set()
        self.report_change()

    async def NodeWatchResources(  # noqa: N802 (the protocol's name)
        self, _request: pb.NodeWatchResourcesRequest, _context: object
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """Yield the health of all devices, after each change and from time to time."""
        ended, sent = self._are_ended, None
        while not ended.is_set():
            changed, healths = self._changed, self._list_health()
            if healths != sent:
                yield pb.NodeWatchResourcesResponse(devices=healths)
                sent = healths
            await wait_at_most(_REPEAT_S, changed.wait)
            if not changed.is_set():
                sent = None


def device_health(
    pool: str, device: str, reason: str, *, is_healthy: bool | None
) -> pb.DeviceHealth:
    """Return the health of a device of a claim, and why; ``None`` if it is unknown."""
    healthy = {True: pb.HEALTHY, False: pb.UNHEALTHY, None: pb.UNKNOWN}
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=pool, device_name=device),
        health=healthy[is_healthy],
        health_check_timeout_seconds=_TIMEOUT_S,
        message=printable(reason).encode()[:_TEXT_MAX].decode(errors="ignore"),
    )
