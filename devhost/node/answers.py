"""The answers to a backend for one resource: what a container gets, and what is done before."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from devhost.allocation.cdi import CdiNode, OwnedEdits, device_node, owned_edits
from devhost.allocation.host_paths import HostPaths
from devhost.custody.custody import Custody
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.names import text_hash
from devhost.model.records import RecordedNodes, Steps
from devhost.node.pre_start import PRE_START_TIMEOUT_S, PreStart
from devhost.observe.metrics import Metrics
from devhost.watch.threads import BlockingCalls, NoAnswerError, wait_at_most

_T = TypeVar("_T")
_CHANGE_WAIT_S: Final = 0.15  # for devices that are being found by a new specification
_LOOK_UP_S: Final = 5.0
_RENDER_S: Final = 10.0


class CodeResource(Protocol):
    """A resource whose devices and answers come from code.

    All methods belong to the event loop and do not block it.
    """

    @property
    def resource(self) -> Resource:
        """The declaration."""

    def scanner(self, files: HostFiles, node_name: str, settle_s: float) -> Scanner:
        """Compile the resource."""

    def started(self, request_scan: Callable[[], None]) -> None:
        """Begin: it is served from now on; ``request_scan`` has it scanned."""

    def registered(self) -> None:
        """Take up a registration, the first or another."""

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Prepare devices for a container in so many seconds; raise `PreStartError`."""

    async def ended(self) -> None:
        """End: it is no longer served."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The devices on offer, and the specification by which they were found."""

    scanner: Scanner
    snapshot: Snapshot = field(default_factory=Snapshot)


class ResourceAnswers:
    """Answers by the present offer (a `devhost.backends.backend.ResourceHandler`)."""

    def __init__(
        self,
        scanner: Scanner,
        custody: Custody,
        pre_start: PreStart,
        metrics: Metrics,
        code: CodeResource | None,
    ) -> None:
        self.name, self.offer = scanner.resource.name, Offer(scanner)
        self.drain_reason: str | None = None  # why devices are given to nobody any longer
        self.steps_ended = False  # no container needs the steps before its start any longer
        self.up_to_date = asyncio.Event()  # set while the offer is by the specification in force
        self._custody, self._metrics = custody, metrics
        self.pre_start, self.code = pre_start, code
        self._calls = BlockingCalls(f"allocate {self.name}")

    def apply_spec(self) -> None:
        """Answer again, and, when there are devices of another specification, by that."""
        self.drain_reason, self.steps_ended = None, False
        self.up_to_date.clear()
        # Without the calls of the former specification, of which some may hang.
        self._calls = BlockingCalls(f"allocate {self.name}")

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return self.offer.scanner.pre_start_required and not self.steps_ended

    @property
    def devices(self) -> Mapping[str, HostDevice]:
        """The devices on offer."""
        return self.offer.snapshot.devices

    @property
    def naming(self) -> str:
        """The definition of their IDs, as a hash: by another one, IDs may be exchanged."""
        resource = self.offer.scanner.resource
        made_by = repr((resource.sources, resource.id, resource.group))
        return text_hash(made_by, 12)

    async def _current(self) -> Offer:
        """Return the offer; after a change of the configuration, wait a while for it."""
        if not self.up_to_date.is_set():
            await wait_at_most(_CHANGE_WAIT_S, self.up_to_date.wait)
        return self.offer

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        """Return what a container receives for devices on offer, or raise `AllocationError`.

        `pre_start` says whether the kubelet will call PreStartContainer: it asks for that once per
        registration, which may be older than the specification.
        """
        offer = await self._current()
        scanner, snapshot = offer.scanner, offer.snapshot
        allocation = await self._ask_host(lambda: scanner.allocate(snapshot, ids))
        has_steps = pre_start and self.pre_start.needs_steps(scanner.resource)
        steps: Steps = "pending" if has_steps else "none"
        await self._custody.hand_out(scanner.resource, snapshot.devices, ids, steps=steps)
        return allocation

    async def render(self, ids: Sequence[OfferedId], *, watching: bool) -> Allocation:
        """Return what a container receives, without a record, or raise `AllocationError`.

        For who is `watching` what another one has, it may be unhealthy.
        """
        offer, patience = await self._current(), _RENDER_S
        scanner, snapshot = offer.scanner, offer.snapshot
        if watching:
            devices = {
                device.id: replace(device, verdict=None) if device.is_present else device
                for device in snapshot.devices.values()
            }
            snapshot, patience = replace(snapshot, devices=devices), _LOOK_UP_S
        return await self._ask_host(lambda: scanner.allocate(snapshot, ids), patience)

    def claim_nodes(self, offered: OfferedId, claim: str) -> tuple[RecordedNodes, bool]:
        """Return the nodes of what a claim gets, and whether others may have them, too.

        Where others have them, or there is no such device, it raises `AllocationError`.
        """
        resource, device = self.offer.scanner.resource, self.devices.get(offered.device)
        if device is None:
            raise AllocationError(f"{self.name}: there is no device {offered.device}")
        return self._custody.claim_nodes(resource, device, claim), resource.overlap == "allow"

    async def locate(self, nodes: Sequence[DeviceSpec]) -> Sequence[CdiNode]:
        """Return nodes of the host as CDI has them now, or raise `AllocationError`."""
        scanner = self.offer.scanner
        host_paths = HostPaths(scanner.files, scanner.policy)

        def look() -> list[CdiNode]:
            checked = scanner.checked(Allocation(devices=tuple(nodes)))
            return [device_node(node, host_paths) for node in checked.devices]

        return await self._ask_host(look, _LOOK_UP_S)

    async def cdi_edits(self, allocation: Allocation) -> OwnedEdits:
        """Return an allocation as edits of a container, with the numbers that nodes have now."""
        scanner = self.offer.scanner
        host_paths = HostPaths(scanner.files, scanner.policy)
        return await self._ask_host(lambda: owned_edits(allocation, host_paths), _LOOK_UP_S)

    async def _ask_host(self, work: Callable[[], _T], patience: float = math.inf) -> _T:
        try:
            return await self._calls.run(work, patience=patience)
        except NoAnswerError as error:
            raise AllocationError(f"{self.name}: the host does not answer: {error}") from None

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Count an Allocate that has ended, with its result and duration."""
        self._metrics.allocations.labels(self.name, result).inc()
        self._metrics.allocation_seconds.labels(self.name).observe(seconds)

    async def prefer(
        self, available: Sequence[OfferedId], must_include: Sequence[OfferedId], size: int
    ) -> Sequence[OfferedId]:
        """Return which IDs a container should get; none to leave it to the kubelet."""
        offer = await self._current()
        return await self._calls.run(
            lambda: offer.scanner.preferred(offer.snapshot, available, must_include, size)
        )

    async def prepare(self, ids: Sequence[OfferedId], *, fresh: bool = False) -> None:
        """Prepare devices for a container that starts; a `PreStartError` says why it must not."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + PRE_START_TIMEOUT_S
        offer = await self._current()
        devices = offer.snapshot.devices
        await self.pre_start.run_steps_for(offer.scanner.resource, devices, ids, fresh=fresh)
        if self.code is not None:
            chosen = [devices[device_id] for device_id in {offered.device for offered in ids}]
            await self.code.pre_start(chosen, deadline - clock())
