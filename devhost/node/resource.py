"""One resource's life: it is scanned, published and served; it changes, drains and ends."""

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from devhost.backends.backend import Backend, ResourceHooks
from devhost.custody.custody import Custody
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.devices.scan import Scanner, for_new_spec
from devhost.model.device import Snapshot
from devhost.model.resource_state import State, Status
from devhost.node.answers import CodeResource, ResourceAnswers
from devhost.node.cdi_files import CdiFiles, CdiInjection
from devhost.node.pre_start import PreStart
from devhost.node.reconciler import Reconciler, ResourceScan
from devhost.node.resource_devices import ResourceDevices
from devhost.node.resource_status import ResourceStatus
from devhost.observe.metrics import REGISTRATION_RESULTS, Metrics
from devhost.watch.threads import wait_at_most

_STEP_S: Final = 0.2  # while IDs are leaving
_FIRST_ROUND_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node that all its resources use."""

    backend: Backend
    reconciler: Reconciler
    holders: Holders
    records: RecordFiles
    custody: Custody
    cdi_files: CdiFiles
    metrics: Metrics


class ServedResource:
    """Serves one resource."""

    def __init__(
        self, scanner: Scanner, parts: NodeParts, code: CodeResource | None = None
    ) -> None:
        self.name, self.scanner, self._parts = scanner.resource.name, scanner, parts
        self._changed = asyncio.Event()
        self._held: AbstractSet[str] = parts.holders.held_ids(self.name)
        self.scan = ResourceScan(parts.reconciler, scanner, self._apply_scan, self.report_failure)
        self.resource_status = ResourceStatus(self.name)
        parts.metrics.add_resource(self.name)
        pre_start = PreStart(scanner, parts.records)
        self.answers = ResourceAnswers(scanner, parts.custody, pre_start, parts.metrics, code)
        hooks = ResourceHooks(
            self.answers,
            self._set_state,
            held=lambda: self._held,
            other_holders=lambda: other_holders(self.scanner, parts.holders, parts.records),
            holders_changed=lambda: parts.custody.holders_changed,
            holders_known=lambda: parts.holders.complete,
            refresh=parts.holders.refresh,
            on_locked=self._take_over,
            on_left=self._publish_again,
            save=parts.records.flush,
            exclusive=code is None and self.name not in scanner.policy.allow_resources,
            refusal=scanner.policy.dra_problem if scanner.by_dra else None,
        )
        self.publication = parts.backend.open(scanner.resource, hooks)
        offered_ids, request_scan = self.publication.offered_ids, self.scan.request
        injection = CdiInjection(self.name, parts.cdi_files, request_scan)
        self.devices = ResourceDevices(
            self.answers, offered_ids, parts.custody, injection, self.scan
        )
        parts.custody.add(self.name, offered_ids, request_scan)
        if code is not None:
            code.started(request_scan)

    @property
    def draining(self) -> bool:
        """Whether it goes on only until nobody can get a device of it."""
        return self.answers.drain_reason is not None

    @property
    def status(self) -> Status:
        """Its state, why, and since when."""
        return self.resource_status.current

    # ── its life ──

    def apply_spec(self, scanner: Scanner) -> None:
        """Go on by another specification of the resource, with the same socket and stream."""
        scan, former = self.scan, self.scanner.resource
        scan.found = for_new_spec(scan.found, former, scanner.resource)
        self.scanner = scanner
        self.answers.apply_spec()
        self.devices.change_log.repeat_empty()
        scan.apply_spec(scanner)
        self.resource_status.restore()

    def drain(self, reason: str) -> None:
        """Take all devices out of the kubelet's list, then end."""
        self.answers.drain_reason = reason
        self.devices.count.expect_none()
        self.scan.release()
        self._publish_again()
        self._changed.set()

    async def run(self) -> None:
        """Scan and serve until cancelled, or until drained; then nothing of it is left in files."""
        self.resource_status.set(State.DISCOVERING)
        if not self.draining:
            self.answers.up_to_date.clear()  # the scan says when to serve
            self._changed.clear()
            self.scan.apply_spec(self.scanner)
        holders = self._parts.holders
        self._held = holders.held_ids(self.name)
        holders.on_change.append(self._held_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._changed.wait()
                if (health := self.devices.health) is not None:
                    await wait_at_most(_FIRST_ROUND_S, health.first_round)
                    self._publish_again()
                serving = tasks.create_task(self.publication.run(), name=f"serve {self.name}")
                await asyncio.sleep(0)  # it begins: only then can it end what was opened
                while not (self.draining and self._finish_draining()):
                    if self.draining:
                        await asyncio.sleep(_STEP_S)
                    else:
                        self._changed.clear()
                        await self._changed.wait()
                serving.cancel()
        finally:
            self.scan.release()
            holders.on_change.remove(self._held_changed)
            self.devices.end_checks()
            self.resource_status.set(State.STOPPED)
        await self.answers.pre_start.forget()
        if not self._parts.backend.locks.locked_by_other(self.name):  # it has the file of that one
            await self.devices.injection.remove()

    def _finish_draining(self) -> bool:
        """Register without steps when no device is left; return whether kubelet has it all so.

        With DRA: for minutes after the end of a device plugin with PreStart, kubelet starts no pod
        that got devices of its name by DRA (kubernetes#141426).
        """
        if not self.publication.offered_ids.drained:
            return False
        answers = self.answers
        if self.scanner.policy.dra and answers.pre_start_required:
            answers.steps_ended = True
            self.publication.spec_changed()
        return not answers.steps_ended or self.publication.up_to_date

    def report_failure(self, error: Exception) -> None:
        """Show that a mistake of ours has ended a scan, or the serving; another try follows."""
        self.resource_status.override(State.BACKING_OFF, f"failed: {error!r}")

    def close(self) -> None:
        """Give up what a resource that has ended shares with others."""
        self.scan.close()
        self._parts.cdi_files.budget.release(self.name)
        self._parts.metrics.remove_resource(self.name)
        self._parts.custody.remove(self.name)  # the last: what fails before is done again

    def _set_state(self, state: State, reason: str | None = None) -> None:
        self.resource_status.set(state, reason)
        if state in (State.REGISTERED, State.BACKING_OFF):
            result = REGISTRATION_RESULTS[state is State.REGISTERED]
            self._parts.metrics.registrations.labels(self.name, result).inc()
        if self.answers.code is not None and state is State.REGISTERED:
            self.answers.code.registered()

    def _take_over(self) -> None:
        """Read what another instance has recorded, which may have served it until now."""
        self._parts.records.sync_soon()
        if self.scanner.has_cdi_file:
            self.scan.request()

    # ── its devices ──

    async def _apply_scan(self, snapshot: Snapshot) -> None:
        """Publish what a scan has found, after all that has to be so before."""
        devices, resource = self.devices, self.scanner.resource
        devices.check(self.scanner, snapshot)
        if self.scanner.has_cdi_file and not self._parts.backend.locks.locked_by_other(self.name):
            await devices.injection.write(self.scanner, snapshot)  # another has written its own
        if is_new_spec := not self.answers.up_to_date.is_set():
            await self.answers.pre_start.spec_changed(resource)
        self.resource_status.restore()
        self._publish(self.scanner, snapshot)
        # After the list, which is sent first.
        asyncio.get_running_loop().call_soon(devices.count.update, resource, self.scan.found)
        if is_new_spec:
            self.publication.spec_changed()
            self.answers.up_to_date.set()
            self._changed.set()

    def _publish_again(self) -> None:
        """Publish what is known, by the specification by which it was found."""
        self._publish(self.answers.offer.scanner, self.scan.found)

    def _publish(self, scanner: Scanner, snapshot: Snapshot) -> None:
        self.devices.publish(scanner, snapshot)
        if (reason := self.answers.drain_reason) is not None:
            pods = frozenset[str]().union(*self._parts.holders.pods_by_id(self.name).values())
            held = f"; held by {', '.join(sorted(pods))}" if pods else ""
            self.resource_status.override(State.DRAINING, reason + held)

    def _held_changed(self) -> None:
        before, self._held = self._held, self._parts.holders.held_ids(self.name)
        if self.draining:
            self._publish_again()
        elif before != self._held:
            self.scan.request()


def other_holders(scanner: Scanner, holders: Holders, records: RecordFiles) -> str | None:
    """Return who has devices of a resource by the other backend, where there is one.

    Of two backends that offer a resource, the scheduler would count the pods of one against the
    devices of the other.
    """
    name = scanner.resource.name
    if not scanner.policy.dra:
        return None
    if scanner.by_dra:
        pods = sorted(holders.plugin_pods(name))
        return f"held by {', '.join(pods)} by the device plugin" if pods else None
    claims = records.table.claims.values()
    shown = sorted(record.shown for record in claims if name in record.resources)
    return f"held by claim {', '.join(shown)}" if shown else None


def is_registered(served: ServedResource) -> bool:
    """Whether the kubelet has a resource."""
    state = served.status.state
    return state is State.REGISTERED or (
        state is State.DRAINING and served.publication.status.streams > 0
    )
