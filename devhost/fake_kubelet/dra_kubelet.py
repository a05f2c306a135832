"""Stand-ins for kubelet's side of Dynamic Resource Allocation, and for the scheduler.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra. Of the scheduler,
what gives a pod that requests a resource by its name the first devices that are free.
"""

import asyncio
import contextlib
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from devhost.api.dra.v1 import dra_pb2 as pb
from devhost.api.dra.v1 import dra_pb2_grpc as pb_grpc
from devhost.api.pluginregistration.v1 import pluginregistration_pb2 as reg
from devhost.api.pluginregistration.v1 import pluginregistration_pb2_grpc as reg_grpc
from devhost.backends.dra.slices import PATH
from devhost.backends.sockets import open_channel
from devhost.fake_kubelet import state
from devhost.fake_kubelet.api_objects import ApiObject, StandInApi
from devhost.fake_kubelet.state import AdmissionError, Answer

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
        seen: The sockets that have answered; without them, it asks them again, as after a restart.
    """

    def __init__(self, directory: Path) -> None:
        self.registry = directory / "plugins_registry"
        self.registry.mkdir(parents=True)
        self.info = reg.PluginInfo()
        self.seen: set[Path] = set()

    async def register(self, *, accept: bool = True, error: str = "") -> None:
        """Wait for a socket that is new, ask it, and answer."""
        while not (unseen := {*self.registry.glob("[!.]*.sock")} - self.seen):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)  # a stand-in needs no inotify
        path = unseen.pop()
        async with open_channel(path) as channel:
            stub = reg_grpc.RegistrationStub(channel)
            self.info = await stub.GetInfo(reg.InfoRequest(), timeout=_ANSWER_S)
            verdict = reg.RegistrationStatus(plugin_registered=accept, error=error)
            await stub.NotifyRegistrationStatus(verdict, timeout=_ANSWER_S)
        self.seen.add(path)

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


class PublishedDevice(NamedTuple):
    """A device of a slice, how many pods can have it, and how a claim says that it has."""

    id: str
    shares: int
    result: ApiObject


class DraCluster:
    """One node with DRA: its API server, scheduler and kubelet."""

    def __init__(self, directory: Path, node_name: str) -> None:
        self.api, self._kubelet = StandInApi(), DraKubelet(directory)
        self.api.put(f"/api/v1/nodes/{node_name}", node())
        self.pods: dict[str, tuple[str, str]] = {}  # name and UID of the claim of each

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends."""
        registering = asyncio.create_task(self._register_all(), name="plugin watcher")
        try:
            yield
        finally:
            registering.cancel()

    async def _register_all(self) -> None:
        while True:
            try:
                await self._kubelet.register()
            except grpc.aio.AioRpcError:  # a socket of one that has ended, or does not listen yet
                await asyncio.sleep(_LOOK_S)

    def restart(self) -> None:
        """Start kubelet again, which deletes the slices of its node."""
        for content in self.api.listed(PATH):
            self.api.remove(f"{PATH}/{content['metadata']['name']}")
        self._kubelet.seen.clear()

    def devices(self) -> Mapping[str, Sequence[PublishedDevice]]:
        """Return the devices in slices by resource."""
        by_resource = defaultdict[str, list[PublishedDevice]](list)
        for spec in (content["spec"] for content in self.api.listed(PATH)):
            for device in spec["devices"]:
                if "taints" in device:
                    continue  # no pod tolerates them
                result = {"request": "container-0-request-0", "driver": spec["driver"]}
                result |= {"pool": spec["pool"]["name"], "device": device["name"]}
                if is_shared := device.get("allowMultipleAllocations", False):
                    result["shareID"] = str(uuid.uuid4())
                value = device["capacity"]["shares"]["value"] if is_shared else "1"
                shares = int(value.replace("k", "000"))
                resource, device_id = (
                    device["attributes"][name]["string"] for name in ("resource", "id")
                )
                by_resource[resource].append(PublishedDevice(device_id, shares, result))
        return by_resource

    async def admit(self, pod: str, resource: str, count: int) -> Answer:
        """Give a pod devices; an `AdmissionError` says why that cannot be."""
        free = self._free(resource)
        if len(free) < count:
            text = f"{count} requested, {len(free)} free, so the pod stays Pending"
            raise AdmissionError(f"{resource}: {text}")
        name, uid = f"{pod}-extended-resources", str(uuid.uuid4())
        results = [device.result for device in free[:count]]
        self.api.put(f"{CLAIMS}/{name}", claim(uid, results))
        prepared = await self._kubelet.prepare(name, uid)
        if prepared.error:
            self.api.remove(f"{CLAIMS}/{name}")
            raise AdmissionError(prepared.error)
        self.pods[pod] = name, uid
        cdi_names = [name for device in prepared.devices for name in device.cdi_device_ids]
        answer = state.answer({})
        answer["deviceIds"] = {resource: [device.id for device in free[:count]]}
        answer["cdiDevices"] = [*dict.fromkeys(cdi_names)]
        return answer

    async def free(self, pod: str) -> None:
        """End a pod: its devices are free again."""
        name, uid = self.pods[pod]
        if error := await self._kubelet.unprepare(name, uid):
            raise AdmissionError(error)
        self.api.remove(f"{CLAIMS}/{name}")
        del self.pods[pod]

    def _free(self, resource: str) -> list[PublishedDevice]:
        """Return the devices of a resource that a pod can get."""
        claims = self.api.listed(CLAIMS)
        results = [
            result
            for content in claims
            for result in content["status"]["allocation"]["devices"]["results"]
        ]
        counts = Counter((result["pool"], result["device"]) for result in results)
        return [
            device
            for device in self.devices().get(resource, ())
            if counts[device.result["pool"], device.result["device"]] < device.shares
        ]
