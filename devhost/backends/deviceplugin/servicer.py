"""The five calls of the device plugin API, answered for one resource; messages and log lines."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.backend import ResourceHandler
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError, PreStartError
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.names import printable
from devhost.watch.threads import wait_at_most

# Kubelet sets no deadline, and waits in its main loop (k8s.io/kubernetes v1.37.1
# pkg/kubelet/cm/devicemanager/endpoint.go, allocate).
ALLOCATE_TIMEOUT_S: Final = 5.0
_ID_SHOWN_MAX: Final = 100
_TEXT_MAX: Final = 4000  # of an error; gRPC's client takes 8 KiB of metadata
_CANCELLED: Final = "the kubelet cancelled the call"
_SHOWN_MAX: Final = 16  # IDs, paths and so on in a log line; a container may get thousands
_LENGTH_MAX: Final = 200  # of each
_REASON_MAX: Final = 1000
_PREPARING: Final = "preparing devices for a container"
_LOG: Final = logging.getLogger(__name__)

Context = Any  # grpc.aio's context is generic over messages; the generated stubs leave it open


class Servicer(pb_grpc.DevicePluginServicer):
    """Serves one resource to kubelet, on one socket.

    `changed` is set when a stream opens or ends, or when the registration has to be checked.
    """

    def __init__(self, handler: ResourceHandler, device_list: DeviceList) -> None:
        self._handler, self._device_list = handler, device_list
        self._closing = False
        self._streams: set[asyncio.Event] = set()  # those that wake them
        self._first_ended = False  # of those that have been open since none was
        self.changed = asyncio.Event()
        self.pre_start_required = handler.pre_start_required  # kubelet asks once per registration

    @property
    def options_changed(self) -> bool:
        """Whether the options in force differ from those that kubelet got."""
        return self.pre_start_required != self._handler.pre_start_required

    @property
    def has_stream(self) -> bool:
        """Whether kubelet's stream is open: the first one, as gRPC does not show who opened it."""
        return bool(self._streams) and not self._first_ended

    @property
    def is_stale(self) -> bool:
        """Whether it cannot be registered again: it was closed, has a stream, or other options."""
        return self._closing or bool(self._streams) or self.options_changed

    async def wait_for_stream(self, *, is_open: bool) -> None:
        """Wait until kubelet's stream is open, or not."""
        while self.has_stream is not is_open:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        """End every stream."""
        self._closing = True
        for wake in self._streams:
            wake.set()

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
        device_list, streams, wake = self._device_list, self._device_list.streams, asyncio.Event()
        stream, is_first = streams.open(wake.set), not self._streams
        self._first_ended = self._first_ended and not is_first
        self._streams.add(wake)
        self.changed.set()
        clock = asyncio.get_running_loop().time
        entries: Mapping[str, AdvertisedDevice] | None = None
        try:
            while not self._closing:
                delay = None
                if entries is not device_list.entries:
                    delay = streams.send_delay(stream, clock())
                if delay == 0:
                    entries = device_list.entries
                    streams.list_sent(stream, entries)
                    await context.write(list_response(entries))
                    streams.list_received(stream, entries, clock())
                    continue
                await wait_at_most(delay, wake.wait)
                wake.clear()
        finally:
            streams.close(stream)
            self._streams.discard(wake)
            self._first_ended = self._first_ended or is_first
            self.changed.set()

    @contextlib.contextmanager
    def _inflight(self) -> Iterator[float]:
        """Yield a call's deadline; until its end no ID leaves that kubelet may have picked."""
        streams, clock = self._device_list.streams, asyncio.get_running_loop().time
        began = clock()
        streams.inflight_since.append(began)
        try:
            yield began + ALLOCATE_TIMEOUT_S
        finally:
            streams.inflight_since.remove(began)
            streams.last_answer_at = clock()

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: Context
    ) -> pb.AllocateResponse:
        """Answer each container request separately."""
        name, loop = self._handler.name, asyncio.get_running_loop()
        containers = [list(container.devices_ids) for container in request.container_requests]
        began, result, text = loop.time(), "cancelled", _CANCELLED
        try:
            with self._inflight() as deadline:
                allocations = [await self._allocate(ids, deadline) for ids in containers]
            response = pb.AllocateResponse(
                container_responses=[container_response(allocation) for allocation in allocations]
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
            loop.call_soon(log_allocated, name, allocations, loop.time() - began)
            return response
        finally:
            self._handler.observe_allocate(result, loop.time() - began)
            if result != "ok":
                log_failed("allocation", name, [*chain(*containers)], text, result=result)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")

    async def _allocate(self, advertised_ids: list[str], deadline: float) -> Allocation:
        handler, pre_start = self._handler, self.pre_start_required
        for advertised_id in advertised_ids:
            if advertised_id not in self._device_list:
                shown = advertised_id[:_ID_SHOWN_MAX]
                raise AllocationError(f"{handler.name}: there is no device {shown}")
        async with asyncio.timeout_at(deadline):
            ids = [*map(offered_id, advertised_ids)]
            return await handler.allocate(ids, pre_start=pre_start)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, _context: Context
    ) -> pb.PreferredAllocationResponse:
        """Choose for each container, or leave the choice to kubelet.

        Never an error, with which kubelet fails the pod for good (v1.37.1
        pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate).
        """
        response = pb.PreferredAllocationResponse()
        with self._inflight() as deadline:
            for container in request.container_requests:
                chosen = await self._prefer(container, deadline)
                response.container_responses.add(deviceIDs=chosen)
        return response

    async def _prefer(
        self, container: pb.ContainerPreferredAllocationRequest, deadline: float
    ) -> Sequence[str]:
        available = [*map(offered_id, container.available_deviceIDs)]
        must = [*map(offered_id, container.must_include_deviceIDs)]
        try:
            async with asyncio.timeout_at(deadline):
                chosen = await self._handler.prefer(available, must, container.allocation_size)
                return [offered.id for offered in chosen]
        except Exception:  # noqa: BLE001 (logged; the kubelet chooses)
            _LOG.exception(
                "choosing preferred devices failed, leaving the choice to the kubelet",
                extra={"fields": {"resource": self._handler.name}},
            )
            return ()

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Prepare the devices of a container that starts; after an error kubelet tries again."""
        name, ids = self._handler.name, list(request.devices_ids)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._handler.prepare([*map(offered_id, ids)])
        except asyncio.CancelledError:
            log_failed(_PREPARING, name, ids, _CANCELLED)
            raise
        except PreStartError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_TEXT_MAX]
        except Exception:  # noqa: BLE001 (logged; the kubelet gets an answer)
            _LOG.exception("preparing devices failed unexpectedly")
            code, text = grpc.StatusCode.INTERNAL, f"{name}: internal error"
        else:
            fields = {
                "resource": name,
                "ids": _shorten_all(ids),
                "seconds": round(clock() - began, 4),
            }
            _LOG.info("devices prepared for a container", extra={"fields": fields})
            return pb.PreStartContainerResponse()
        log_failed(_PREPARING, name, ids, text)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")


# ── messages ──


def list_response(entries: Mapping[str, AdvertisedDevice]) -> pb.ListAndWatchResponse:
    """Return a list of devices, as kubelet takes it."""
    response = pb.ListAndWatchResponse()
    for advertised_id, entry in entries.items():
        device = response.devices.add(
            ID=advertised_id, health="Healthy" if entry.healthy else "Unhealthy"
        )
        for node in entry.numa_nodes:
            device.topology.nodes.add(ID=node)
    return response


def container_response(allocation: Allocation) -> pb.ContainerAllocateResponse:
    """Return what a container receives, as kubelet takes it."""
    response = pb.ContainerAllocateResponse(
        envs=allocation.envs, annotations=allocation.annotations
    )
    for mount in allocation.mounts:
        response.mounts.add(
            container_path=mount.container_path,
            host_path=mount.host_path,
            read_only=mount.read_only,
        )
    for node in allocation.devices:
        response.devices.add(
            container_path=node.container_path,
            host_path=node.host_path,
            permissions=node.permissions,
        )
    for name in allocation.cdi_devices:
        response.cdi_devices.add(name=name)
    return response


# ── log lines ──


def log_allocated(resource: str, allocations: Sequence[Allocation], seconds: float) -> None:
    """Log what an Allocate handed out: the names of variables, not their values.

    One line for a call, also where a client asks for several containers, which kubelet does not.
    """
    received: dict[str, list[str]] = defaultdict(list)
    for allocation in allocations:
        received["ids"] += allocation.device_ids
        received["env"] += allocation.envs
        received["annotations"] += allocation.annotations
        for spec in (*allocation.specs, *allocation.in_cdi_spec):
            paths = f"{spec.host_path}:{spec.container_path}"
            if isinstance(spec, DeviceSpec):
                received["devices"].append(f"{paths}:{spec.permissions}")
                received["numbers"].append(allocation.numbers.get(spec.host_path, ""))
            else:
                received["mounts"].append(f"{paths}:{'ro' if spec.read_only else 'rw'}")
        received["cdi"] += allocation.cdi_devices
    fields: dict[str, object] = {"resource": resource, "ids": []}
    fields |= {key: _shorten_all(texts) for key, texts in received.items() if texts}
    if len(allocations) != 1:
        fields["containers"] = len(allocations)
    _LOG.info("allocated", extra={"fields": {**fields, "seconds": round(seconds, 4)}})


def log_failed(call: str, resource: str, ids: Sequence[str], reason: str, **fields: str) -> None:
    """Log an Allocate that was refused, or a container that must not start."""
    texts = {"ids": _shorten_all(ids), **fields, "reason": _shorten(reason, _REASON_MAX)}
    _LOG.warning("%s failed", call, extra={"fields": {"resource": resource, **texts}})


def _shorten_all(texts: Sequence[str]) -> list[str]:
    shown = [_shorten(text, _LENGTH_MAX) for text in texts[:_SHOWN_MAX]]
    if len(texts) > _SHOWN_MAX:
        shown.append(f"and {len(texts) - _SHOWN_MAX} more")
    return shown


def _shorten(text: str, length: int) -> str:
    return printable(text[:length])[:length]
