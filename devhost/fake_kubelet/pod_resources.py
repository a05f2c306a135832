"""The pod-resources API of the stand-in kubelet."""
# ruff: noqa: ARG002, N802 (names and arguments of calls of gRPC)

from collections.abc import Iterable, Iterator
from typing import Any

from devhost.api.podresources.v1 import podresources_pb2 as pods
from devhost.api.podresources.v1 import podresources_pb2_grpc as lister_grpc
from devhost.fake_kubelet import state


class PodResourcesLister(lister_grpc.PodResourcesListerServicer):
    """The pod-resources API: which pod holds which device, in an order that changes.

    As pkg/kubelet/apis/podresources/server_v1.go and pkg/kubelet/cm/container_manager.go, without
    Get, NUMA nodes and the limit of 100 requests a second.
    """

    def __init__(self, ledger: state.Ledger) -> None:
        self._ledger = ledger

    async def List(
        self, request: pods.ListPodResourcesRequest, context: Any
    ) -> pods.ListPodResourcesResponse:
        """Return what the containers of all active pods hold, devhost's own pod among them."""
        if not self._ledger.knows_pods:
            return pods.ListPodResourcesResponse()
        active = [self._pod(name) for name in state.shuffled(self._ledger.pods)]
        devhost_pod = pods.PodResources(name="devhost", namespace="devhost")
        return pods.ListPodResourcesResponse(pod_resources=[devhost_pod, *active])

    async def GetAllocatableResources(
        self, request: pods.AllocatableResourcesRequest, context: Any
    ) -> pods.AllocatableResourcesResponse:
        """Return all healthy devices, free or not."""
        response = pods.AllocatableResourcesResponse()
        for resource in self._ledger.tables:
            response.devices.extend(_entries(resource, self._ledger.healthy(resource)))
        return response

    def _pod(self, name: str) -> pods.PodResources:
        pod = pods.PodResources(name=name, namespace="default")
        for container, held in self._ledger.pods[name].items():
            devices = pod.containers.add(name=container).devices
            for resource in state.shuffled(held):
                devices.extend(_entries(resource, held[resource].ids))
        return pod


def _entries(resource: str, ids: Iterable[str]) -> Iterator[pods.ContainerDevices]:
    """Yield one entry for each device."""
    for device in state.shuffled(ids):
        yield pods.ContainerDevices(resource_name=resource, device_ids=[device])
