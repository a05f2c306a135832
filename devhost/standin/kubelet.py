"""The stand-in kubelet: registration, device lists and pod admission, in this process.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager, with the topology policy ``none``.
The tests run the same scenarios against the real device manager.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.standin import answer as answers
from devhost.standin import state
from devhost.standin.answer import Answer
from devhost.standin.podresources import PodResourcesLister
from devhost.standin.sockets import ask, clear_of_sockets, endpoint_of, greet, serve
from devhost.standin.state import AdmissionError, RefusedError, in_go

__all__ = ["AdmissionError", "Answer", "SimulatedKubelet"]

_LOG: Final = logging.getLogger(__name__)
_Context = grpc.aio.ServicerContext[pb2.RegisterRequest, pb2.Empty]
_Work = Coroutine[Any, Any, None]

_PRE_START_S: Final = 30.0


class SimulatedKubelet(pb2_grpc.RegistrationServicer):
    """A kubelet's device manager on a directory of its own.

    Attributes:
        plugin_dir: Where ``kubelet.sock`` and the plugins' sockets are.
        pod_resources: The socket of the pod-resources API, which lists what the pods hold.
        on_change: Called after each list, registration and disconnection.
        registrations: The resource name of every Register call, in order, refused ones included.
        panics: What would have crashed a real kubelet.
    """

    def __init__(self, plugin_dir: Path, pod_resources: Path | None = None) -> None:
        self.plugin_dir = plugin_dir
        self.pod_resources = pod_resources
        self.on_change: Callable[[], None] | None = None
        self.registrations: list[str] = []
        self.panics: list[str] = []
        self._socket = plugin_dir.absolute() / "kubelet.sock"
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoints = state.PluginEndpoints()
        self._ledger = state.Ledger()
        self._changed = asyncio.Event()
        self._admission = asyncio.Lock()

    async def start(self) -> None:
        """Clear the directory of sockets, bind ``kubelet.sock`` and serve registrations.

        The socket of the pod-resources API, if there is one, replaces any file at its path.
        """
        if self._servers:
            raise RuntimeError("the kubelet is already running")
        clear_of_sockets(self._socket.parent)
        try:
            registrations = grpc.aio.server()
            pb2_grpc.add_RegistrationServicer_to_server(self, registrations)
            await serve(registrations, self._socket)
            self._servers.append(registrations)
            if self.pod_resources is not None:
                self.pod_resources.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                self.pod_resources.unlink(missing_ok=True)
                lister = PodResourcesLister.server(self._ledger)
                await serve(lister, self.pod_resources.absolute())
                self._servers.append(lister)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all connections and remove the sockets; without effect if not running."""
        if self._servers:
            await self.kill()
            self._socket.unlink(missing_ok=True)
            if self.pod_resources is not None:
                self.pod_resources.unlink(missing_ok=True)

    async def kill(self) -> None:
        """End as by SIGKILL: all connections are gone, the sockets stay as dead files."""
        servers, self._servers = self._servers, []
        if not servers:
            return
        # The servers first: while one runs, the caller of a cancelled handler gets no answer.
        for server in servers:
            await server.stop(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        endpoints, self._endpoints = self._endpoints, state.PluginEndpoints()
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
        return self.resources()

    def resources(self) -> dict[str, tuple[int, int]]:
        """Return resource to (capacity, allocatable), now."""
        return {resource: table.counts() for resource, table in self._ledger.tables.items()}

    def held(self) -> dict[str, dict[str, list[str]]]:
        """Return pod to resource to the devices that its containers hold."""
        found: dict[str, dict[str, list[str]]] = {}
        for name, pod in self._ledger.pods.items():
            of_pod = found[name] = {}
            for container in pod.containers.values():
                for resource, held in container.items():
                    of_pod[resource] = sorted({*of_pod.get(resource, ()), *held.ids})
        return found

    def devices(self, resource: str) -> dict[str, str]:
        """Return ID to health as last listed."""
        return dict(self._ledger.table(resource).listed)

    async def wait(
        self,
        resource: str,
        capacity: int | None,
        allocatable: int | None,
        timeout: float = 10.0,  # noqa: ASYNC109 - the error says what was seen last
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
            endpoint = endpoint_of(request, self._socket.parent)
            await self._spawn(self._connect(endpoint, context.time_remaining), "connect", endpoint)
        except RefusedError as refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        return pb2.Empty()

    def _spawn(self, work: _Work, verb: str, endpoint: state.PluginEndpoint) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"kubelet: {verb} {endpoint.resource}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(
        self, endpoint: state.PluginEndpoint, left: Callable[[], float | None]
    ) -> None:
        self._endpoints.watched.append(endpoint)
        try:
            await greet(endpoint, left)
            self._endpoints.connect(endpoint)
        except BaseException:
            self._endpoints.unwatch(endpoint)
            await endpoint.channel.close()
            raise
        self._spawn(self._watch(endpoint), "watch", endpoint)
        self._notify()

    async def _watch(self, endpoint: state.PluginEndpoint) -> None:
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
        self,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        *,
        init: Collection[str] = (),
        sidecars: Collection[str] = (),
        start: bool = True,
        devices: Mapping[str, Collection[str]] | None = None,
    ) -> dict[str, Answer]:
        """Admit a pod and start its containers.

        Args:
            pod: Its name; its namespace is ``default``.
            containers: Name to resource to the number of devices.
            init: The ordinary init containers: they end before the others start. They and the
                sidecars come first, in the order of `containers`.
            sidecars: The init containers that go on running.
            start: Start the containers too; else nothing is returned.
            devices: Resource to the IDs that may be chosen of it, where not all may.

        Raises:
            AdmissionError: The kubelet or a plugin refused; the pod holds nothing then.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self._ledger.pods.pop, pod, None)
            try:
                async with self._admission:  # one pod at a time, as in the kubelet's main loop
                    reusable: dict[str, state.Ids] = {}
                    active = self._ledger.activate(pod, containers, init, sidecars)
                    order = [name for name in active.containers if name in containers]
                    for name in order:
                        await self._allocate(pod, name, containers[name], reusable, devices or {})
            except AdmissionError as error:
                text = f"Allocate failed due to {error}, which is unexpected"
                raise AdmissionError(text) from error
            started = {name: await self.start_container(pod, name) for name in order if start}
            undo.pop_all()
        return started

    async def _allocate(
        self,
        pod: str,
        name: str,
        requests: Mapping[str, int],
        reusable: dict[str, state.Ids],
        among: Mapping[str, Collection[str]],
    ) -> None:
        active = self._ledger.pods[pod]
        held = active.containers[name]
        for resource in state.shuffled(requests):
            count = requests[resource]
            if not self._ledger.needs(pod, name, resource, count):
                continue
            reused = reusable.get(resource, state.Ids())
            ids = await self._choose(resource, count, reused, among.get(resource))
            entry = pb2.ContainerAllocateRequest(devices_ids=state.shuffled(ids))
            request = pb2.AllocateRequest(container_requests=[entry])
            response = await ask(self._endpoints.stub(resource).Allocate(request))
            if not response.container_responses:
                raise AdmissionError("no containers return in allocation response")
            self._check_listed(resource, ids)
            first = response.container_responses[0]
            held[resource] = self._ledger.allocation(resource, ids, first)
        for resource, its in held.items():
            before = reusable.get(resource, state.Ids())
            reusable[resource] = before | its.ids if name in active.init else before - its.ids

    async def _choose(
        self, resource: str, count: int, reusable: state.Ids, among: Collection[str] | None
    ) -> state.Ids:
        """Choose devices: first those of the pod's ordinary init containers, in whatever health."""
        reused = state.choose(reusable, state.Ids(), count)
        needed = count - len(reused)
        if not needed:
            return reused
        free = self._ledger.free(resource, needed, among)
        preferred = await self._preferred(resource, free | reused, reused, count)
        return reused | state.choose(free, preferred, needed)

    async def _preferred(
        self, resource: str, available: state.Ids, fixed: state.Ids, count: int
    ) -> state.Ids:
        if not self._endpoints.options(resource).get_preferred_allocation_available:
            return frozenset()
        entry = pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=state.shuffled(available),
            must_include_deviceIDs=state.shuffled(fixed),
            allocation_size=count,
        )
        request = pb2.PreferredAllocationRequest(container_requests=[entry])
        call = self._endpoints.stub(resource).GetPreferredAllocation(request)
        response = await ask(call, "device plugin GetPreferredAllocation rpc failed with err: ")
        return frozenset(*(first.deviceIDs for first in response.container_responses[:1]))

    def _check_listed(self, resource: str, ids: state.Ids) -> None:
        gone = ids - self.devices(resource).keys()
        if gone and self._servers:
            self.panics.append(f"{resource}: {', '.join(sorted(gone))} left the list in Allocate")
            raise RuntimeError(f"kubelet panic: {self.panics[-1]}")

    async def start_container(self, pod: str, container: str) -> Answer:
        """Start a container of an admitted pod, again or for the first time.

        Raises:
            AdmissionError: A plugin refused or could not be asked; the pod keeps its devices.
        """
        for resource, held in tuple(self._ledger.pods[pod].containers[container].items()):
            if self._endpoints.options(resource).pre_start_required:
                request = pb2.PreStartContainerRequest(devices_ids=state.shuffled(held.ids))
                stub = self._endpoints.stub(resource)
                call = stub.PreStartContainer(request, timeout=_PRE_START_S)
                await ask(call, "device plugin PreStartContainer rpc failed with err: ")
        return answers.merged(self._ledger.pods[pod].containers[container])

    async def free(self, pod: str) -> None:
        """Let a pod end: its devices are free again."""
        del self._ledger.pods[pod]

    async def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return container, resource and ID to ``Healthy`` or ``Unhealthy``."""
        return self._ledger.health(pod)
