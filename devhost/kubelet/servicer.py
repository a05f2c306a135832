"""The five calls of the device plugin API, answered for one resource; messages and log lines."""

import asyncio
import contextlib
import logging
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import AllocationError, PreStartError
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.names import printable
from devhost.model.plugin_handler import PluginHandler

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

    def __init__(self, answers: PluginHandler, device_list: DeviceList) -> None:
        self._answers, self._device_list = answers, device_list
        self._closing = False
        self._streams: set[asyncio.Event] = set()  # what wakes each open one
        self._first_ended = False  # of those that have been open since none was
        self.changed = asyncio.Event()
        self.pre_start_required = answers.pre_start_required  # kubelet asks once per registration

    @property
    def options_changed(self) -> bool:
        """Whether the options in force differ from those that kubelet got."""
        return self.pre_start_required != self._answers.pre_start_required

    @property
    def is_watched(self) -> bool:
        """Whether kubelet's stream is open: the first one, as gRPC does not show who opened it."""
        return bool(self._streams) and not self._first_ended

    @property
    def must_end(self) -> bool:
        """Whether it cannot be registered again: it was closed, has a stream, or other options."""
        return self._closing or bool(self._streams) or self.options_changed

    async def until_watched(self, *, watched: bool) -> None:
        """Wait until kubelet's stream is open, or not."""
        while self.is_watched is not watched:
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
        device_list, wake = self._device_list, asyncio.Event()
        stream, is_first = device_list.open_stream(wake.set), not self._streams
        self._first_ended = self._first_ended and not is_first
        self._streams.add(wake)
        self.changed.set()
        clock = asyncio.get_running_loop().time
        entries: Mapping[str, AdvertisedDevice] | None = None
        try:
            while not self._closing:
                pause = None
                if entries is not device_list.entries:
                    pause = device_list.pause(stream, clock())
                if pause == 0:
                    entries = device_list.begin_send(stream)
                    await context.write(list_response(entries))
                    device_list.end_send(stream, entries, clock())
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await wake.wait()
                wake.clear()
        finally:
            device_list.close_stream(stream)
            self._streams.discard(wake)
            self._first_ended = self._first_ended or is_first
            self.changed.set()

    @contextlib.contextmanager
    def _unanswered(self) -> Iterator[float]:
        """Note that kubelet waits, and until when: no ID leaves that it may have picked."""
        device_list, clock = self._device_list, asyncio.get_running_loop().time
        began = clock()
        device_list.unanswered.append(began)
        try:
            yield began + ALLOCATE_TIMEOUT_S
        finally:
            device_list.unanswered.remove(began)
            device_list.last_answer_at = clock()

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: Context
    ) -> pb.AllocateResponse:
        """Answer each container request separately."""
        name, loop = self._answers.name, asyncio.get_running_loop()
        ids = [each for one in request.container_requests for each in one.devices_ids]
        began, result, text = loop.time(), "cancelled", _CANCELLED
        try:
            with self._unanswered() as deadline:
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
            loop.call_soon(log_allocated, name, answers, loop.time() - began)
            return response
        finally:
            self._answers.observe_allocate(result, loop.time() - began)
            if result != "ok":
                log_failed("allocation", name, ids, text, result=result)
        await context.abort(code, printable(text))
        raise AssertionError("abort raises")

    async def _allocate(self, advertised_ids: list[str], deadline: float) -> Allocation:
        answers, pre_start = self._answers, self.pre_start_required
        for advertised_id in advertised_ids:
            if advertised_id not in self._device_list.entries:
                shown = advertised_id[:_ID_SHOWN_MAX]
                raise AllocationError(f"{answers.name}: there is no device {shown}")
        async with asyncio.timeout_at(deadline):
            return await answers.allocate(advertised_ids, pre_start=pre_start)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, _context: Context
    ) -> pb.PreferredAllocationResponse:
        """Choose for each container, or leave the choice to kubelet.

        Never an error, with which kubelet fails the pod for good (v1.37.1
        pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate).
        """
        response = pb.PreferredAllocationResponse()
        with self._unanswered() as deadline:
            for one in request.container_requests:
                chosen = await self._preferred(one, deadline)
                response.container_responses.add(deviceIDs=chosen)
        return response

    async def _preferred(
        self, one: pb.ContainerPreferredAllocationRequest, deadline: float
    ) -> Sequence[str]:
        available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._answers.prefer(available, must, one.allocation_size)
        except Exception:  # noqa: BLE001 (logged; the kubelet chooses)
            _LOG.exception(
                "choosing preferred devices failed, leaving the choice to the kubelet",
                extra={"fields": {"resource": self._answers.name}},
            )
            return ()

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Prepare the devices of a container that starts; after an error kubelet tries again."""
        name, ids = self._answers.name, list(request.devices_ids)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._answers.prepare(ids)
        except asyncio.CancelledError:
            log_failed(_PREPARING, name, ids, _CANCELLED)
            raise
        except PreStartError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_TEXT_MAX]
        except Exception:  # noqa: BLE001 (logged; the kubelet gets an answer)
            _LOG.exception("preparing devices failed unexpectedly")
            code, text = grpc.StatusCode.INTERNAL, f"{name}: internal error"
        else:
            log_prepared(name, ids, clock() - began)
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
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        mounts=[
            pb.Mount(
                container_path=it.container_path, host_path=it.host_path, read_only=it.read_only
            )
            for it in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=it.container_path, host_path=it.host_path, permissions=it.permissions
            )
            for it in allocation.devices
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )


# ── log lines ──


def log_allocated(resource: str, answers: Sequence[Allocation], seconds: float) -> None:
    """Log what an Allocate handed out: the names of variables, not their values.

    One line for a call, also where a client asks for several containers, which kubelet does not.
    """
    specs = [spec for one in answers for spec in (*one.devices, *one.mounts, *one.in_cdi_spec)]
    devices = [spec for spec in specs if isinstance(spec, DeviceSpec)]
    numbers = ChainMap(*(dict(one.numbers) for one in answers))
    received = {
        "env": [name for one in answers for name in one.envs],
        "annotations": [key for one in answers for key in one.annotations],
        "devices": [f"{it.host_path}:{it.container_path}:{it.permissions}" for it in devices],
        "numbers": [numbers.get(it.host_path, "") for it in devices],
        "mounts": [
            f"{it.host_path}:{it.container_path}:{'ro' if it.read_only else 'rw'}"
            for it in specs
            if isinstance(it, MountSpec)
        ],
        "cdi": [name for one in answers for name in one.cdi_devices],
    }
    ids = [device_id for one in answers for device_id in one.device_ids]
    fields: dict[str, object] = {"resource": resource, "ids": _some(ids)}
    fields |= {key: _some(texts) for key, texts in received.items() if texts}
    if len(answers) != 1:
        fields["containers"] = len(answers)
    _LOG.info("allocated", extra={"fields": {**fields, "seconds": round(seconds, 4)}})


def log_failed(what: str, resource: str, ids: Sequence[str], reason: str, **more: str) -> None:
    """Log an Allocate, or a container that must not start."""
    fields = {"resource": resource, "ids": _some(ids), **more}
    fields["reason"] = _short(reason, _REASON_MAX)
    _LOG.warning("%s failed", what, extra={"fields": fields})


def log_prepared(resource: str, ids: Sequence[str], seconds: float) -> None:
    """Log a container that may start."""
    fields = {"resource": resource, "ids": _some(ids), "seconds": round(seconds, 4)}
    _LOG.info("devices prepared for a container", extra={"fields": fields})


def _some(texts: Sequence[str]) -> list[str]:
    shown = [_short(text, _LENGTH_MAX) for text in texts[:_SHOWN_MAX]]
    if len(texts) > _SHOWN_MAX:
        shown.append(f"and {len(texts) - _SHOWN_MAX} more")
    return shown


def _short(text: str, length: int) -> str:
    return printable(text[:length])[:length]
