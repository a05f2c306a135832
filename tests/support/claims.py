"""A node on which time passes quickly: who may have which device node, from the scan to the pod.

Of devhost it has what decides that, `Process`: the records with their file, the pods that kubelet
lists, the lists of the resources. Around it are fakes of the host, of kubelet and of its pods.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from unittest.mock import patch

from devhost.api.podresources.v1 import podresources_pb2 as pods
from devhost.backends.backend import Backend, OfferedIds, Publication, ResourceHooks
from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S, DeviceList, Stream
from devhost.backends.podresources import Claimed, PodResources, _by_resource
from devhost.backends.resource_lock import ResourceLocks
from devhost.backends.share_ids import offered_id
from devhost.custody import state_dir
from devhost.custody.custody import Custody
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.custody.record_table import RecordTable
from devhost.errors import AllocationError, KubeletError
from devhost.model import resource_state
from devhost.model.advertised import AdvertisedName
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Snapshot, Verdict
from devhost.node.resource_devices import with_all_leaving, without_unlisted
from tests.support import devices

TICK_S: Final = 0.5
FORGET_MISSING_S: Final = 30.0
Finds = Mapping[str, tuple[str, ...]]  # the paths of each device that a resource's sources match


def resource(name: str, *, replicas: int = 1, overlap: bool = False) -> Resource:
    """Return a resource; what it finds is said elsewhere."""
    options = {"replicas": replicas, "overlap": "allow" if overlap else "deny"}
    return Resource.model_validate({"name": name, "sources": ["/dev/x*"], **options})


def advertised_name(resource_name: str, advertised_id: str) -> AdvertisedName:
    """Return the name under which kubelet has an ID."""
    return offered_id(advertised_id).name(resource_name)


@dataclass
class Host:
    """The device nodes below /dev: a number for each path, which a boot changes."""

    numbers: dict[str, int]
    present: set[str] = field(default_factory=set)
    boot: str = "1"

    def device(self, device_id: str, paths: tuple[str, ...]) -> HostDevice:
        nodes = (devices.node(path, (4, self.numbers[path])) for path in paths)
        return devices.device(device_id, *nodes)


@dataclass
class Pod:
    """A living pod with one device."""

    name: AdvertisedName
    advertised_id: str
    device: HostDevice
    boot: str
    hidden_until: float = 0.0  # kubelet has not admitted it again

    def numbers(self, host: Host) -> set[int]:
        """Return the numbers of the nodes that it has: after a boot, of those at its paths."""
        if self.boot == host.boot:
            return {number for _, number in self.device.numbers.values()}
        return {host.numbers[path] for path in self.device.paths}


@dataclass(frozen=True)
class PodList:
    """An answer of pod-resources."""

    kubelet: int
    at: float
    names: frozenset[AdvertisedName]


class Kubelet:
    """Has received lists, and knows its pods; answers as pod-resources too."""

    def __init__(self, host: Host) -> None:
        self.host, self.now = host, 1000.0
        self.number, self.available, self.allocating = 1, True, False
        self.lists: dict[str, dict[str, bool]] = {}
        self.unhealthy_since: dict[tuple[str, str], float] = {}
        self.allocated_at: dict[AdvertisedName, float] = {}
        self.refused_at: dict[AdvertisedName, float] = {}
        self.pods: dict[int, Pod] = {}
        self.pod_lists: list[PodList] = []
        self.api_server_at = 0.0  # since when it reaches the API server
        self._checkpoint: set[tuple[str, str]] = set()
        self._admitted = 0

    def list_pods(self) -> pods.ListPodResourcesResponse:
        """Return the pods that it shows, devhost's own among them."""
        if not self.available:
            raise KubeletError("away")
        shown = {key: pod for key, pod in self.pods.items() if pod.hidden_until <= self.now}
        names = frozenset(pod.name for pod in shown.values())
        self.pod_lists.append(PodList(self.number, self.now, names))
        listed = pods.ListPodResourcesResponse()
        if self.api_server_at <= self.now:
            listed.pod_resources.add(namespace="devhost", name="devhost")
        for key, pod in shown.items():
            container = listed.pod_resources.add(name=f"pod-{key}").containers.add()
            container.devices.add(resource_name=pod.name.resource, device_ids=[pod.advertised_id])
        return listed

    def covers_checkpoint(
        self, held: resource_state.PodHoldings, may_hold: Callable[[str, str], bool]
    ) -> bool:
        """Return whether these are all devices in the checkpoint that pods may hold."""
        return all(
            offered_id(key) in held.by_id.get(name, ()) or not may_hold(name, key)
            for name, key in self._checkpoint
        )

    def _write_checkpoint(self) -> None:
        self._checkpoint = {(pod.name.resource, pod.advertised_id) for pod in self.pods.values()}

    def receive(self, name: str, healthy: dict[str, bool]) -> None:
        for advertised_id, is_healthy in healthy.items():
            if is_healthy:
                self.unhealthy_since.pop((name, advertised_id), None)
            else:
                self.unhealthy_since.setdefault((name, advertised_id), self.now)
        self.lists[name] = healthy
        self._write_checkpoint()

    def restart(self, away_s: float, hidden_s: float) -> None:
        """Be another one, which has no lists.

        Its API server is away for so long, and it does not show all its pods for so much longer.
        """
        self.number += 1
        self.api_server_at = self.now + away_s
        self.lists.clear()
        self.unhealthy_since.clear()
        for pod in self.pods.values():
            pod.hidden_until = self.api_server_at + hidden_s

    def free_ids(self, name: str) -> list[str]:
        """Return the IDs of a resource that it may allocate."""
        taken = {pod.advertised_id for pod in self.pods.values() if pod.name.resource == name}
        entries = self.lists.get(name, {}).items()
        return [key for key, healthy in entries if healthy - (key in taken)]

    def is_settled(self, name: AdvertisedName, now: float) -> bool:
        """Return whether it could allocate no ID of a device for ten seconds."""
        return all(
            not healthy and now - self.unhealthy_since[name.resource, key] >= LEAVE_AFTER_S
            for key, healthy in self.lists.get(name.resource, {}).items()
            if advertised_name(name.resource, key) == name
        )

    async def admit(self, process: "Process", name: str, advertised_id: str) -> bool:
        """Start a pod with a device, if Allocate gives it that."""
        self.allocating, owner = True, advertised_name(name, advertised_id)
        try:
            device = await process.allocate(name, advertised_id)
        except AllocationError:
            self.refused_at[owner] = self.now
            return False
        finally:
            self.allocating = False
        self._admitted += 1
        self.pods[self._admitted] = Pod(owner, advertised_id, device, self.host.boot)
        self.allocated_at[owner] = self.now
        self._write_checkpoint()
        return True


class PodLists:
    """Kubelet's lists of pods, as one process reads them."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.claimed_ids: Callable[[], Claimed] = dict
        self.may_hold: Callable[[str, str], bool] = lambda _resource, _advertised_id: True

    @property
    def allocating(self) -> bool:
        return self._kubelet.allocating

    async def list_pods(self) -> resource_state.PodList:
        answer = self._kubelet.list_pods().SerializeToString()
        return resource_state.PodList(
            self._kubelet.number, *_by_resource(self.claimed_ids(), answer)
        )

    async def covers_checkpoint(self, held: resource_state.PodHoldings) -> bool:
        return self._kubelet.covers_checkpoint(held, self.may_hold)


@dataclass
class Served:
    """A resource that a process serves."""

    resource: Resource
    publication: Publication | None = None
    offered_ids: OfferedIds = field(default_factory=DeviceList)
    finds: Finds = field(default_factory=dict)
    scanned: Finds = field(default_factory=dict)  # by which the devices were found
    latest: Snapshot = field(default_factory=Snapshot)
    offered: Snapshot = field(default_factory=Snapshot)
    draining: bool = False
    due: bool = True  # to be scanned again
    successor: Resource | None = None  # by the other backend
    stream: Stream | None = None

    def request_scan(self) -> None:
        self.due = True


class FakeBackend:
    """Knows which resources the instances of devhost serve, and have served."""

    restarts, leave_after = 0, LEAVE_AFTER_S

    def __init__(self, process: "Process") -> None:
        self._process, self.pods, self.locks = process, process.pods, process.locks

    def open(self, resource: Resource, _hooks: object) -> "FakePublication":
        return FakePublication(self._process, resource.name)

    def publisher(self, _resource: object) -> str:
        return ""


class FakePublication:
    """The list of a resource that a device plugin serves."""

    def __init__(self, process: "Process", name: str) -> None:
        self.offered_ids = DeviceList(LEAVE_AFTER_S)
        self.offered_ids.ids_held_by_pods = lambda: process.holders.held_ids(name)


class Process:
    """One devhost, as far as it decides who may have a node."""

    def __init__(self, node: "Node") -> None:
        self.node, self.kubelet, self.pods = node, node.kubelet, PodLists(node.kubelet)
        self.locks = ResourceLocks(node.state_dir.parent)
        self.holders = Holders(cast("PodResources", self.pods), "node-1")
        self.backend = self.make_backend()
        self.file = RecordFiles(node.state_dir, self.backend.locks.lock_of)
        self.claims = Custody(self.holders, self.backend, self.file)
        self.served: dict[str, Served] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def make_backend(self) -> Backend:
        return cast("Backend", FakeBackend(self))

    @property
    def handouts(self) -> RecordTable:
        return self.file.table

    async def start(self) -> None:
        """Read what was recorded, and begin."""
        await self.claims.reserved()
        create = asyncio.get_running_loop().create_task
        self._tasks = [create(self.claims.run()), create(self.holders.run())]

    async def kill(self) -> None:
        """End it, with what it has not written."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await written()

    async def stop(self) -> None:
        await self.file.close()
        await self.kill()

    # ── resources ──

    def configure(self, *resources: Resource) -> None:
        """Serve these resources, and drain others."""
        for spec in resources:
            if (served := self.served.get(spec.name)) is None:
                self._serve(spec)
            elif spec.backend != served.resource.backend:
                served.successor, served.draining, served.due = spec, True, True
            else:
                served.resource, served.draining, served.due = spec, False, True
                served.successor = None
        names = {spec.name for spec in resources}
        for name, served in self.served.items():
            if name not in names:
                served.draining, served.successor = True, None
        self.claims.reconfigure(resources)

    def _serve(self, spec: Resource) -> None:
        served = Served(spec)
        served.publication = self.backend.open(spec, self.hooks(served))
        served.offered_ids = served.publication.offered_ids
        self.served[spec.name] = served
        self._take_lock(served)
        self.claims.add(spec.name, served.offered_ids, served.request_scan)

    def hooks(self, served: "Served") -> ResourceHooks:
        """Return what a backend uses of a resource: nothing."""
        return cast("ResourceHooks", served)

    def _take_lock(self, served: "Served") -> bool:
        """Return whether this process is the one that serves a resource by a device plugin."""
        lock = self.locks.get(served.resource.name)
        has_lock = isinstance(served.offered_ids, DeviceList) and (lock.held or lock.acquire(""))
        if has_lock:
            lock.set_served(True)
        return has_lock

    def find(self, name: str, finds: Finds) -> None:
        """Set the devices that a resource's sources match; the next scan finds them."""
        self.served[name].finds = finds
        self.served[name].due = True

    def scan(self, name: str) -> None:
        """Publish what is found of a resource now."""
        served, host, now = self.served[name], self.node.host, self.kubelet.now
        served.due, served.scanned = False, served.finds
        finds = served.finds.items()
        matched = {key: host.device(key, paths) for key, paths in finds if host.present >= {*paths}}
        taken = {node.path for device in matched.values() for node in device.nodes}
        for former in tuple(served.latest.devices.values()):
            if former.id in matched:
                continue
            here = {node.path for node in former.nodes if node.path in host.present - taken}
            paths = {node.path for node in former.nodes}
            is_elsewhere = bool(taken & paths) or former.id not in served.finds
            if paths <= host.present and is_elsewhere:
                matched[former.id] = devices.missing(former, now, replaced=True)
            elif former.absence is None:
                matched[former.id] = devices.missing(former, now, remaining=here)
            elif former.absence.since > now - FORGET_MISSING_S or former.is_leaving:
                matched[former.id] = former
        latest = served.latest.devices
        same = {key: latest[key] for key, device in matched.items() if latest.get(key) == device}
        self._publish(served, devices.snapshot(*(matched | same).values()))

    def _publish(self, served: Served, snapshot: Snapshot) -> None:
        """Do as `ServedResource` does."""
        if served.draining:
            removed = Verdict(Cause.REMOVED, "removed")
            snapshot = with_all_leaving(snapshot, removed, self.kubelet.now)
        listed = without_unlisted(snapshot, served.offered_ids)
        offered = self.claims.judge(served.resource, listed)
        if served.offered_ids.publish(offered, served.resource):
            self._publish(served, snapshot)
            return
        served.latest = without_unlisted(listed, served.offered_ids)
        served.offered = without_unlisted(offered, served.offered_ids)
        self.claims.set_listed(served.resource, served.offered)

    async def allocate(self, name: str, advertised_id: str) -> HostDevice:
        """Answer an Allocate, or raise `AllocationError`."""
        served = self.served[name]
        offered = offered_id(advertised_id)
        device, offered_ids = served.offered.devices.get(offered.device), served.offered_ids
        is_listed = isinstance(offered_ids, DeviceList) and advertised_id in offered_ids
        if device is None or not device.healthy or not is_listed:
            raise AllocationError(f"{advertised_id} is not offered")
        await self.claims.hand_out(served.resource, served.offered.devices, [offered])
        return device

    async def tick(self) -> None:
        """Do what is due: read the records, let IDs leave, end what is drained, scan, send."""
        self.locks.look()
        await turns()
        if self.kubelet.now % 5 == 0:  # as `follow_directory` does
            self.file.sync_soon()
        for name, served in tuple(self.served.items()):
            offered_ids = served.offered_ids
            if isinstance(offered_ids, DeviceList) and offered_ids.removable_at(self.kubelet.now):
                await self.holders.refresh()
                if offered_ids.remove_unlisted(self.kubelet.now):
                    self._publish(served, served.latest)
            if served.draining and offered_ids.drained:
                await self.file.flush()
                await self._end(served)
                continue
            forgets = any(not device.is_present for device in served.latest.devices.values())
            if served.due or forgets:
                self.scan(name)
            if isinstance(offered_ids, DeviceList) and self._take_lock(served):
                self.send(served, offered_ids)

    async def _end(self, served: Served) -> None:
        name = served.resource.name
        self.claims.remove(name)
        del self.served[name]
        self.unlock(name, is_drained=True)
        if served.successor is not None:
            self._serve(served.successor)
            self.served[name].finds = served.finds

    def unlock(self, name: str, *, is_drained: bool = False) -> None:
        """Give a resource to another process, of which kubelet has no devices meanwhile."""
        lock = self.locks.get(name)
        if lock.held:
            self.kubelet.lists.pop(name, None)
        lock.release(remove=is_drained)

    def send(self, served: Served, device_list: DeviceList) -> None:
        name = served.resource.name
        if served.stream is None or name not in self.kubelet.lists:
            if served.stream is not None:
                device_list.streams.close(served.stream)
            served.stream = device_list.streams.open(lambda: None)
        healthy = {key: entry.healthy for key, entry in device_list.entries.items()}
        if self.kubelet.lists.get(name) != healthy:
            device_list.streams.list_sent(served.stream, device_list.entries)
            device_list.streams.list_received(served.stream, device_list.entries, self.kubelet.now)
            self.kubelet.receive(name, healthy)

    def present(self) -> Iterator[AdvertisedName]:
        """Yield the names of the devices that are there, withheld or not."""
        for name, served in self.served.items():
            for device in served.offered.devices.values():
                if device.is_present:
                    yield AdvertisedName(name, device.id, served.resource.replicas > 1)

    def allocatable(self) -> Iterator[tuple[AdvertisedName, set[int]]]:
        """Yield what a pod could get of it now: the name, and the numbers of its nodes."""
        for name, served in self.served.items():
            listed = self.kubelet.lists.get(name, {}) if self.locks.get(name).held else {}
            for advertised_id, healthy in listed.items():
                owner = advertised_name(name, advertised_id)
                device = served.offered.devices.get(owner.device)
                if healthy and device and device.healthy:
                    yield owner, {number for _, number in device.numbers.values()}


class Node:
    """The host, its kubelet, and the processes of devhost on it."""

    def __init__(self, state_dir: Path, numbers: Mapping[str, int]) -> None:
        self.state_dir = state_dir
        state_dir.mkdir()
        self.host = Host(dict(numbers), set(numbers))
        self.kubelet = Kubelet(self.host)
        self.processes: list[Process] = []
        self._is_full = False

    @contextmanager
    def virtual_time(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Give the event loop kubelet's clock, and new processes the boot of this node."""
        boot = patch("devhost.custody.record_files.boot_id", lambda: self.host.boot)
        write = state_dir.write_atomically

        def write_if_room(path: Path, raw: bytes) -> None:
            if self._is_full:
                raise OSError(28, "No space left on device")
            write(path, raw)

        disk = patch("devhost.custody.record_store.write_atomically", write_if_room)
        with boot, disk, patch.object(loop, "time", lambda: self.kubelet.now):
            yield

    async def start(self) -> Process:
        process = Process(self)
        self.processes.append(process)
        await process.start()
        return process

    async def end(self, process: Process, *, kill: bool = False) -> None:
        """End a process; kubelet takes its devices as unhealthy."""
        self.processes.remove(process)
        await (process.kill() if kill else process.stop())
        for name in process.served:
            process.unlock(name)

    def fill_disk(self, *, full: bool) -> None:
        self._is_full = full

    @property
    def disk_is_full(self) -> bool:
        return self._is_full

    async def boot(self, numbers: Mapping[str, int]) -> None:
        """Start the computer again: pods live on with their paths, which lead to other nodes."""
        for process in tuple(self.processes):
            await self.end(process, kill=True)
        self.host.boot += "1"
        self.host.numbers = dict(numbers)
        self.kubelet.restart(0.0, 0.0)

    async def tick(self) -> None:
        self.kubelet.now += TICK_S
        await turns()
        for process in self.processes:
            await process.tick()
        await written()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            await self.tick()


async def turns() -> None:
    """Run all tasks as far as they can go without a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


async def written() -> None:
    """Wait until all attempts to write records have ended."""
    while attempts := [task for task in asyncio.all_tasks() if task.get_name() == "state"]:
        await asyncio.wait(attempts)
