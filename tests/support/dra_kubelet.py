"""A stand-in for kubelet's side of Dynamic Resource Allocation, and the objects that it needs.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from devhost.api.dra.v1 import dra_pb2 as pb
from devhost.api.dra.v1 import dra_pb2_grpc as pb_grpc
from devhost.api.pluginregistration.v1 import pluginregistration_pb2 as reg
from devhost.api.pluginregistration.v1 import pluginregistration_pb2_grpc as reg_grpc
from devhost.backends.sockets import open_channel
from tests.support.api_server import ApiObject

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_EXTENDED: Final = {"resource.kubernetes.io/extended-resource-claim": "true"}
_LOOK_S: Final = 0.02
_ANSWER_S: Final = 10.0
_PREPARE_S: Final = 45.0


def node(kubelet: str = "v1.37.1", runtime: str = "containerd://2.1.0") -> ApiObject:
    """Return a node, as far as a driver reads it."""
    status = {"nodeInfo": {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}}
    metadata = {"uid": "node-uid"}
    return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "status": status}


def claim(uid: str, results: Sequence[ApiObject], *, extended: bool = True) -> ApiObject:
    """Return a claim to which the scheduler has given devices, by default of an extended name."""
    annotations = _EXTENDED if extended else {}
    return {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"uid": uid, "namespace": "default", "annotations": annotations},
        "status": {"allocation": {"devices": {"results": [*results]}}},
    }


class DraKubelet:
    """Finds and calls a driver as kubelet does, without keeping anything.

    Attributes:
        registry: Where drivers have their sockets.
        info: What the driver said that was found last.
    """

    def __init__(self, directory: Path) -> None:
        self.registry = directory / "plugins_registry"
        self.registry.mkdir(parents=True)
        self.info = reg.PluginInfo()
        self._seen: set[Path] = set()

    async def register(self, *, accept: bool = True, error: str = "") -> None:
        """Wait for a socket that is new, ask it, and answer."""
        while not (unseen := {*self.registry.glob("[!.]*.sock")} - self._seen):
            await asyncio.sleep(_LOOK_S)  # a stand-in needs no inotify
        path = unseen.pop()
        async with open_channel(path) as channel:
            stub = reg_grpc.RegistrationStub(channel)
            self.info = await stub.GetInfo(reg.InfoRequest(), timeout=_ANSWER_S)
            verdict = reg.RegistrationStatus(plugin_registered=accept, error=error)
            await stub.NotifyRegistrationStatus(verdict, timeout=_ANSWER_S)
        self._seen.add(path)

    async def prepare(self, name: str, uid: str) -> pb.NodePrepareResourceResponse:
        """Call the driver to prepare a claim; return the answer."""
        request = pb.NodePrepareResourcesRequest(claims=[_claim_name(name, uid)])
        async with open_channel(self.info.endpoint) as channel:
            stub = pb_grpc.DRAPluginStub(channel)
            answer = await stub.NodePrepareResources(request, timeout=_PREPARE_S)
        return answer.claims[uid]

    async def unprepare(self, name: str, uid: str) -> str:
        """Call the driver to unprepare a claim; return its error, or nothing."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim_name(name, uid)])
        async with open_channel(self.info.endpoint) as channel:
            stub = pb_grpc.DRAPluginStub(channel)
            answer = await stub.NodeUnprepareResources(request, timeout=_PREPARE_S)
        return answer.claims[uid].error if uid in answer.claims else f"no answer for {uid}"


def _claim_name(name: str, uid: str) -> pb.Claim:
    return pb.Claim(namespace="default", name=name, uid=uid)
