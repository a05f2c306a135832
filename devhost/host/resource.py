"""One resource's life: it is scanned, published and served; it changes, drains and ends.

It answers what the backend asks of it: to allocate, to prefer and to prepare devices.
"""

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from devhost.discovery.scan import Scanner, for_new_spec
from devhost.errors import AllocationError
from devhost.host.backend import ListedDevices
from devhost.host.cdi_files import CdiInjection
from devhost.host.health_monitor import HealthMonitor
from devhost.host.metrics import REGISTRATION_RESULTS
from devhost.host.preparation import WITHIN_S, Preparation
from devhost.host.shared import CodeResource, Shared
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import Cause, Leaving, Snapshot, Verdict
from devhost.model.names import distinct
from devhost.model.resource_state import State, Status
from devhost.watch.threads import BlockingCalls, NoAnswerError

_STEP_S: Final = 0.2  # while IDs are leaving
_CHANGE_WAIT_S: Final = 0.15  # for devices that are being found by a new declaration
_FEW: Final = 200  # to choose among so few takes less than a thread does; no file is read
_FIRST_ROUND_S: Final = 1.0
_REMOVED: Final = Verdict(Cause.REMOVED, "its resource was removed from the configuration")
_DRAINING: Final = "removed from the configuration"
_REPEATS_MAX: Final = 3  # of one state with one reason in the log, until registered again
_LINES_MAX: Final = 5  # of one change; 10,000 devices are no 10,000 lines
# Of what changes all the time: so many changes, then all of a second as one.
_LOG_BURST, _LOG_EVERY_S = 5, 1.0
_LOG: Final = logging.getLogger(__name__)
_CHANGES: Final = logging.getLogger("devhost.host.changes")


class ServedResource:
    """Serves one resource: ``known`` is what was found, ``snapshot`` what is listed of it.

    It answers by what is ``advertised``, and by the declaration by which that was found.

    While it is `draining` it was removed, and goes on until nobody can get a device of it.
    """

    def __init__(self, scanner: Scanner, shared: Shared, code: CodeResource | None = None) -> None:
        self.name, self.scanner = scanner.resource.name, scanner
        self._shared, self._code = shared, code
        self.known = self.snapshot = self._logged = Snapshot()
        self._log_at = 0.0
        self._log_timer: asyncio.TimerHandle | None = None
        self.advertised = scanner, Snapshot()
        self.draining = False
        self._held: AbstractSet[str] = shared.holders.held(self.name)
        self._up_to_date, self._changed = asyncio.Event(), asyncio.Event()
        self.scan = shared.reconciler.add(self)
        self.trigger_scan, self.rescan = self.scan.request, self.scan.rescan
        self.health: HealthMonitor | None = None  # while there are checks
        self._injection = CdiInjection(self.name, shared.cdi_files, self.trigger_scan)
        self._preparation = Preparation(
            self.name,
            node_name=scanner.node_name,
            files=scanner.files,
            policy=scanner.policy,
            records=shared.owners.records,
        )
        self._calls = BlockingCalls(f"allocate {self.name}")
        self.resource_status, self.count = ResourceStatus(self.name), DeviceCount(self.name)
        shared.metrics.add_resource(self.name)
        self.published = shared.publish(
            self,
            self._tell,
            held=lambda: self._held,
            refresh=shared.holders.refresh,
            left=self._publish_again,
            exclusive=code is None and self.name not in scanner.policy.allow_resources,
        )
        shared.owners.serve(self.name, self.published.device_list, self.trigger_scan)
        if code is not None:
            code.started(self.trigger_scan)

    @property
    def resource(self) -> Resource:
        """The declaration, as the configuration has it."""
        return self.scanner.resource

    @property
    def status(self) -> Status:
        """Its state, why, and since when."""
        return self.resource_status.shown

    @property
    def registered(self) -> bool:
        """Whether the kubelet has it."""
        state = self.status.state
        return state is State.REGISTERED or (
            state is State.DRAINING and self.published.state.streams > 0
        )

    # ── what the backend asks of it ──

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return self.advertised[0].pre_start_required

    async def _current(self) -> tuple[Scanner, Snapshot]:
        """Return what is advertised; after a change of the configuration, wait a while for it."""
        if not self._up_to_date.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHANGE_WAIT_S):
                    await self._up_to_date.wait()
        return self.advertised

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Return what a container receives for devices of the current snapshot.

        `pre_start` says whether the kubelet will call PreStartContainer: it asks for that once per
        registration, which may be older than the declaration.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        clock, ids = asyncio.get_running_loop().time, tuple(advertised_ids)
        began = clock()
        scanner, snapshot = await self._current()
        waited = clock() - began
        try:
            answer = await self._calls.run(lambda: scanner.allocate(snapshot, ids))
            devices = [snapshot.devices[one] for one in distinct(ids)]
            fresh = self._preparation.allocated(scanner.resource, ids) if pre_start else []
            await self._shared.owners.allocated(scanner.resource, devices, fresh, waited)
        except NoAnswerError as error:
            raise AllocationError(f"{self.name}: the host does not answer: {error}") from None
        return answer

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Take note that an Allocate has ended, how, and after how long."""
        self._shared.metrics.allocations.labels(self.name, result).inc()
        self._shared.metrics.allocation_seconds.labels(self.name).observe(seconds)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which IDs a container should get; none to leave it to the kubelet."""
        scanner, snapshot = await self._current()
        choose = functools.partial(scanner.preferred, snapshot, available, must_include, size)
        if self._code is None and len(snapshot.devices) + len(available) <= _FEW:
            return choose()
        return await self._calls.run(choose)

    async def prepare(self, advertised_ids: Sequence[str]) -> None:
        """Prepare devices for a container that starts; a `PreStartError` says why it must not."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + WITHIN_S
        scanner, snapshot = await self._current()
        await self._preparation.prepare(scanner.resource, snapshot.devices, advertised_ids)
        if self._code is not None:
            chosen = [snapshot.devices[one] for one in distinct(advertised_ids)]
            await self._code.pre_start(chosen, deadline - clock())

    # ── its life ──

    def change(self, scanner: Scanner) -> None:
        """Go on by another declaration of the resource, with the same socket and stream."""
        found = for_new_spec(self.known, self.resource, scanner.resource)
        self.known, self.scanner, self.draining = found, scanner, False
        # The log says it again if the new declaration finds nothing either.
        self._logged = replace(self._logged, explain_empty=tuple)
        self._up_to_date.clear()
        self.scan.declare()
        self.resource_status.restore()

    def drain(self) -> None:
        """Let all devices leave the kubelet's list, then end."""
        self.draining = True
        self.count = DeviceCount(self.name)
        self.scan.release()
        self._publish_again()
        self._changed.set()

    async def run(self) -> None:
        """Scan and serve until cancelled, or until drained."""
        self.resource_status.set(State.DISCOVERING)
        if not self.draining:
            self._up_to_date.clear()  # the scan says when to serve
            self._changed.clear()
            self.scan.declare()
        self._held = self._shared.holders.held(self.name)
        self._shared.holders.subscribe(self._held_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._changed.wait()
                if self.health is not None:
                    await self.health.first_round(_FIRST_ROUND_S)
                    self._publish_again()
                serving = tasks.create_task(self.published.run(), name=f"serve {self.name}")
                while not (self.draining and self.published.device_list.drained):
                    if self.draining:
                        await asyncio.sleep(_STEP_S)
                    else:
                        self._changed.clear()
                        await self._changed.wait()
                serving.cancel()
        finally:
            self.scan.release()
            self._shared.holders.unsubscribe(self._held_changed)
            self._end_checks()
            self.resource_status.set(State.STOPPED)

    def failed(self, error: Exception) -> None:
        """Say that a mistake of ours has ended a scan, or the serving; that is tried again soon."""
        self.resource_status.override(State.BACKING_OFF, f"failed: {error!r}")

    async def clean_up(self) -> None:
        """Remove the files of a resource that has ended, while it keeps its name."""
        await self._preparation.ended()
        await self._injection.remove()

    def close(self) -> None:
        """Give up what a resource that has ended shares with others."""
        self.scan.close()
        self._shared.metrics.remove_resource(self.name)
        self._shared.owners.end(self.name)  # the last: what fails before is done again

    def _tell(self, state: State, reason: str | None = None) -> None:
        self.resource_status.set(state, reason)
        if state in (State.REGISTERED, State.BACKING_OFF):
            result = REGISTRATION_RESULTS[state is State.REGISTERED]
            self._shared.metrics.registrations.labels(self.name, result).inc()
        if self._code is not None and state is State.REGISTERED:
            self._code.registered()
        if state is State.SERVING and reason is None:
            # Another instance may have served it until now.
            self._shared.owners.records.reload()
            if self.resource.inject == "cdi":
                self.trigger_scan()

    # ── what is found, and published ──

    async def apply_scan(self, snapshot: Snapshot) -> None:
        """Publish what a scan has found, after all that has to be so before."""
        if self.resource.health is None:
            self._end_checks()
        else:
            # What is offered without checks stays healthy until the first round.
            self.health = self.health or HealthMonitor(
                self.scanner, self.trigger_scan, offered=self.known.devices
            )
            self.health.watch(self.scanner, snapshot)
        if self.resource.inject == "cdi" and not self._shared.backend.locked_by_other(self.name):
            await self._injection.write(self.scanner, snapshot)  # another one has written its own
        if by_another := not self._up_to_date.is_set():
            await self._preparation.declared(self.resource)
        self.resource_status.restore()
        self._publish(self.scanner, snapshot)
        loop = asyncio.get_running_loop()
        loop.call_soon(self.count.update, self.resource, self.known)  # after the list is sent
        if by_another:  # than the last declaration
            self.published.spec_changed()
            self._up_to_date.set()
            self._changed.set()

    def _end_checks(self) -> None:
        if self.health is not None:
            self.health.close()
            self.health = None

    def _publish_again(self) -> None:
        """Publish what is known, by the declaration by which it was found."""
        self._publish(self.advertised[0], self.known)

    def _publish(self, scanner: Scanner, found: Snapshot) -> None:
        resource, device_list = scanner.resource, self.published.device_list
        known = found
        if self.draining:
            known = withdrawn(found, _REMOVED, asyncio.get_running_loop().time())
        known = without_left(known, device_list)
        # Of each device, whether it can be offered.
        snapshot = self._shared.owners.judged(resource, known)
        if self.health is not None:
            snapshot = self.health.judge(snapshot)
        if resource.inject == "cdi":
            snapshot = self._injection.judge(snapshot)
        self.advertised = scanner, snapshot
        if device_list.publish(snapshot, resource.replicas):
            self._publish(scanner, found)  # devices may have waited for IDs that have left
            return
        self.known = without_left(known, device_list)
        self.snapshot = without_left(snapshot, device_list)
        if len(self.known.devices) < len(found.devices) and not self.draining:
            self.trigger_scan()  # it does not keep the nodes of what has left from others
        self._shared.owners.published(resource, self.snapshot)
        if self._log_timer is None:
            loop = asyncio.get_running_loop()
            self._log_timer = loop.call_at(max(loop.time(), self._log_at), self._log_changes)
        if self.draining:
            holders = self._shared.holders.of(self.name)
            pods = {pod for pods in holders.values() for pod in pods}
            held = f"; held by {', '.join(sorted(pods))}" if pods else ""
            self.resource_status.override(State.DRAINING, _DRAINING + held)

    def _log_changes(self) -> None:
        self._log_timer, before, self._logged = None, self._logged, self.snapshot
        now = asyncio.get_running_loop().time()
        self._log_at = max(self._log_at, now - _LOG_BURST * _LOG_EVERY_S) + _LOG_EVERY_S
        log_changes(self.name, before, self.snapshot)

    def _held_changed(self) -> None:
        before, self._held = self._held, self._shared.holders.held(self.name)
        if self.draining:
            self._publish_again()
        elif before != self._held:
            self.trigger_scan()


class DeviceCount:
    """How many devices a resource has, and how many it should have."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.found = 0
        self.expected = 0  # `Resource.min_devices`, or the most that it had since the file changed
        self.accepted = False  # as many are expected as are found next: the file has changed

    @property
    def missing(self) -> int:
        """How many of the expected devices are missing."""
        return max(0, self.expected - self.found)

    def update(self, resource: Resource, found: Snapshot) -> None:
        """Count the devices that a scan has found."""
        if found.error is not None or any(
            skipped.verdict.cause is Cause.SETTLING for skipped in found.skipped
        ):
            return  # not the final number; another scan follows
        before, self.found = self.missing, len(found.present_devices)
        self.expected = self.found if self.accepted else max(self.found, self.expected)
        if resource.min_devices is not None:
            self.expected = resource.min_devices
        self.accepted = False
        if self.missing > before:
            fields = {"resource": self._resource, "missing": self.missing}
            _LOG.warning("devices missing", extra={"fields": fields | {"expected": self.expected}})
        elif before and not self.missing:
            fields = {"resource": self._resource}
            _LOG.info("no device is missing any longer", extra={"fields": fields})


class ResourceStatus:
    """The state of a resource, by its registration unless it is overridden; logs its changes."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._logged: Counter[tuple[State, str | None]] = Counter()
        self._overridden: Status | None = None
        self.shown = Status()
        self.registered_once = False

    def set(self, state: State, reason: str | None = None) -> None:
        """Set the state; while it is overridden, it is shown later."""
        self.registered_once = self.registered_once or state is State.REGISTERED
        if self._overridden is not None:
            self._overridden = Status(state, reason)
        else:
            self._show(state, reason)

    def override(self, state: State, reason: str) -> None:
        """Show this state, whatever is set, until `restore`."""
        self._overridden = self._overridden or self.shown
        self._show(state, reason)

    def restore(self) -> None:
        """Show the state again that was set last."""
        overridden, self._overridden = self._overridden, None
        if overridden is not None:
            self._show(overridden.state, overridden.reason)

    def _show(self, state: State, reason: str | None) -> None:
        if (state, reason) == (self.shown.state, self.shown.reason):
            return
        self.shown = Status(state, reason)
        if state is State.REGISTERED:
            self._logged.clear()
        self._logged[state, reason] += 1
        level = logging.WARNING if state is State.BACKING_OFF else logging.INFO
        transient = state in (State.SERVING, State.STOPPED)
        if transient or self._logged[state, reason] > _REPEATS_MAX:
            level = logging.DEBUG
        fields = {"resource": self._resource, "state": state}
        if reason:
            fields["reason"] = reason
        _LOG.log(level, "state", extra={"fields": fields})


def log_changes(resource: str, before: Snapshot, after: Snapshot) -> None:
    """Log devices that came, changed their health or go, what is skipped, and failures.

    What containers cannot be given is a warning.
    """

    def fields(**more: object) -> dict[str, object]:
        return {"fields": {"resource": resource, **{k: v for k, v in more.items() if v}}}

    devices = list(_device_lines(before, after))
    former = set(before.skipped)
    new = [skip for skip in after.skipped if skip not in former] if former else after.skipped
    # What is held back is offered soon, or skipped for another reason.
    skipped = [skip for skip in new if skip.verdict.cause is not Cause.SETTLING]
    # Those that are bad first: of many lines, only the first are logged.
    lines = [line for line in devices if line[0] is logging.WARNING]
    lines += [
        (logging.WARNING, "skipped", {"candidate": skip.candidate, "reason": skip.reason})
        for skip in skipped[: _LINES_MAX + 1]
    ]
    lines += [line for line in devices if line[0] is not logging.WARNING]
    for level, message, more in lines[:_LINES_MAX]:
        _CHANGES.log(level, message, extra=fields(**more))
    rest = len(devices) + len(skipped) - _LINES_MAX
    if rest > 0:
        _CHANGES.log(lines[_LINES_MAX][0], "and more", extra=fields(changes=rest))
    for note in set(after.notes) - set(before.notes):
        _CHANGES.info("host path missing", extra=fields(reason=note))
    for reason in after.explain_empty() if before.explain_empty is tuple else ():
        _CHANGES.info("no devices", extra=fields(reason=reason))
    if after.error is not None and after.error != before.error:
        _CHANGES.warning("source failed", extra=fields(reason=after.error))


def _is_unchecked(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.cause is Cause.UNCHECKED


def _device_lines(
    before: Snapshot, after: Snapshot
) -> Iterator[tuple[int, str, dict[str, object]]]:
    """Yield the level, the message and the fields of each line about a device."""
    former = {device.id: device.verdict for device in before.devices.values()}
    for device_id, device in after.devices.items():
        verdict = device.verdict
        is_bad = verdict is not None and not _is_unchecked(verdict)
        level = logging.WARNING if is_bad else logging.INFO
        fields: dict[str, object] = {"device": device_id, "reason": device.reason}
        if device_id not in former:
            yield level, "device found", fields
        elif former[device_id] != verdict:
            again = "" if _is_unchecked(former[device_id]) else " again"
            yield level, f"device is {f'healthy{again}' if device.healthy else 'unhealthy'}", fields
    for device_id in former.keys() - after.devices.keys():
        yield logging.INFO, "device leaves", {"device": device_id}


# ── pure ──


def withdrawn(snapshot: Snapshot, verdict: Verdict, now: float) -> Snapshot:
    """Return a snapshot whose devices are all leaving."""
    devices = {
        device_id: replace(device, verdict=verdict, presence=Leaving(now))
        for device_id, device in snapshot.devices.items()
    }
    return Snapshot(devices)


def without_left(snapshot: Snapshot, listed: ListedDevices) -> Snapshot:
    """Return a snapshot without the leaving devices that the kubelet's list no longer has."""
    if not any(device.is_leaving for device in snapshot.devices.values()):
        return snapshot
    listed_ids = listed.device_ids
    kept = {
        device_id: device
        for device_id, device in snapshot.devices.items()
        if not device.is_leaving or device_id in listed_ids
    }
    return replace(snapshot, devices=kept)
