"""The pod-resources API of the stand-in kubelet: which pod holds which device.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/apis/podresources/server_v1.go and
pkg/kubelet/cm/container_manager.go, but for the limit of 100 requests a second.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc

from devhost.api.podresources.v1 import podresources_pb2 as pb2
from devhost.api.podresources.v1 import podresources_pb2_grpc as pb2_grpc
from devhost.standin.state import Ledger, shuffled

_NAMESPACE: Final = "default"

_Context = grpc.aio.ServicerContext[Any, Any]


class PodResourcesLister(pb2_grpc.PodResourcesListerServicer):
    """Answers from the ledger; the order of the pods changes from call to call."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @classmethod
    def server(cls, ledger: Ledger) -> grpc.aio.Server:
        """Return a server for the ledger that is not started yet."""
        server = grpc.aio.server()
        pb2_grpc.add_PodResourcesListerServicer_to_server(cls(ledger), server)
        return server

    async def List(  # noqa: N802
        self,
        request: pb2.ListPodResourcesRequest,  # noqa: ARG002
        context: _Context,  # noqa: ARG002
    ) -> pb2.ListPodResourcesResponse:
        """Return what the containers of all active pods hold."""
        pods = [self._pod(name) for name in shuffled(self._ledger.pods)]
        return pb2.ListPodResourcesResponse(pod_resources=pods)

    async def GetAllocatableResources(  # noqa: N802
        self,
        request: pb2.AllocatableResourcesRequest,  # noqa: ARG002
        context: _Context,  # noqa: ARG002
    ) -> pb2.AllocatableResourcesResponse:
        """Return all healthy devices, free or not."""
        devices = [
            entry
            for resource, table in self._ledger.tables.items()
            for device in shuffled(table.healthy)
            for entry in _entries(resource, device, table.numa_nodes.get(device))
        ]
        return pb2.AllocatableResourcesResponse(devices=devices)

    async def Get(  # noqa: N802
        self, request: pb2.GetPodResourcesRequest, context: _Context
    ) -> pb2.GetPodResourcesResponse:
        """Return what the containers of one active pod hold."""
        name, namespace = request.pod_name, request.pod_namespace
        if namespace != _NAMESPACE or name not in self._ledger.pods:
            text = f"pod {name} in namespace {namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, text)
        return pb2.GetPodResourcesResponse(pod_resources=self._pod(name))

    def _pod(self, name: str) -> pb2.PodResources:
        containers = [
            pb2.ContainerResources(
                name=container,
                devices=[
                    entry
                    for resource in shuffled(held)
                    for device, nodes in held[resource].devices.items()
                    for entry in _entries(resource, device, nodes or None)
                ],
            )
            for container, held in self._ledger.pods[name].listed.items()
        ]
        return pb2.PodResources(name=name, namespace=_NAMESPACE, containers=containers)


def _entries(
    resource: str, device: str, nodes: Iterable[int] | None
) -> Iterator[pb2.ContainerDevices]:
    """Yield one entry for each NUMA node of a device, or one if it has no topology at all."""
    if nodes is None:
        yield pb2.ContainerDevices(resource_name=resource, device_ids=[device])
        return
    for node in nodes:
        topology = pb2.TopologyInfo(nodes=[pb2.NUMANode(ID=node)])
        yield pb2.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)
