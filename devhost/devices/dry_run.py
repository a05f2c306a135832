"""The dry run: what this host would advertise, why, and what a container would receive."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pydantic.alias_generators import to_camel

from devhost.allocation.cdi import OwnedEdits, SpecBudget, cdi_devices, named, owned_edits, spec
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.steps import planned_steps
from devhost.devices.health_check import check_device
from devhost.devices.resolve import Resolver
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.advertised import OfferedId, sort_ids
from devhost.model.allocation import Allocation
from devhost.model.config import Config, Resource
from devhost.model.device import Cause, HostDevice, Skipped, Snapshot, Verdict
from devhost.model.device_node import Node
from devhost.sources import explain
from devhost.sources.base import Listing, Listings, Location
from devhost.sources.selection import list_all

_Json = dict[str, Any]
OfferIds = Callable[[str, int], Sequence[OfferedId]]
"""Returns the IDs under which a backend offers a device, by its number of replicas."""
PlanClaim = Callable[[Allocation, Sequence[OfferedId], OwnedEdits], _Json]
"""Returns, in JSON, what a claim of IDs brings into a container: their allocation, as edits."""

_PARALLEL_CHECKS: Final = 8
_SHOWN_MAX: Final = 100  # of what a source does not select


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """One resource: its snapshot, and what else is asked for.

    Attributes:
        warnings: Problems that are not errors.
        listed: The numbers of IDs, and of healthy IDs, in kubelet's list; by default those of the
            snapshot.
        details: ``explain`` and ``allocation`` in JSON, where they are asked for.
    """

    resource: Resource
    snapshot: Snapshot
    warnings: tuple[str, ...] = ()
    listed: tuple[int, int] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether a source could not be read or the allocation is impossible."""
        allocation = self.details.get("allocation", {"error": None})
        return self.snapshot.error is not None or allocation["error"] is not None

    def as_json(self) -> _Json:
        """Return the shape of ``plan -o json``, which is stable."""
        devices = self.snapshot.devices.values()
        replicas, healthy = self.resource.replicas, sum(device.healthy for device in devices)
        capacity, allocatable = self.listed or (len(devices) * replicas, healthy * replicas)
        skipped = self.snapshot.skipped
        if (unlisted := self.snapshot.skipped_count - len(skipped)) > 0:
            text = f"only {len(skipped)} are listed"
            skipped += (Skipped.because(Cause.OVER_LIMIT, f"and {unlisted:,} more", text),)
        return {
            "name": self.resource.name,
            "capacity": capacity,
            "allocatable": allocatable,
            "error": self.snapshot.error,
            "warnings": list(self.warnings),
            "devices": [_device(device) for device in devices],
            "skipped": [_json(candidate, "candidate", "reason") for candidate in skipped],
            **self.details,
        }


def _json(value: object, *attributes: str) -> _Json:
    """Return attributes with their names in JSON."""
    return {to_camel(name): getattr(value, name) for name in attributes}


def _device(device: HostDevice) -> _Json:
    shown: _Json = {
        "id": device.id,
        "health": "Healthy" if device.healthy else "Unhealthy",
        "reason": device.reason,
        "numaNodes": list(device.numa_nodes),
        "paths": [node.shown for node in device.nodes if node.shown],
    }
    if checked := device.checked:
        at = checked.at.isoformat(timespec="seconds")
        shown["checked"] = {"at": at, **_json(checked, "failure", "unknown")}
    return shown


def _answer(answer: Allocation) -> _Json:
    """Return an allocation with the names of kubelet's API."""
    mounts = [_json(mount, "host_path", "container_path", "read_only") for mount in answer.mounts]
    nodes = [_json(node, "host_path", "container_path", "permissions") for node in answer.devices]
    return {
        "deviceIds": list(answer.device_ids),
        "envs": dict(answer.envs),
        "mounts": mounts,
        "devices": nodes,
        "annotations": dict(answer.annotations),
        "cdiDevices": list(answer.cdi_devices),
    }


def report(
    config: Config,
    files: HostFiles,
    policy: Policy,
    node_name: str,
    requests: Mapping[str, str] | None = None,
    *,
    explained: bool = False,
    offer: OfferIds = lambda device_id, _replicas: (OfferedId(device_id, device_id),),
    claim: PlanClaim | None = None,
) -> tuple[ResourceReport, ...]:
    """Scan the host once and return what it would advertise. Blocks.

    `requests` has what to allocate, by resource name: a number, or IDs separated by commas. `offer`
    returns the IDs under which a backend offers a device, for them, and `claim` what a claim of
    them has, where DRA offers the resource.
    """
    resources = [resource for resource in config.resources if resource.applies_to(node_name)]
    resolver = Resolver()
    resolver.reconfigure(resources)
    listings: dict[Location, Listing] = {}  # of all resources
    reports, take = [], partial(SpecBudget().take, lambda: None)
    for resource in resources:
        scanner = Scanner(resource, files, policy, node_name)
        new = (location for location in scanner.locations if location not in listings)
        listings |= list_all(new, files)
        forecast = scanner.identify(scanner.select(listings), Snapshot(), now=0.0)
        identified, _ = resolver.resolve(forecast, forecast.context.previous)
        assert identified is not None  # noqa: S101 (it was not outdated)
        snapshot = _checked(scanner, scanner.verify(identified))
        if scanner.has_cdi_file:
            snapshot = named(resource.name, snapshot, cdi_devices(scanner, snapshot, take))
        warnings = (*snapshot.notes, *snapshot.explain_empty(), *mistakes(resource, snapshot))
        details: _Json = {}
        if explained:
            details["explain"] = [*explain_sources(scanner, listings, snapshot)]
        if request := (requests or {}).get(resource.name):
            details["allocation"] = _allocation(scanner, snapshot, request, offer, claim)
        reports.append(ResourceReport(resource, snapshot, warnings, details=details))
    return tuple(reports)


def _checked(scanner: Scanner, snapshot: Snapshot) -> Snapshot:
    """Run the health checks once, as the running host does first."""
    checks = scanner.resource.health
    if checks is None:
        return snapshot

    def judged(device: HostDevice) -> HostDevice:
        if not device.healthy:
            return device
        outcome = check_device(
            checks, device, scanner.files, scanner.constants, allow=scanner.policy
        )
        verdict = Verdict(Cause.CHECK_FAILED, f"check failed: {outcome.failure}")
        return replace(device, verdict=verdict if outcome.failure else None, checked=outcome)

    with ThreadPoolExecutor(_PARALLEL_CHECKS) as pool:
        devices = {device.id: device for device in pool.map(judged, snapshot.devices.values())}
    return replace(snapshot, devices=devices)


def _allocation(
    scanner: Scanner,
    snapshot: Snapshot,
    request: str,
    offer: OfferIds,
    claim: PlanClaim | None,
) -> _Json:
    """Return what a container would receive, with the preStart steps and the CDI spec."""
    resource, files = scanner.resource, scanner.files
    try:
        chosen = choose_ids(scanner, snapshot, request, offer)
        devices = {offered.device: snapshot.devices[offered.device] for offered in chosen}
        steps = planned_steps(
            resource,
            list(devices.values()),
            scanner.constants,
            lambda path: files.to_local(files.resolve(path)),
        )
        answer = scanner.allocate(snapshot, chosen)
        shown = {**_answer(answer), "preStart": steps, "error": None}
        if scanner.by_dra and claim is not None:
            edits = owned_edits(answer, HostPaths(files, scanner.policy))
            shown |= _answer(Allocation(answer.device_ids)) | claim(answer, chosen, edits)
        elif scanner.has_cdi_file:
            injected = cdi_devices(scanner, Snapshot(devices))
            shown["cdiSpec"] = spec(resource.name, injected)
    except (AllocationError, PreStartError) as error:
        return {**_answer(Allocation()), "preStart": [], "error": str(error)}
    return shown


def choose_ids(
    scanner: Scanner, snapshot: Snapshot, request: str, offer: OfferIds
) -> tuple[OfferedId, ...]:
    """Return the advertised IDs for a request: a number, or IDs separated by commas.

    A number that is the ID of a device on the host is that device; tokens are numbered, and are
    requested by their count.
    """
    name, replicas = scanner.resource.name, scanner.resource.replicas
    ids_by_device = {device_id: offer(device_id, replicas) for device_id in snapshot.devices}
    named = snapshot.devices.get(request)
    if request.isdecimal() and not (named and any(named.owned_nodes)):
        healthy = [
            offered
            for device_id, ids in ids_by_device.items()
            for offered in ids
            if snapshot.devices[device_id].healthy
        ]
        if (count := int(request)) > len(healthy):
            raise AllocationError(f"{name}: {count} requested, {len(healthy)} available")
        return scanner.preferred(snapshot, healthy, (), count) or tuple(healthy[:count])
    by_id = {offered.id: offered for ids in ids_by_device.values() for offered in ids}
    chosen = set[OfferedId]()
    for text in filter(None, request.split(",")):
        offered = ids_by_device[text][0] if text in ids_by_device else by_id.get(text)
        if offered is None:
            raise AllocationError(f"{name}: no device {text}")
        chosen.add(offered)
    return sort_ids(chosen)


# ── why a source finds what it finds: what was looked at, taken and left ──


def explain_sources(
    scanner: Scanner, listings: Listings, snapshot: Snapshot
) -> Iterator[dict[str, Any]]:
    """Yield the candidates of each source, in the shape of ``plan --explain``. Blocks."""
    offered = {
        node.key: device.reason for device in snapshot.devices.values() for node in device.nodes
    }
    skipped = {skip.candidate: skip.reason for skip in snapshot.skipped}
    for index, compiled in enumerate(scanner.sources):
        selection = compiled.select(listings)
        by_label: dict[str, list[Node]] = {}
        for node in selection.nodes:
            label = node.hardware.label if node.hardware else node.path or node.name
            by_label.setdefault(label, []).append(node)
        candidates = [_judged(label, nodes, offered, skipped) for label, nodes in by_label.items()]
        candidates.sort(key=lambda candidate: not candidate["taken"])
        candidates += [_left(skip.candidate, [skip.reason]) for skip in selection.skipped]
        failures = (*selection.failed_sources.values(), *selection.notes)
        unmatched = () if failures else compiled.source.unmatched(listings)
        left = [
            _left(candidate.name, explain.mismatch_texts(candidate))
            for candidate in explain.closest_first(unmatched)
        ]
        yield {
            "source": index,
            "summary": "; ".join((explain.summary(compiled.spec.kind), *failures)),
            "other": max(len(left) - _SHOWN_MAX, 0),
            "candidates": [*candidates, *left[:_SHOWN_MAX]],
        }


def _left(candidate: str, reasons: Iterable[str]) -> dict[str, Any]:
    shown = names.printable(candidate)
    return {"candidate": shown, "taken": False, "reasons": list(reasons), "paths": []}


def _judged(
    label: str, nodes: Sequence[Node], offered: Mapping[str, str | None], skipped: Mapping[str, str]
) -> dict[str, Any]:
    paths = [node.shown for node in nodes if node.shown]
    reason = next((skipped[name] for name in (label, *paths) if name in skipped), None)
    problems = (
        reason,
        nodes[0].hardware.incomplete if nodes[0].hardware else None,
        *(node.problem for node in nodes),
        next((offered[node.key] for node in nodes if offered.get(node.key)), None),
    )
    taken = any(node.key in offered for node in nodes) and reason is None
    reasons = dict.fromkeys(filter(None, problems))
    return {**_left(label, reasons), "taken": taken, "paths": paths}


def mistakes(resource: Resource, snapshot: Snapshot) -> Iterator[str]:
    """Yield warnings of what is surely not meant."""
    unnamed = {
        index
        for index, source in enumerate(resource.sources)
        if source.usb is not None and "node" not in source.usb.model_fields_set
    }
    nodes = [node for device in snapshot.devices.values() for node in device.nodes]
    for node in nodes:
        if node.source not in unnamed or node.hardware is None:
            continue
        ports = names.natural(
            path for path in node.hardware.excludes if path.startswith("/dev/tty")
        )
        if ports:
            yield (
                f"usb {node.variables['usb.device']} has tty nodes, but the USB node is handed "
                f"out: node: tty gives {', '.join(ports)}"
            )
