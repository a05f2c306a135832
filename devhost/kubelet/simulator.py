"""The stand-in kubelet: registration, device lists and pod admission in this process.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager, with the topology policy ``none``.
The tests run the same scenarios against the real device manager.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.kubelet import simulator_state as state
from devhost.kubelet.simulator_state import AdmissionError, Answer, RefusedError, in_go

__all__ = ["AdmissionError", "Answer", "SimulatedKubelet"]

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_Context = grpc.aio.ServicerContext[pb2.RegisterRequest, pb2.Empty]
_Work = Coroutine[Any, Any, None]

_DIAL_S: Final = 10.0
_PRE_START_S: Final = 30.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    # Else a registration shares connection and back-off with an earlier one to its socket.
    ("grpc.use_local_subchannel_pool", 1),
)


class SimulatedKubelet(pb2_grpc.RegistrationServicer):
    """A kubelet's device manager on a directory of its own.

    Attributes:
        plugin_dir: Where ``kubelet.sock`` and the plugins' sockets are.
        on_change: Called after each list, registration and disconnection.
        registrations: The resource name of every Register call, in order, refused ones included.
        panics: What would have crashed a real kubelet.
    """

    def __init__(self, plugin_dir: Path) -> None:
        self.plugin_dir = plugin_dir
        self.on_change: Callable[[], None] | None = None
        self.registrations: list[str] = []
        self.panics: list[str] = []
        self._socket = plugin_dir.absolute() / "kubelet.sock"
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoints = state.Endpoints()
        self._ledger = state.Ledger()
        self._changed = asyncio.Event()
        self._admission = asyncio.Lock()

    async def start(self) -> None:
        """Clear the directory of sockets, bind ``kubelet.sock`` and serve registrations."""
        if self._server is not None:
            raise RuntimeError("the kubelet is already running")
        _clear_of_sockets(self._socket.parent)
        server = grpc.aio.server()
        pb2_grpc.add_RegistrationServicer_to_server(self, server)
        try:
            # grpc unlinks the path that it bound when it stops. The public name must outlive
            # it (SIGKILL), and appear by a creation, not a rename, as watchers know it.
            bound = self._socket.with_name(".kubelet.new")
            server.add_insecure_port(f"unix:{quote(str(bound))}")
            await server.start()
            self._socket.hardlink_to(bound)
            bound.unlink()
        except BaseException:
            await server.stop(None)
            raise
        self._server = server

    async def stop(self) -> None:
        """End all connections and remove ``kubelet.sock``; without effect if not running."""
        if self._server is not None:
            await self.kill()
            self._socket.unlink(missing_ok=True)

    async def kill(self) -> None:
        """End as by SIGKILL: all connections are gone, ``kubelet.sock`` stays as a dead file."""
        server, self._server = self._server, None
        if server is None:
            return
        # First the server: while it lives, a cancelled handler leaves its caller without answer.
        await server.stop(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        endpoints, self._endpoints = self._endpoints, state.Endpoints()
        self._ledger.reload()
        for endpoint in endpoints.connected.values():
            await endpoint.channel.close()
        self._notify()

    async def restart(self, down: float = 0.0) -> None:
        """Kill the kubelet and start it after ``down`` seconds; pods keep what they hold."""
        await self.kill()
        await asyncio.sleep(down)
        await self.start()

    async def capacity(self) -> dict[str, tuple[int, int]]:
        """Return resource to (capacity, allocatable)."""
        return {resource: table.counts() for resource, table in self._ledger.tables.items()}

    def devices(self, resource: str) -> dict[str, str]:
        """Return ID to health as last listed."""
        return dict(self._ledger.table(resource).listed)

    async def wait(
        self,
        resource: str,
        capacity: int | None,
        allocatable: int | None,
        timeout: float = 10.0,  # noqa: ASYNC109 - the error tells what was seen last
    ) -> None:
        """Wait until the node shows these numbers (``None``: nothing), else ``AssertionError``."""
        wanted = None if capacity is None else (capacity, allocatable)
        try:
            async with asyncio.timeout(timeout):
                while (await self.capacity()).get(resource) != wanted:
                    await self._changed.wait()
        except TimeoutError:
            seen = (await self.capacity()).get(resource)
            raise AssertionError(f"{resource}: wanted {wanted}, last seen {seen}") from None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self.on_change is not None:
            self.on_change()

    async def Register(self, request: pb2.RegisterRequest, context: _Context) -> pb2.Empty:  # noqa: N802
        """Answer a plugin's registration; ``kubelet.sock`` leads here."""
        self.registrations.append(request.resource_name)
        try:
            state.check(request)
            endpoint = _endpoint(request, self._socket.parent)
            await self._spawn(self._connect(endpoint, context.time_remaining), "connect", endpoint)
        except RefusedError as refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        return pb2.Empty()

    def _spawn(self, work: _Work, verb: str, endpoint: state.Endpoint) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"kubelet: {verb} {endpoint.resource}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, endpoint: state.Endpoint, left: Callable[[], float | None]) -> None:
        self._endpoints.watched.append(endpoint)
        try:
            await _greet(endpoint, left)
            self._endpoints.connect(endpoint)
        except BaseException:
            self._endpoints.unwatch(endpoint)
            await endpoint.channel.close()
            raise
        self._spawn(self._watch(endpoint), "watch", endpoint)
        self._notify()

    async def _watch(self, endpoint: state.Endpoint) -> None:
        try:
            async for message in endpoint.stub.ListAndWatch(pb2.Empty()):
                self._ledger.tables[endpoint.resource] = state.DeviceTable.of(message.devices)
                self._notify()
        except grpc.aio.AioRpcError as error:
            _LOG.debug("ListAndWatch of %s ended: %s", endpoint.resource, in_go(error))
        if self._endpoints.unwatch(endpoint):
            if self._endpoints.disconnect(endpoint):
                self._ledger.orphan(endpoint.resource)
            await endpoint.channel.close()
            self._notify()

    async def admit(
        self, pod: str, containers: Mapping[str, Mapping[str, int]]
    ) -> dict[str, Answer]:
        """Admit a pod and start its containers (name to resource to the number of devices).

        Raises:
            AdmissionError: The kubelet or a plugin refused; the pod holds nothing then.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self._ledger.pods.pop, pod, None)
            try:
                async with self._admission:  # one pod at a time, as in the kubelet's main loop
                    for container, requests in containers.items():
                        await self._allocate(pod, container, requests)
            except AdmissionError as error:
                text = f"Allocate failed due to {error}, which is unexpected"
                raise AdmissionError(text) from error
            answers = {name: await self.start_container(pod, name) for name in containers}
            undo.pop_all()
        return answers

    async def _allocate(self, pod: str, container: str, requests: Mapping[str, int]) -> None:
        held = self._ledger.container(pod, container)
        for resource in state.shuffled(requests):
            count = requests[resource]
            available = self._ledger.available(pod, container, resource, count)
            if not available:
                continue
            preferred = await self._preferred(resource, available, count)
            ids = state.choose(available, preferred, count)
            entry = pb2.ContainerAllocateRequest(devices_ids=state.shuffled(ids))
            request = pb2.AllocateRequest(container_requests=[entry])
            response = await _ask(self._endpoints.stub(resource).Allocate(request))
            if not response.container_responses:
                raise AdmissionError("no containers return in allocation response")
            self._check_listed(resource, ids)
            held[resource] = state.Allocation(ids, response.container_responses[0])

    async def _preferred(self, resource: str, available: state.Ids, count: int) -> state.Ids:
        if not self._endpoints.options(resource).get_preferred_allocation_available:
            return frozenset()
        entry = pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=state.shuffled(available), allocation_size=count
        )
        request = pb2.PreferredAllocationRequest(container_requests=[entry])
        call = self._endpoints.stub(resource).GetPreferredAllocation(request)
        response = await _ask(call, "device plugin GetPreferredAllocation rpc failed with err: ")
        return frozenset(*(first.deviceIDs for first in response.container_responses[:1]))

    def _check_listed(self, resource: str, ids: state.Ids) -> None:
        gone = ids - self.devices(resource).keys()
        if gone and self._server is not None:
            self.panics.append(f"{resource}: {', '.join(sorted(gone))} left the list in Allocate")
            raise RuntimeError(f"kubelet panic: {self.panics[-1]}")

    async def start_container(self, pod: str, container: str) -> Answer:
        """Start a container of an admitted pod, again or for the first time.

        Raises:
            AdmissionError: A plugin refused or could not be asked; the pod keeps its devices.
        """
        for resource, held in tuple(self._ledger.pods[pod][container].items()):
            if self._endpoints.options(resource).pre_start_required:
                request = pb2.PreStartContainerRequest(devices_ids=state.shuffled(held.ids))
                stub = self._endpoints.stub(resource)
                call = stub.PreStartContainer(request, timeout=_PRE_START_S)
                await _ask(call, "device plugin PreStartContainer rpc failed with err: ")
        return self._ledger.answer(pod, container)

    async def free(self, pod: str) -> None:
        """Let a pod end: its devices are free again."""
        del self._ledger.pods[pod]

    async def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return container, resource and ID to ``Healthy`` or ``Unhealthy``."""
        return self._ledger.health(pod)


def _endpoint(request: pb2.RegisterRequest, directory: Path) -> state.Endpoint:
    # As Go joins paths: an absolute endpoint is below the directory too, ".." leaves it.
    socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
    channel = grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=_CHANNEL_OPTIONS)
    plugin = pb2_grpc.DevicePluginStub(channel)
    return state.Endpoint(request.resource_name, socket, channel, plugin)


async def _greet(endpoint: state.Endpoint, left: Callable[[], float | None]) -> None:
    """Reach a plugin and ask for its options, in what remains of its own call's time."""
    try:
        async with asyncio.timeout(_DIAL_S):
            await endpoint.channel.channel_ready()
        call = endpoint.stub.GetDevicePluginOptions(pb2.Empty(), timeout=left())
        endpoint.options = await call
    except TimeoutError:
        raise RefusedError("failed to dial device plugin: context deadline exceeded") from None
    except grpc.aio.AioRpcError as error:
        raise RefusedError(f"failed to get device plugin options: {in_go(error)}") from error


async def _ask(call: Awaitable[_T], prefix: str = "") -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise AdmissionError(prefix + in_go(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The call was cancelled, not the task: its channel was closed.
        reason = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise AdmissionError(prefix + reason) from None


def _clear_of_sockets(directory: Path) -> None:
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_socket():
            entry.unlink(missing_ok=True)  # its owner may be quicker
