"""Instances of devhost with DRA drivers on a node on which time passes quickly.

Beside what `tests.support.claims` has of devhost: the pools of a driver, and the claims that it
prepares. Around it are fakes of the API server, of the scheduler and of the rendering of devices.
"""

import asyncio
import itertools
import json
import shutil
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

from devhost.allocation.cdi import CdiNode, OwnedEdits
from devhost.allocation.policy import Policy
from devhost.api.dra.v1 import dra_pb2 as pb
from devhost.api.podresources.v1 import podresources_pb2 as pods
from devhost.backends.backend import Backend, ResourceHandler, ResourceHooks
from devhost.backends.dra.api_client import ApiError
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.dra_backend import DraBackend
from devhost.backends.dra.publication import DraPublication, PoolOffer
from devhost.backends.share_ids import offered_id
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.records import RecordedNodes
from devhost.node.cdi_files import CdiFiles
from devhost.node.claim_files import ClaimFiles
from devhost.node.resource import other_holders
from tests.support import dra_kubelet
from tests.support.claims import Kubelet, Node, Process, Served

NODE: Final = "node-1"


class Published(NamedTuple):
    """A device in a slice that a claim may get."""

    driver: str
    pool: str
    device: str
    shares: int


@dataclass
class Claim:
    """A claim with a device, and the pod that waits for it, or has it.

    Attributes:
        answer: Of the first time that it was prepared, and what its CDI file had then, without
            numbers.
        numbers: The device nodes that its pod has; none before it has started in this boot.
        paths: Theirs on the host.
        name: The name of its device.
        advertised_id: That of its share, or its device, since its pod has started.
        is_unknown: Whether its record was lost when its pod had started.
    """

    uid: str
    published: Published
    share: str | None
    answer: tuple[bytes, object] | None = None
    numbers: frozenset[int] = frozenset()
    paths: frozenset[str] = frozenset()
    name: AdvertisedName | None = None
    advertised_id: str = ""
    is_unknown: bool = False


class DraKubelet(Kubelet):
    """Lists the pods that have claims, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.claims: dict[str, Claim] = {}

    def list_pods(self) -> pods.ListPodResourcesResponse:
        listed = super().list_pods()
        for claim in self.claims.values():
            if claim.answer is not None or claim.is_unknown:
                container = listed.pod_resources.add(name=f"pod-{claim.uid}").containers.add()
                dynamic = container.dynamic_resources.add(
                    claim_name=claim.uid, claim_namespace="default"
                )
                dynamic.claim_resources.add(
                    driver_name=claim.published.driver,
                    pool_name=claim.published.pool,
                    device_name=claim.published.device,
                    share_id=claim.share or "",
                )
        return listed


class Handler:
    """Answers for the devices of a resource, by what its file says (`ResourceHandler`)."""

    def __init__(self, process: "DraProcess", served: Served) -> None:
        self._process, self._served, self.name = process, served, served.resource.name

    @property
    def pre_start_required(self) -> bool:
        return bool(self._served.resource.pre_start)

    @property
    def drain_reason(self) -> str | None:
        return "removed" if self._served.draining else None

    @property
    def devices(self) -> Mapping[str, HostDevice]:
        return self._served.offered.devices

    @property
    def naming(self) -> str:
        return repr(self._served.scanned)

    async def render(self, ids: Sequence[OfferedId], *, watching: bool) -> Allocation:
        for offered in ids:
            device = self.devices.get(offered.device)
            if device is None or not device.healthy:
                raise AllocationError(f"{offered.id} is not offered")
        prefix = "".join(f"/{name.lower()}" for name in self._served.resource.allocate.env)
        specs = [
            DeviceSpec(node.path, f"{prefix}{node.path}", "rw", device=device.id)
            for device in (self.devices[offered.device] for offered in ids)
            for node in device.nodes
        ]
        return Allocation(tuple(offered.id for offered in ids), devices=tuple(specs))

    def claim_nodes(self, offered: OfferedId, shown: str) -> tuple[RecordedNodes, bool]:
        resource, device = self._served.resource, self.devices.get(offered.device)
        if device is None:
            raise AllocationError(f"there is no device {offered.device}")
        nodes = self._process.claims.claim_nodes(resource, device, shown)
        return nodes, resource.overlap == "allow"

    async def prepare(self, ids: Sequence[OfferedId], *, fresh: bool = False) -> None:
        node = self._process.node
        try:
            assert fresh
            await node.run_steps(self.name, ids)
        except AssertionError as error:  # which only fails the claim
            node.problems.append(str(error))
            raise

    async def cdi_edits(self, allocation: Allocation) -> OwnedEdits:
        numbers = self._process.node.host.numbers
        env = [f"{key}={text}" for key, text in self._served.resource.allocate.env.items()]
        by_device: dict[str, dict[str, list[object]]] = {}
        for spec in allocation.devices:
            nodes = by_device.setdefault(spec.device or "", {"deviceNodes": []})["deviceNodes"]
            nodes.append(device_node(spec, numbers[spec.host_path]))
        return OwnedEdits(by_device, {"env": env} if env else {})

    async def locate(self, nodes: Sequence[DeviceSpec]) -> Sequence[CdiNode]:
        return []


def device_node(spec: DeviceSpec, number: int) -> dict[str, object]:
    """Return a node as CDI has it."""
    where = {"hostPath": spec.host_path} if spec.host_path != spec.container_path else {}
    whole = {"path": spec.container_path, "type": "c", "major": 4, "minor": number}
    return {**whole, "permissions": "rw", "fileMode": 0o600, **where}


class DraProcess(Process):
    """One devhost with a driver."""

    node: "DraNode"

    def __init__(self, node: "DraNode", driver: str) -> None:
        self.driver = driver
        self._publishing: dict[str, asyncio.Task[None]] = {}
        super().__init__(node)
        files = ClaimFiles(self.file, self.holders, CdiFiles(node.cdi_dir))
        self.records, self.servicer = files, DraServicer(self.dra.claims)

    def make_backend(self) -> Backend:
        api, plugins = cast("Any", Api(self.node.kubelet.claims)), super().make_backend()
        self.dra = DraBackend(self.driver, NODE, self.node.state_dir, api, plugins)
        return self.dra

    async def start(self) -> None:
        await super().start()
        await self.dra.claims.begin(self.records)
        self._run(self.dra.upkeep.run())

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def hooks(self, served: Served) -> ResourceHooks:
        class _Scanner:
            policy, resource = Policy(dra=True), served.resource
            by_dra = served.resource.uses_dra()

        scanner = cast("Scanner", _Scanner)
        return ResourceHooks(
            cast("ResourceHandler", Handler(self, served)),
            lambda _state, _reason: None,
            held=lambda: self.holders.held_ids(served.resource.name),
            other_holders=lambda: other_holders(scanner, self.holders, self.file),
            holders_known=lambda: self.holders.complete,
            refresh=self.holders.refresh,
            on_locked=self.file.sync_soon,
            holders_changed=lambda: self.claims.holders_changed,
            on_left=lambda: None,
            save=self.file.flush,
            exclusive=False,
        )

    def _serve(self, spec: Resource) -> None:
        super()._serve(spec)
        publication = self.served[spec.name].publication
        if isinstance(publication, DraPublication):
            self._publishing[spec.name] = self._run(publication.run())

    async def _end(self, served: Served) -> None:
        if publishing := self._publishing.pop(served.resource.name, None):
            publishing.cancel()
            await asyncio.wait({publishing})
        await super()._end(served)

    def published(self) -> Iterator[Published]:
        """Yield what its slices have."""
        for served in self.served.values():
            if isinstance(offer := served.offered_ids, PoolOffer):
                pool = offer.pool
                for device in (pool.devices or ()) if pool.lock.held else ():
                    shares = device.get("capacity", {}).get("shares", {}).get("value", "1")
                    yield Published(self.driver, pool.name, str(device["name"]), int(shares))

    def paths(self, name: AdvertisedName | None = None) -> set[str]:
        """Return the paths of the nodes that it finds, of a device, or of all."""
        return {
            path
            for served in self.served.values()
            for device in served.offered.devices.values()
            if device.is_present and (name is None or name[:2] == (served.resource.name, device.id))
            for path in device.paths
        }

    async def prepare(self, claim: Claim) -> pb.NodePrepareResourceResponse:
        request = pb.NodePrepareResourcesRequest(claims=[_name(claim)])
        answer = await self.servicer.NodePrepareResources(request, None)
        return answer.claims[claim.uid]

    async def unprepare(self, claim: Claim) -> str:
        """Answer kubelet: why it failed."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_name(claim)])
        answer = await self.servicer.NodeUnprepareResources(request, None)
        return answer.claims[claim.uid].error


def _name(claim: Claim) -> pb.Claim:
    return pb.Claim(namespace="default", name=claim.uid, uid=claim.uid)


class Api:
    """The API server, as far as claims are read."""

    writes: Mapping[object, int] = {}

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self._claims = claims

    async def call(self, verb: str, path: str) -> Any:
        if (claim := self._claims.get(path.removeprefix(f"{dra_kubelet.CLAIMS}/"))) is None:
            raise ApiError(404, "not found")
        place = claim.published
        result = {"request": "r", "driver": place.driver, "pool": place.pool}
        shared = {"shareID": claim.share} if claim.share is not None else {}
        return dra_kubelet.claim(claim.uid, [{**result, "device": place.device, **shared}])


class DraNode(Node):
    """The host, and the instances of devhost on it."""

    kubelet: DraKubelet

    def __init__(self, state_dir: Path, numbers: Mapping[str, int]) -> None:
        super().__init__(state_dir, numbers)
        self.kubelet = DraKubelet(self.host)
        self.cdi_dir = state_dir.parent / "cdi"
        self._uids = itertools.count(1)
        self.problems: list[str] = []  # with steps
        self.steps_run: asyncio.Event | None = None  # set when steps run, which then do not end

    @property
    def instances(self) -> list[DraProcess]:
        return [process for process in self.processes if isinstance(process, DraProcess)]

    async def start_driver(self, driver: str) -> DraProcess:
        process = DraProcess(self, driver)
        self.processes.append(process)
        await process.start()
        return process

    async def boot(self, numbers: Mapping[str, int]) -> None:
        await super().boot(numbers)
        shutil.rmtree(self.cdi_dir, ignore_errors=True)
        for claim in self.kubelet.claims.values():
            claim.numbers = frozenset()

    # ── claims ──

    def free(self) -> list[Published]:
        """Return the devices in slices that a pod can get."""
        allocated = [claim.published for claim in self.kubelet.claims.values()]
        return [
            place
            for process in self.instances
            for place in process.published()
            if sum(taken[:3] == place[:3] for taken in allocated) < place.shares
        ]

    def allocate(self, place: Published) -> Claim:
        uid = f"u{next(self._uids)}"
        claim = Claim(uid, place, uid if place.shares > 1 else None)
        self.kubelet.claims[uid] = claim
        return claim

    async def prepare(self, process: DraProcess, claim: Claim) -> str:
        """Prepare a claim, and start its pod; return the error."""
        answer = await process.prepare(claim)
        if answer.error:
            return answer.error
        (record,) = (record for record in process.dra.claims.records if record.claim == claim.uid)
        file = self.cdi_dir / f"{process.driver}-claim_{claim.uid}.json"
        content = json.loads(file.read_text())
        edits = [device["containerEdits"] for device in content["devices"]]
        nodes = [node for edit in edits for node in edit.get("deviceNodes", ())]
        numbers = frozenset(node.pop("minor") for node in nodes)
        paths = frozenset(node.pop("hostPath", node["path"]) for node in nodes)
        first = answer.SerializeToString(deterministic=True), content
        assert claim.answer in (None, first), f"{claim}: {first}"
        claim.answer, claim.numbers, claim.paths = first, numbers, paths
        claim.is_unknown = False
        (device,) = record.devices
        claim.name = offered_id(device.id).name(device.resource)
        assert claim.advertised_id in ("", device.id), f"{claim}: {device}"
        claim.advertised_id = device.id
        return ""

    async def run_steps(self, resource: str, ids: Sequence[OfferedId]) -> None:
        """Run the steps of a claim, whose record is on the disk."""
        recorded = [json.loads(path.read_text()) for path in self.claim_files()]
        uids = [
            content["claim"]
            for content in recorded
            if content["state"] == "started"
            and [(device["resource"], device["id"]) for device in content["devices"]]
            == [(resource, offered.id) for offered in ids]
        ]
        assert len(uids) == 1, f"{ids} are recorded for {uids}"
        claim = self.kubelet.claims[uids[0]]
        assert claim.answer is None, f"{claim} has a pod"
        assert not claim.is_unknown, f"{claim} has a pod"
        if self.steps_run is not None:
            self.steps_run.set()
            await asyncio.Event().wait()

    def claim_file(self, claim: Claim) -> Path:
        return self.state_dir / "claims" / f"{claim.published.driver}_{claim.uid}.json"

    def claim_files(self) -> list[Path]:
        return [*(self.state_dir / "claims").glob("[!.]*.json")]

    @contextmanager
    def virtual_time(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        def call(_name: str, work: Any) -> "asyncio.Future[Any]":
            future = loop.create_future()
            future.set_result(work())
            return future

        with ExitStack() as patches:
            patches.enter_context(super().virtual_time(loop))
            patches.enter_context(patch("devhost.watch.threads.run_in_thread", call))
            # Who waits for an Allocate, or for the first scan, does so while no time passes.
            patches.enter_context(patch("devhost.custody.holders._ALLOCATION_POLL_S", 0.0))
            first_scan = "devhost.backends.dra.prepared_claims._FIRST_SCAN_S"
            patches.enter_context(patch(first_scan, 0.0))
            yield
