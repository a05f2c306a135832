"""The requests of clients, bounded before they are worked on, for all servers of the process.

gRPC would receive a unary request as a whole, wait without end for one that does not come, and
decode it before anybody may refuse it. So the servers take every method as one with a stream of
requests, whose first is read here.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from devhost import limits
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.device_list import LIST_BYTES_MAX, DeviceList

_SAID_FOR_S: Final = 600.0
_LOG: Final = logging.getLogger(__name__)


class RequestError(Exception):
    """A request is beyond the bounds; its text says which one."""


class Requests:
    """One per process."""

    def __init__(self) -> None:
        self._receiving: dict[asyncio.Timeout, float] = {}  # the oldest first, with its beginning
        self._received = asyncio.Event()
        self._many_ids = asyncio.Lock()
        self._refused = 0
        self._last: tuple[float, str] | None = None

    @property
    def trouble(self) -> str | None:
        """What was refused of late, if anything was."""
        now = asyncio.get_running_loop().time()
        if self._last is None or now - self._last[0] > _SAID_FOR_S:
            return None
        return f"{self._refused} requests on plugin sockets refused, the last one: {self._last[1]}"

    def refused(self, resource: str, reason: str) -> None:
        """Count a request that was refused; the first one in ten minutes is logged."""
        if self.trouble is None:
            self._refused = 0
            fields = {"resource": resource, "reason": reason}
            _LOG.warning("request on a plugin socket refused", extra={"fields": fields})
        self._refused += 1
        self._last = asyncio.get_running_loop().time(), f"{resource}: {reason}"

    async def receive(self, context: Any, kind: type[Message], device_list: DeviceList) -> Any:
        """Return the request of a call.

        Args:
            context: The call.
            kind: What it should be.
            device_list: What can be asked for.

        Raises:
            RequestError: It is too large, or does not come.
        """
        clock, receiving = asyncio.get_running_loop().time, self._receiving
        while len(receiving) >= limits.RECEIVING_MAX:
            oldest, since = next(iter(receiving.items()))
            if clock() - since >= limits.RECEIVING_S:
                del receiving[oldest]
                oldest.reschedule(clock())
                break
            self._received.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(since + limits.RECEIVING_S):
                    await self._received.wait()
        try:
            async with asyncio.timeout(limits.RECEIVED_WITHIN_S) as limit:
                receiving[limit] = clock()
                raw = await context.read()
        except TimeoutError:
            raise RequestError("the request did not come in time") from None
        finally:
            receiving.pop(limit, None)
            self._received.set()
        return _decoded(raw, kind, device_list)

    @contextlib.asynccontextmanager
    async def turn(self, ids: int) -> AsyncIterator[None]:
        """Wait while another request with many IDs is answered, if this one has many too.

        Raises:
            RequestError: That takes too long.
        """
        if ids <= limits.MANY_IDS:
            yield
            return
        try:
            async with asyncio.timeout(limits.MANY_IDS_WITHIN_S):
                await self._many_ids.acquire()
        except TimeoutError:
            raise RequestError("other requests with many device IDs take long") from None
        try:
            yield
        finally:
            self._many_ids.release()


def _decoded(raw: Any, kind: type[Message], device_list: DeviceList) -> Any:
    if raw is grpc.aio.EOF:
        raise RequestError("there is no request")
    most = 2 * (LIST_BYTES_MAX - device_list.room) + limits.REQUEST_BYTES_FREE
    if len(raw) > most:
        raise RequestError(f"{len(raw)} bytes, more than {most} for a list of this length")
    try:
        request = kind.FromString(raw)
    except DecodeError:
        raise RequestError("the request cannot be decoded") from None
    count = id_count(request)
    most = max(len(device_list), limits.MANY_IDS)
    if count > most:
        raise RequestError(f"{count} device IDs, more than {most}")
    return request


def id_count(request: Any) -> int:
    """Return how many IDs a request has.

    Raises:
        RequestError: It is for more containers than `limits.CONTAINER_REQUESTS_MAX`.
    """
    if isinstance(request, pb.PreStartContainerRequest):
        return len(request.devices_ids)
    if isinstance(request, pb.AllocateRequest | pb.PreferredAllocationRequest):
        containers: Sequence[Any] = request.container_requests
        if len(containers) > limits.CONTAINER_REQUESTS_MAX:
            most = limits.CONTAINER_REQUESTS_MAX
            raise RequestError(f"{len(containers)} container requests, more than {most}")
        if isinstance(request, pb.AllocateRequest):
            return sum(len(one.devices_ids) for one in containers)
        return sum(
            max(len(one.available_deviceIDs), len(one.must_include_deviceIDs)) for one in containers
        )
    return 0
