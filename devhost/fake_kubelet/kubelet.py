"""The stand-in kubelet: registration, device lists and pod admission, in this process.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager, with the topology policy ``none``, for
pods without init containers. The tests run the same scenarios against the real device manager.
"""
# ruff: noqa: N802 (names of calls of gRPC)

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import grpc

from devhost.api.podresources.v1 import podresources_pb2_grpc as lister_grpc
from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.fake_kubelet import state
from devhost.fake_kubelet.connections import Plugins, RefusedError, remove_sockets, serve
from devhost.fake_kubelet.pod_resources import PodResourcesLister
from devhost.fake_kubelet.state import AdmissionError, Answer

__all__ = ["AdmissionError", "Answer", "SimulatedKubelet"]

_Context = grpc.aio.ServicerContext[pb2.RegisterRequest, pb2.Empty]


class SimulatedKubelet(pb2_grpc.RegistrationServicer):
    """A kubelet's device manager on a directory of its own.

    Attributes:
        plugin_dir: Where ``kubelet.sock`` and the plugins' sockets are.
        pod_resources: The socket of the pod-resources API, which lists what the pods hold; by
            default in the plugin directory.
        ledger: What the plugins have listed, and what pods hold.
        registrations: The resource name of every Register call, in order, refused ones included.
        panics: What would have crashed a real kubelet.
    """

    def __init__(self, plugin_dir: Path, pod_resources: Path | None = None) -> None:
        self.plugin_dir = plugin_dir
        self.pod_resources = pod_resources or plugin_dir / "pod-resources.sock"
        self.registrations: list[str] = []
        self.panics: list[str] = []
        self._socket = plugin_dir.absolute() / "kubelet.sock"
        self._servers: list[grpc.aio.Server] = []
        self.ledger = state.Ledger()
        self._plugins = Plugins(self._socket.parent, self.ledger)
        self._admission = asyncio.Lock()

    async def start(self, *, knows_pods: bool = True) -> None:
        """Clear the directory of sockets, bind ``kubelet.sock`` and serve registrations.

        The socket of the pod-resources API replaces any file at its path. While its API server is
        away, kubelet does not know its pods, and lists none there.
        """
        if self._servers:
            raise RuntimeError("the kubelet is already running")
        self.ledger.knows_pods = knows_pods
        remove_sockets(self._socket.parent)
        try:
            registrations = grpc.aio.server()
            pb2_grpc.add_RegistrationServicer_to_server(self, registrations)
            await serve(registrations, self._socket)
            self._servers.append(registrations)
            self.pod_resources.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.pod_resources.unlink(missing_ok=True)
            lister = grpc.aio.server()
            lister_grpc.add_PodResourcesListerServicer_to_server(
                PodResourcesLister(self.ledger),  # type: ignore[abstract]  # without Get
                lister,
            )
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
            self.pod_resources.unlink(missing_ok=True)

    async def kill(self) -> None:
        """End as by SIGKILL: all connections are gone, the sockets stay as dead files."""
        servers, self._servers = self._servers, []
        if not servers:
            return
        # The servers first: while one runs, the caller of a cancelled handler gets no answer.
        for server in servers:
            await server.stop(None)
        await self._plugins.close()

    async def restart(self) -> None:
        """Kill the kubelet and start it again; pods keep what they hold."""
        await self.kill()
        await self.start()

    async def capacity(self) -> dict[str, tuple[int, int]]:
        """Return resource to (capacity, allocatable)."""
        ledger = self.ledger
        return {
            name: (len(table), len(ledger.healthy(name))) for name, table in ledger.tables.items()
        }

    def devices(self, resource: str) -> dict[str, str]:
        """Return ID to health as last listed."""
        return dict(self.ledger.tables.get(resource, {}))

    def options(self, resource: str) -> pb2.DevicePluginOptions:
        """Return the options of a resource, also after its plugin has gone."""
        return self._plugins.options(resource)

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
                    await self.ledger.changed.wait()
        except TimeoutError:
            seen = (await self.capacity()).get(resource)
            raise AssertionError(f"{resource}: wanted {wanted}, last seen {seen}") from None

    async def Register(self, request: pb2.RegisterRequest, context: _Context) -> pb2.Empty:
        """Answer a plugin's registration; ``kubelet.sock`` leads here."""
        self.registrations.append(request.resource_name)
        try:
            await self._plugins.register(request, context.time_remaining)
        except RefusedError as refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        return pb2.Empty()

    async def admit(
        self, pod: str, containers: Mapping[str, Mapping[str, int]], *, start: bool = True
    ) -> dict[str, Answer]:
        """Admit a pod with these containers: name to resource to the number of devices.

        Its namespace is ``default``. Without ``start`` no container starts, and nothing is
        returned. An `AdmissionError` is a refusal; the pod holds nothing then.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self.ledger.pods.pop, pod, None)
            try:
                async with self._admission:  # one pod at a time, as in the kubelet's main loop
                    # A known pod keeps what it holds.
                    active = self.ledger.pods.setdefault(pod, {})
                    active |= {name: {} for name in containers if name not in active}
                    for name, requests in containers.items():
                        await self._allocate(pod, name, requests)
            except AdmissionError as error:
                text = f"Allocate failed due to {error}, which is unexpected"
                raise AdmissionError(text) from error
            started = {name: await self.start_container(pod, name) for name in containers if start}
            undo.pop_all()
        return started

    async def _allocate(self, pod: str, name: str, requests: Mapping[str, int]) -> None:
        for resource in state.shuffled(requests):
            count = requests[resource]
            if not self.ledger.needs(pod, name, resource, count):
                continue
            free = self.ledger.free(resource, count)
            preferred = await self._plugins.prefer(resource, free, count)
            ids = state.choose(free, preferred, count)
            response = await self._plugins.allocate(resource, ids)
            gone = ids - self.devices(resource).keys()
            if gone and self._servers:
                text = f"{resource}: {', '.join(sorted(gone))} left the list in Allocate"
                self.panics.append(text)
                raise RuntimeError(f"kubelet panic: {text}")
            self.ledger.pods[pod][name][resource] = state.HeldDevices(ids, response)

    async def start_container(self, pod: str, container: str) -> Answer:
        """Start a container of an admitted pod, again or for the first time.

        After an `AdmissionError` the pod keeps its devices.
        """
        holds = self.ledger.pods[pod][container]
        for resource, held in tuple(holds.items()):
            await self._plugins.pre_start(resource, held.ids)
        return state.answer(holds)

    async def free(self, pod: str) -> None:
        """End a pod: its devices are free again."""
        del self.ledger.pods[pod]

    async def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return container, resource and ID to health; what is not listed counts as healthy."""
        return {
            container: {
                resource: {
                    device: self.devices(resource).get(device, state.HEALTHY) for device in held.ids
                }
                for resource, held in holds.items()
            }
            for container, holds in self.ledger.pods[pod].items()
        }
