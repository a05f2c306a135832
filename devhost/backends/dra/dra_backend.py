"""Offers resources by Dynamic Resource Allocation: the pools, claims and driver of a process."""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devhost.backends.backend import ClaimRecords, PodLister, ResourceHooks
from devhost.backends.dra.api_client import ApiAddress, ApiClient, reading_answer
from devhost.backends.dra.claim_allocator import OfferedPool
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.claim_upkeep import ClaimUpkeep
from devhost.backends.dra.plugin_watcher import DriverSockets, Registrar
from devhost.backends.dra.pool import SliceDevice, device_entries, pool_devices, pool_name
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.backends.dra.slices import SliceWriter, WantedPool
from devhost.backends.podresources import ClaimedId, PodResources
from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.resource_state import DraStatus, PublicationStatus, State
from devhost.watch.inotify import Watcher

_FREE_POLL_S: Final = 0.2  # while the other backend's pods have devices
_LEAST: Final = (1, 36)  # an older kubelet starts pods without their devices
_LOCKED: Final = "another instance of devhost publishes its devices"


@dataclass(frozen=True, slots=True)
class DraSettings:
    """The settings of a driver on a node."""

    driver: str
    node_name: str
    kubelet_dir: Path
    api: ApiAddress


class DraBackend(Collector):
    """The devices that DRA offers for a process (a `devhost.backends.backend.Backend`).

    As a collector, it has the metrics of them.
    """

    leave_after = 0.0  # what is not in a slice is not prepared

    def __init__(self, settings: DraSettings, pods: PodResources | None) -> None:
        self.settings, self._api = settings, ApiClient(settings.api)
        driver = settings.driver
        self.sockets = DriverSockets(settings.kubelet_dir, driver)
        self.slices = SliceWriter(
            self._api, driver, settings.node_name, self._connect, self._show_all
        )
        self._publications: dict[str, DraPublication] = {}  # by pool
        self.claims = PreparedClaims(self._api, driver, self._by_pool)
        self.upkeep = ClaimUpkeep(self._api, self.claims)
        self._servicer = DraServicer(self.claims)
        self.registrar = Registrar(self.sockets, driver, self._servicer, self._kubelet_answered)
        self._version_problem: str | None = None
        self._runtime_warning: str | None = None
        if pods is not None:
            pods.claimed_ids = self._claimed_ids

    # ── for the node ──

    @property
    def pods(self) -> PodLister | None:
        """Nobody of its own: kubelet has one list, which device plugins ask for."""
        return None

    @property
    def restarts(self) -> int:
        """How often kubelet has registered the driver again."""
        return max(0, self.registrar.registrations - 1)

    def open(self, resource: Resource, hooks: ResourceHooks) -> "DraPublication":
        """Return the publication of a resource, to be run."""
        publication = DraPublication(self, pool_name(self.settings.node_name, resource.name), hooks)
        self.add(publication)
        return publication

    def add(self, publication: "DraPublication") -> None:
        """Publish a resource, which may have been forgotten."""
        self._publications[publication.pool] = publication
        self.slices.pools.setdefault(publication.pool, WantedPool())

    def forget(self, publication: "DraPublication") -> None:
        """Forget a resource that has ended."""
        del self._publications[publication.pool], self.slices.pools[publication.pool]

    def names_holders(self, _resource: Resource) -> bool:
        """Whether it says who gets devices: it names the claim."""
        return True

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""
        return self._by_name(resource) is not None and self.sockets.lock.locked_by_other

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        return self._by_name(resource) is not None

    async def run(self, _watcher: Watcher, records: ClaimRecords) -> None:
        """Serve kubelet and publish devices until cancelled."""
        await self.claims.begin(records)
        self._show_all()
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (
                    self._become_writer(),
                    self.registrar.run(),
                    self.slices.run(),
                    self.upkeep.run(),
                ):
                    tasks.create_task(work)
        finally:
            self.sockets.lock.release()

    async def close(self) -> None:
        """End what is running."""
        await self._api.close()

    async def _become_writer(self) -> None:
        await self.sockets.wait_until_locked()
        self.slices.may_write = True
        self.slices.compare_soon()
        self._show_all()
        with contextlib.suppress(OSError):  # no registry: kubelet has not started yet
            await self.sockets.remove_dead()

    async def _connect(self) -> str | None:
        """Return the UID of this node; ``None`` if Kubernetes is too old."""
        node = await self._api.call("GET", f"/api/v1/nodes/{self.settings.node_name}")
        server = await self._api.call("GET", "/version")
        with reading_answer():
            info, node_uid = node["status"]["nodeInfo"], str(node["metadata"]["uid"])
            self._read_versions(info, server)
        self._show_all()
        return None if self._version_problem else node_uid

    def _read_versions(self, info: Mapping[str, Any], server: Mapping[str, Any]) -> None:
        self._version_problem = _version_problem(
            "kubelet", "this node", info["kubeletVersion"]
        ) or _version_problem("Kubernetes", "the API server", server["gitVersion"])
        runtime = info.get("containerRuntimeVersion", "")
        self._runtime_warning = None
        if runtime.startswith("containerd://1."):
            self._runtime_warning = f"DRA needs containerd 2, this node has {runtime}"

    def _kubelet_answered(self) -> None:
        self.slices.reconnect()  # it may be of another version
        self._show_all()

    def _show_all(self) -> None:
        for publication in tuple(self._publications.values()):
            publication.show()

    def _by_pool(self, pool: str) -> OfferedPool | None:
        return self._publications.get(pool)

    def _by_name(self, resource: str) -> OfferedPool | None:
        return self._publications.get(pool_name(self.settings.node_name, resource))

    def _claimed_ids(self) -> Mapping[ClaimedId, tuple[str, OfferedId]]:
        """Return the advertised IDs of devices, as kubelet's list of pods names these."""
        driver, claimed = self.settings.driver, dict[ClaimedId, tuple[str, OfferedId]]()
        for pool, publication in self._publications.items():
            for name, ids in publication.ids.items():
                claimed[ClaimedId(driver, pool, name, "")] = publication.handler.name, ids[0]
        for record in self.claims:
            for device in record.devices:
                key = ClaimedId(driver, device.pool, device.device, device.share or "")
                claimed[key] = device.resource, offered_id(device.id)
        return claimed

    # ── to be shown ──

    def state(self, pool: str) -> tuple[State, str | None]:
        """Return the state of a pool, and why."""
        wanted = self.slices.pools[pool]
        if self.claims.records is None:
            return State.WAITING, "the records of claims are not read yet"
        for reason in (self._version_problem, self.registrar.problem, self.slices.problem):
            if reason is not None:
                return State.WAITING, reason
        if wanted.problem is not None:
            return State.BACKING_OFF, wanted.problem
        if not self.slices.may_write:
            return State.WAITING, _LOCKED
        return (State.REGISTERED if wanted.confirmed else State.SERVING), None

    def warnings(self, pool: str) -> tuple[str, ...]:
        """Return what is amiss with a pool that is published."""
        return tuple(filter(None, (self.slices.pools[pool].left_out, self._runtime_warning)))

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        slices = GaugeMetricFamily("devhost_dra_slices", "ResourceSlices of this node.")
        slices.add_metric((), len(self.slices))
        claims = GaugeMetricFamily("devhost_dra_claims", "Claims that are prepared.")
        claims.add_metric((), len([*self.claims]))
        writes = CounterMetricFamily(
            "devhost_dra_writes",
            "Writes of ResourceSlices, by HTTP status.",
            labels=("verb", "code"),
        )
        for (verb, code), count in self.slices.requests.items():
            writes.add_metric((verb, str(code)), count)
        return [slices, claims, writes, *self._servicer.seconds.collect()]


class DraPublication:
    """One resource at DRA: its pool (`devhost.backends.backend.Publication` and `OfferedIds`)."""

    def __init__(self, backend: DraBackend, pool: str, hooks: ResourceHooks) -> None:
        self.pool, self.handler = pool, hooks.handler
        self._backend, self._hooks = backend, hooks
        # By the device's name; also those that are unhealthy.
        self.ids: Mapping[str, Sequence[OfferedId]] = {}
        self.device_ids: AbstractSet[str] = frozenset()
        self._healthy_ids: AbstractSet[str] = frozenset()
        self._replicas = 1
        self._devices: Mapping[str, SliceDevice] = {}
        self._blocked = hooks.other_holders() is not None  # then none is published
        self._shown: tuple[State, str | None] | None = None  # while it runs

    @property
    def offered_ids(self) -> "DraPublication":
        """The IDs that a pod may get: they are those of its pool."""
        return self

    async def run(self) -> None:
        """Show its state until cancelled; that of a resource that has ended is forgotten."""
        self._backend.add(self)
        try:
            await self._wait_until_free()
            self._shown = State.PENDING, None
            self.show()
            await asyncio.Event().wait()
        finally:
            self._shown = None
            if self.drained:
                self._backend.forget(self)

    async def _wait_until_free(self) -> None:
        while (reason := self._hooks.other_holders()) is not None:
            self._want(blocked=True)
            self._hooks.set_state(State.WAITING, reason)
            await asyncio.sleep(_FREE_POLL_S)
        self._want(blocked=False)

    def _want(self, *, blocked: bool) -> None:
        self._blocked = blocked
        self._backend.slices.want(self.pool, {} if blocked else self._devices)

    def show(self) -> None:
        """Show its state, if that has changed."""
        if self._shown is None or self._backend.state(self.pool) == self._shown:
            return
        self._shown = self._backend.state(self.pool)
        self._hooks.set_state(*self._shown)

    def spec_changed(self) -> None:
        """Do nothing: kubelet has no options of a resource."""

    up_to_date = True

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and for how many claims."""
        backend, name = self._backend, self.handler.name
        claims = [record.shown for record in backend.claims.of_resource(name)]
        is_registered = backend.registrar.problem is None
        return PublicationStatus(
            listed=len(self.device_ids) * self._replicas,
            healthy=len(self._healthy_ids) * self._replicas,
            streams=int(is_registered),
            lists_sent=0,
            warnings=backend.warnings(self.pool),
            dra=DraStatus(backend.settings.driver, self.pool, claims),
        )

    # ── the IDs ──

    def publish(self, snapshot: Snapshot, resource: Resource) -> bool:
        """Offer the devices of a snapshot; return whether some have left."""
        self._backend.add(self)
        before = self.device_ids
        staying = [device for device in snapshot.devices.values() if not device.is_leaving]
        self.ids = {device.name: device.ids for device in pool_devices(resource, snapshot)}
        self.device_ids = frozenset(device.id for device in staying)
        self._healthy_ids = frozenset(device.id for device in staying if device.healthy)
        self._replicas = resource.replicas
        self._devices = device_entries(resource, snapshot)
        self._want(blocked=self._blocked)
        self._backend.upkeep.follow(resource.name, snapshot)
        self.show()
        return not before <= self.device_ids

    def lists(self, device_id: str, *, shared: bool) -> bool:
        """Whether a device is there, as itself or as shares."""
        return device_id in self.device_ids and shared is (self._replicas > 1)

    def may_allocate(self, device_id: str, _now: float, *, shared: bool) -> bool:
        """Whether a claim for a device would be prepared."""
        return device_id in self._healthy_ids and shared is (self._replicas > 1)

    @property
    def drained(self) -> bool:
        """Whether none is offered or held, and the API server knows."""
        backend = self._backend
        return not (
            self.device_ids
            or backend.slices.has_slices(self.pool)
            or backend.claims.of_resource(self.handler.name)
        )


def _version_problem(program: str, place: str, version: Any) -> str | None:
    """Return why a version of Kubernetes does not do, or ``None``."""
    match = re.match(r"v?(\d+)\.(\d+)[\w.+-]*", str(version))
    if match is None or (int(match[1]), int(match[2])) >= _LEAST:
        return None
    return f"needs {program} {_LEAST[0]}.{_LEAST[1]}, {place} has {match[0].removeprefix('v')}"
