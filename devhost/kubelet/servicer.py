"""The five calls of a device plugin, over whatever serves a resource."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import AllocationError, PreStartError
from devhost.kubelet import call_log, wire
from devhost.kubelet.listing import Call, Listing
from devhost.kubelet.streams import Streams
from devhost.model.answer import Allocation
from devhost.model.names import printable

ALLOCATE_TIMEOUT_S: Final = 5.0  # the kubelet sets none, and waits in its main loop
RESULTS: Final = ("ok", "refused", "timeout", "error", "cancelled")  # of an Allocate
_DIGEST_S: Final = 0.5
WRITE_TIMEOUT_S: Final = 30.0  # a peer that does not read would keep IDs from leaving the list
_GAVE_UP: Final = "the kubelet cancelled the call"
_TAKEN_OVER: Final = "another instance of devhost takes over"
_LOG: Final = logging.getLogger(__name__)

Context = Any  # grpc.aio's context is generic over messages; the generated stubs leave it open


class Backend(Protocol):
    """What serves a resource."""

    @property
    def name(self) -> str:
        """The resource's name."""
        ...

    @property
    def listing(self) -> Listing:
        """The list that streams send."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether PreStartContainer is to be called before each container start."""
        ...

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Return what a container receives; raise `AllocationError`.

        ``pre_start`` says whether the kubelet will call PreStartContainer for it.
        """
        ...

    def allocated(self, ids: Sequence[str], result: str, seconds: float) -> None:
        """Take note that an Allocate has ended: how (one of `RESULTS`), and after how long."""
        ...

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which IDs a container should get; none to leave it to the kubelet."""
        ...

    async def pre_start(self, advertised_ids: Sequence[str]) -> str | None:
        """Prepare devices for a container that starts; raise `PreStartError`.

        Returns the pod, ``namespace/name``, where it is known.
        """
        ...


class Servicer(pb_grpc.DevicePluginServicer):
    """Serves one resource to the kubelet, on one socket."""

    def __init__(self, backend: Backend, silenced: Callable[[], bool] = lambda: False) -> None:
        """Serve no stream yet.

        Args:
            backend: What serves the resource.
            silenced: Returns whether another instance has taken over, perhaps while this process
                was stopped; asked before anything is sent.
        """
        self._backend, self._silenced = backend, silenced
        self._closing = False
        self.streams = Streams()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = -_DIGEST_S
        self.quiet = False
        """Another instance takes over: send no list but a stream's first, hand out nothing."""
        self.pre_start_required = backend.pre_start_required
        """As the kubelet was told; it asks once per registration."""

    @property
    def options_changed(self) -> bool:
        """Whether the kubelet was told other options than those in force."""
        return self.pre_start_required != self._backend.pre_start_required

    @property
    def silenced(self) -> bool:
        """Whether another instance has taken over; if so, the registration learns of it."""
        silenced = self._silenced()
        if silenced:
            self.streams.changed.set()
        return silenced

    def notify(self) -> None:
        """Have every stream send the list, if it changed since the last time."""
        self.streams.wake()

    async def until_idle(self) -> None:
        """Wait until no Allocate runs, nor has ended a moment ago.

        The kubelet looks its IDs up in the last list once more when it has the answer, and dies
        of those that another instance's list lacks.
        """
        await self._idle.wait()
        await asyncio.sleep(self._ended + _DIGEST_S - asyncio.get_running_loop().time())

    def close(self) -> None:
        """End every stream."""
        self._closing = True
        self.notify()

    async def GetDevicePluginOptions(  # noqa: N802 (the protocol's name)
        self, _request: pb.Empty, _context: Context
    ) -> pb.DevicePluginOptions:
        """Tell the truth about what is offered; what the RegisterRequest says is ignored."""
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start_required, get_preferred_allocation_available=True
        )

    async def ListAndWatch(self, _request: pb.Empty, context: Context) -> None:  # type: ignore[override] # noqa: N802
        """Send the whole list at once, and again after every change."""
        listing, wake = self._backend.listing, self.streams.open()
        stream = listing.open()
        clock = asyncio.get_running_loop().time
        version = -1
        try:
            while not self._closing:
                due = version != listing.version and not (self.quiet and version >= 0)
                if due and not self.silenced:
                    version, message = listing.version, listing.message(stream)
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await context.write(message.data)
                    listing.sent(stream, message, clock())
                    continue
                await wake.wait()
                wake.clear()
        except TimeoutError:
            fields = {"resource": self._backend.name}
            _LOG.warning("a client does not read its stream", extra={"fields": fields})
        finally:
            listing.close(stream)
            self.streams.close(wake)

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: Context
    ) -> pb.AllocateResponse:
        """Answer each container request separately."""
        name, loop = self._backend.name, asyncio.get_running_loop()
        ids = [each for one in request.container_requests for each in one.devices_ids]
        began, result, text = loop.time(), "cancelled", _GAVE_UP
        if self.quiet or self.silenced:
            self._backend.allocated(ids, "refused", 0.0)
            call_log.log_not_allocated(name, ids, "refused", _TAKEN_OVER)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{name}: {_TAKEN_OVER}")
        call, deadline = self._begin(began), began + ALLOCATE_TIMEOUT_S
        try:
            answers = [
                await self._allocate(list(one.devices_ids), deadline)
                for one in request.container_requests
            ]
            response = pb.AllocateResponse(
                container_responses=[wire.container_response(one) for one in answers]
            )
        except AllocationError as error:
            result, code, text = "refused", grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except TimeoutError:
            result, code = "timeout", grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"{name}: the host did not answer in {ALLOCATE_TIMEOUT_S:.0f} s"
        except Exception:  # noqa: BLE001 (logged; the kubelet gets an answer)
            _LOG.exception("allocation failed unexpectedly")
            result, code, text = "error", grpc.StatusCode.INTERNAL, f"{name}: internal error"
        else:
            if not self.silenced:
                result = "ok"
                # After the answer, which the kubelet waits for in its main loop.
                loop.call_soon(call_log.log_allocated, name, answers, loop.time() - began)
                return response
            result, code, text = "refused", grpc.StatusCode.UNAVAILABLE, f"{name}: {_TAKEN_OVER}"
        finally:
            ended = loop.time()
            self._end(call, ended)
            self._backend.allocated(ids, result, ended - began)
            if result != "ok":
                call_log.log_not_allocated(name, ids, result, text)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")

    async def _allocate(self, advertised_ids: list[str], deadline: float) -> Allocation:
        backend, pre_start = self._backend, self.pre_start_required
        for advertised_id in advertised_ids:
            if advertised_id not in backend.listing:
                raise AllocationError(f"{backend.name}: there is no device {advertised_id}")
        late = asyncio.get_running_loop().call_later(
            call_log.LATE_S, call_log.log_slow_allocation, backend.name, advertised_ids
        )
        try:
            async with asyncio.timeout_at(deadline):
                return await backend.allocate(advertised_ids, pre_start=pre_start)
        finally:
            late.cancel()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, _context: Context
    ) -> pb.PreferredAllocationResponse:
        """Choose for each container; what cannot be chosen is left to the kubelet.

        Never an error, which would fail the pod for good.
        """
        clock = asyncio.get_running_loop().time
        call = self._begin(clock())
        try:
            return pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(deviceIDs=await self._preferred(one))
                    for one in request.container_requests
                ]
            )
        finally:
            self._end(call, clock())

    async def _preferred(self, one: pb.ContainerPreferredAllocationRequest) -> Sequence[str]:
        available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
        if self.quiet or self.silenced:
            return ()
        try:
            async with asyncio.timeout(ALLOCATE_TIMEOUT_S):
                return await self._backend.preferred(available, must, one.allocation_size)
        except Exception:  # noqa: BLE001 (logged; the kubelet chooses)
            _LOG.exception("no preference", extra={"fields": {"resource": self._backend.name}})
            return ()

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Prepare the devices of a container that starts; an error makes the kubelet try again."""
        name, ids = self._backend.name, list(request.devices_ids)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            pod = await self._backend.pre_start(ids)
        except asyncio.CancelledError:
            call_log.log_not_prepared(name, ids, _GAVE_UP)
            raise
        except PreStartError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except Exception:  # noqa: BLE001 (logged; the kubelet gets an answer)
            _LOG.exception("preparing failed unexpectedly")
            code, text = grpc.StatusCode.INTERNAL, f"{name}: internal error"
        else:
            call_log.log_prepared(name, ids, pod, clock() - began)
            return pb.PreStartContainerResponse()
        call_log.log_not_prepared(name, ids, text)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")

    def _begin(self, now: float) -> Call:
        """Keep the IDs that a call works with in the list until it ends."""
        self._calls += 1
        self._idle.clear()
        return self._backend.listing.begin(now)

    def _end(self, call: Call, now: float) -> None:
        self._backend.listing.end(call)
        self._calls -= 1
        self._ended = now
        if not self._calls:
            self._idle.set()
