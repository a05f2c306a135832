"""The five calls of the device plugin API, answered by an `AllocationBackend`."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import AllocationError, PreStartError
from devhost.kubelet import call_log
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.encoding import container_response, list_response
from devhost.model.allocation import Allocation
from devhost.model.names import printable

# Kubelet sets no deadline, and waits in its main loop (k8s.io/kubernetes v1.37.1
# pkg/kubelet/cm/devicemanager/endpoint.go, allocate).
ALLOCATE_TIMEOUT_S: Final = 5.0
RESULTS: Final = ("ok", "refused", "timeout", "error", "cancelled")  # of an Allocate
WRITE_TIMEOUT_S: Final = 30.0  # a client that does not read would keep IDs in the list
_ID_SHOWN_MAX: Final = 100
_TEXT_MAX: Final = 4000  # of an error; gRPC's client takes 8 KiB of metadata
_CANCELLED: Final = "the kubelet cancelled the call"
_LOG: Final = logging.getLogger(__name__)

Context = Any  # grpc.aio's context is generic over messages; the generated stubs leave it open


class AllocationBackend(Protocol):
    """What answers kubelet for a resource."""

    @property
    def name(self) -> str:
        """The resource's name."""
        ...

    @property
    def device_list(self) -> DeviceList:
        """The list that streams send."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether kubelet has to call PreStartContainer before each container start."""
        ...

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Return what a container receives.

        Args:
            advertised_ids: The devices.
            pre_start: Whether kubelet will call PreStartContainer for them.

        Raises:
            AllocationError: The devices cannot be allocated.
        """
        ...

    def allocated(self, ids: Sequence[str], result: str, seconds: float) -> None:
        """Record the end of an Allocate, with its result (one of `RESULTS`) and duration."""
        ...

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which IDs a container should get; none to leave the choice to kubelet."""
        ...

    async def pre_start(self, advertised_ids: Sequence[str]) -> str | None:
        """Prepare devices for a container that starts; return its ``namespace/name``, if known.

        Raises:
            PreStartError: The container must not start.
        """
        ...


class Servicer(pb_grpc.DevicePluginServicer):
    """Serves one resource to kubelet, on one socket.

    Attributes:
        streams: The open ListAndWatch calls.
        pre_start_required: What kubelet got as an option; it asks once per registration.
    """

    def __init__(self, backend: AllocationBackend) -> None:
        self._backend = backend
        self._closing = False
        self.streams = Streams()
        self.pre_start_required = backend.pre_start_required

    @property
    def options_changed(self) -> bool:
        """Whether the options in force differ from those that kubelet got."""
        return self.pre_start_required != self._backend.pre_start_required

    def notify(self) -> None:
        """Make every stream send the list, if it changed since the last time."""
        self.streams.wake_all()

    def close(self) -> None:
        """End every stream."""
        self._closing = True
        self.notify()

    async def GetDevicePluginOptions(  # noqa: N802 (the protocol's name)
        self, _request: pb.Empty, _context: Context
    ) -> pb.DevicePluginOptions:
        """Return the options in force.

        Kubelet asks once per registration and ignores those of the RegisterRequest (v1.37.1
        pkg/kubelet/cm/devicemanager/manager.go, PluginConnected).
        """
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start_required, get_preferred_allocation_available=True
        )

    async def ListAndWatch(self, _request: pb.Empty, context: Context) -> None:  # type: ignore[override] # noqa: N802
        """Send the whole list, first immediately and then after every change."""
        device_list, wake = self._backend.device_list, self.streams.open()
        stream = device_list.open_stream()
        clock = asyncio.get_running_loop().time
        version = -1
        try:
            while not self._closing:
                pause = None
                if version != device_list.version:
                    pause = device_list.pause(stream, clock())
                if pause == 0:
                    version, entries = device_list.version, device_list.begin_send(stream)
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await context.write(list_response(entries))
                    device_list.end_send(stream, entries, clock())
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), pause)
                wake.clear()
        except TimeoutError:
            fields = {"resource": self._backend.name}
            _LOG.warning("a client does not read its stream", extra={"fields": fields})
        finally:
            device_list.close_stream(stream)
            self.streams.close(wake)

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: Context
    ) -> pb.AllocateResponse:
        """Answer each container request separately."""
        name, loop = self._backend.name, asyncio.get_running_loop()
        ids = [each for one in request.container_requests for each in one.devices_ids]
        began, result, text = loop.time(), "cancelled", _CANCELLED
        deadline = began + ALLOCATE_TIMEOUT_S
        call = self._backend.device_list.begin_call(began)
        try:
            answers = [
                await self._allocate(list(one.devices_ids), deadline)
                for one in request.container_requests
            ]
            response = pb.AllocateResponse(
                container_responses=[container_response(one) for one in answers]
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
            result = "ok"
            # After the answer, which the kubelet waits for in its main loop.
            loop.call_soon(call_log.log_allocated, name, answers, loop.time() - began)
            return response
        finally:
            ended = loop.time()
            self._backend.device_list.end_call(call, ended)
            self._backend.allocated(ids, result, ended - began)
            if result != "ok":
                call_log.log_not_allocated(name, ids, result, text)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")

    async def _allocate(self, advertised_ids: list[str], deadline: float) -> Allocation:
        backend, pre_start = self._backend, self.pre_start_required
        for advertised_id in advertised_ids:
            if advertised_id not in backend.device_list:
                shown = advertised_id[:_ID_SHOWN_MAX]
                raise AllocationError(f"{backend.name}: there is no device {shown}")
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
        """Choose for each container, or leave the choice to kubelet.

        Never an error, with which kubelet fails the pod for good (v1.37.1
        pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate).
        """
        clock, device_list = asyncio.get_running_loop().time, self._backend.device_list
        began = clock()
        deadline = began + ALLOCATE_TIMEOUT_S
        call = device_list.begin_call(began)
        try:
            return pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(
                        deviceIDs=await self._preferred(one, deadline)
                    )
                    for one in request.container_requests
                ]
            )
        finally:
            device_list.end_call(call, clock())

    async def _preferred(
        self, one: pb.ContainerPreferredAllocationRequest, deadline: float
    ) -> Sequence[str]:
        available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._backend.preferred(available, must, one.allocation_size)
        except Exception:  # noqa: BLE001 (logged; the kubelet chooses)
            _LOG.exception(
                "choosing preferred devices failed, leaving the choice to the kubelet",
                extra={"fields": {"resource": self._backend.name}},
            )
            return ()

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Prepare the devices of a container that starts; after an error kubelet tries again."""
        name, ids = self._backend.name, list(request.devices_ids)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            pod = await self._backend.pre_start(ids)
        except asyncio.CancelledError:
            call_log.log_not_prepared(name, ids, _CANCELLED)
            raise
        except PreStartError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_TEXT_MAX]
        except Exception:  # noqa: BLE001 (logged; the kubelet gets an answer)
            _LOG.exception("preparing devices failed unexpectedly")
            code, text = grpc.StatusCode.INTERNAL, f"{name}: internal error"
        else:
            call_log.log_prepared(name, ids, pod, clock() - began)
            return pb.PreStartContainerResponse()
        call_log.log_not_prepared(name, ids, text)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")


class Streams:
    """What wakes each open stream, and whether kubelet's is among them.

    It is not known who opened a stream: gRPC shows no peer of a Unix socket. Kubelet opens its
    stream when it is asked to register, so it is one of those that open between `expect` and the
    end of `accepted`; the end of any of these counts as the end of kubelet's. Streams that open
    later belong to somebody else, and nothing depends on them.

    Attributes:
        changed: Set when a stream opens or ends, or when the registration has to be checked.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Event] = set()
        self._kubelets: set[asyncio.Event] = set()
        self._expecting = False
        self._kubelets_ended = False
        self.changed = asyncio.Event()

    def open(self) -> asyncio.Event:
        """Record a new stream; return the event that wakes it."""
        wake = asyncio.Event()
        self._open.add(wake)
        if self._expecting:
            self._kubelets.add(wake)
        self.changed.set()
        return wake

    def close(self, wake: asyncio.Event) -> None:
        """Record the end of a stream."""
        self._open.discard(wake)
        self._kubelets_ended = self._kubelets_ended or wake in self._kubelets
        self.changed.set()

    def wake_all(self) -> None:
        """Wake all streams."""
        for wake in self._open:
            wake.set()

    @property
    def kubelets_is_open(self) -> bool:
        """Whether kubelet has opened its stream and not ended it."""
        return bool(self._kubelets) and not self._kubelets_ended

    def expect(self) -> None:
        """Count streams that open from now on as kubelet's, and no earlier ones."""
        self._kubelets.clear()
        self._expecting, self._kubelets_ended = True, False

    async def accepted(self) -> None:
        """Wait until kubelet has opened its stream."""
        await self._until(is_open=True)
        self._expecting = False

    async def ended(self) -> None:
        """Wait until kubelet has ended its stream."""
        await self._until(is_open=False)

    async def _until(self, *, is_open: bool) -> None:
        while self.kubelets_is_open is not is_open:
            self.changed.clear()
            await self.changed.wait()
