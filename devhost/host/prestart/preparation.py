"""Prepares devices before a container starts: once per holder, and never on a guess.

The proof that a device was free is kubelet's own Allocate for it: it comes when an ID is allocated
to a new pod, and neither when a container restarts nor when kubelet does. Others who reach the
socket can send one as well. So where a pod held the device by the last lists of pod-resources,
kubelet is asked once more before the answer: while it allocates a device itself, it lists the
device for no pod. If pod-resources does not list a device, that alone proves nothing: a kubelet
that has just started lists only part of its pods.
"""

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devhost.allocation import pre_start
from devhost.allocation.policy import Policy
from devhost.errors import KubeletError, PreStartError
from devhost.host.prestart.holder_records import Fresh, HolderRecords
from devhost.host.prestart.holder_rules import (
    Task,
    TwoHandsError,
    named,
    only_holder,
    task_of,
)
from devhost.host.prestart.steps import Start, refuse_in_use, run_step
from devhost.hostfs.files import HostFiles
from devhost.kubelet.podresources import HeldBy
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import FileKind, HostDevice
from devhost.model.names import distinct, without_share
from devhost.threads import BlockingCalls

WITHIN_S: Final = 28.0  # kubelet gives up at 30 s

ListHolders = Callable[[str], Awaitable[HeldBy]]
StillHeld = Callable[[str, Sequence[str]], Awaitable[HeldBy]]


async def _nobody(_resource: str, _ids: Sequence[str]) -> HeldBy:
    return {}


_LOG: Final = logging.getLogger(__name__)
_NOTHING_KEPT: Final = Task({}, unprepared=False)


class Preparation:
    """Prepares the devices of one resource, by any of its declarations.

    Args:
        name: The resource's name.
        node_name: The node's name.
        files: Where the host's files are.
        policy: What a configuration may ask for.
        holders: Returns the pods (``namespace/name``) that hold each advertised ID of a resource
            now, or raises `KubeletError`; ``None`` without ``--pod-resources``.
        still_held: Returns the pods that hold IDs of a resource while these are allocated.
        state_dir: Where records outlive the process, and devices are locked.
        within: Seconds that all steps of a start may take.
    """

    def __init__(
        self,
        name: str,
        *,
        node_name: str,
        files: HostFiles,
        policy: Policy,
        holders: ListHolders | None,
        state_dir: Path | None,
        still_held: StillHeld = _nobody,
        within: float = WITHIN_S,
    ) -> None:
        self._name, self._files, self._policy = name, files, policy
        self._constants = {"resource": name, "nodeName": node_name}
        self._holders, self._still_held, self._within = holders, still_held, within
        self._records = HolderRecords(name, state_dir)
        self._device_locks = state_dir / "locks" if state_dir else None
        self._calls = BlockingCalls(f"preStart {name}")
        self._unrecorded = False

    @functools.cached_property  # most resources prepare nothing
    def _locks(self) -> weakref.WeakValueDictionary[str, asyncio.Lock]:
        return weakref.WeakValueDictionary()

    async def declared(self, resource: Resource) -> None:
        """Set the declaration by which the resource is served from now on; never fails.

        To be awaited before kubelet can learn of it. Without a step for holders containers start
        without records, so that former records would be wrong when such a step is added again.
        """
        # An Allocate by the former declaration that still runs must not leave a mark, either.
        self._unrecorded = not pre_start.keeps_records(resource)
        if self._unrecorded:
            await self._records.forget()

    async def ended(self) -> None:
        """Drop the records of a resource that is no longer served; never fails."""
        await self._records.forget()

    async def allocated(self, resource: Resource, ids: Sequence[str]) -> None:
        """Record that advertised IDs are allocated, before Allocate is answered.

        Never fails, and takes at most 4 s.
        """
        if pre_start.keeps_records(resource) and not self._unrecorded:
            held = await self._still_held(self._name, ids)
            await self._records.mark_fresh(ids, held)
            if held:
                fields = {"resource": self._name, "ids": names.natural(held)}
                _LOG.warning("allocated devices that a pod holds", extra={"fields": fields})

    async def prepare(
        self, resource: Resource, devices: Mapping[str, HostDevice], ids: Sequence[str]
    ) -> str | None:
        """Run the steps before a container starts with advertised IDs.

        If it is cancelled, running commands are killed.

        Args:
            resource: The declaration.
            devices: The resource's present devices.
            ids: The container's IDs.

        Returns:
            The pod (``namespace/name``), if a step needed it.

        Raises:
            PreStartError: The container must not start; the text says why.
        """
        deadline = asyncio.get_running_loop().time() + self._within
        chosen = _present(devices, ids)
        async with self._alone(sorted(chosen), deadline):
            pod, tasks = None, dict.fromkeys(chosen, _NOTHING_KEPT)
            if pre_start.keeps_records(resource):
                pod, tasks = await self._judge(ids, deadline)
            else:
                await self._records.forget()
            failures: dict[str, str] = {}
            async with asyncio.TaskGroup() as group:
                for device, own in pre_start.numbered(chosen.values()):
                    start = Start(
                        resource=self._name,
                        device=device,
                        constants={**self._constants, **own},
                        files=self._files,
                        policy=self._policy,
                        deadline=deadline,
                        pod=pod,
                        calls=self._calls,
                        locks=self._device_locks,
                    )
                    group.create_task(_run(resource, start, tasks[device.id], failures))
            reasons = names.natural(failures.values())
            if pod is not None:
                done = [task.fresh for one, task in tasks.items() if one not in failures]
                reasons += await self._assign(pod, done)
        if reasons:
            raise PreStartError("; ".join(reasons))
        return pod

    @contextlib.asynccontextmanager
    async def _alone(self, device_ids: Sequence[str], deadline: float) -> AsyncIterator[None]:
        """Exclude other starts of the same devices; IDs are sorted, which avoids deadlocks."""
        async with contextlib.AsyncExitStack() as stack:
            for device_id in device_ids:
                lock = self._locks.setdefault(device_id, asyncio.Lock())
                try:
                    async with asyncio.timeout_at(deadline):
                        await stack.enter_async_context(lock)
                except TimeoutError:
                    raise PreStartError(
                        f"device {device_id} is still being prepared for another start"
                    ) from None
            yield

    # ── the pod, and its tasks ──

    async def _judge(self, ids: Sequence[str], deadline: float) -> tuple[str, dict[str, Task]]:
        held = await self._held(ids, deadline)
        try:
            pod = only_holder(held, ids)
        except TwoHandsError:
            # When one pod is gone, the mark of the other would remain.
            with contextlib.suppress(OSError):
                await self._records.drop(ids)
            raise
        try:
            records = await self._records.read()
        except OSError as error:
            raise PreStartError(
                f"the holder record of {named(ids)} cannot be read: {error}"
            ) from None
        kept = "" if self._records.durable else "; --state-dir would have kept it"
        grouped: dict[str, list[str]] = {}
        for one in ids:
            grouped.setdefault(without_share(one), []).append(one)
        return pod, {
            device_id: task_of(device_id, own, pod, held, records, kept)
            for device_id, own in grouped.items()
        }

    async def _held(self, ids: Sequence[str], deadline: float) -> HeldBy:
        unknown = f"cannot tell which pod starts with {named(ids)}"
        if self._holders is None:
            raise PreStartError(
                f"{unknown}: a step that runs once per holder needs --pod-resources "
                "(or say `every: start` on the step)"
            )
        try:
            async with asyncio.timeout_at(deadline):
                return await self._holders(self._name)
        except KubeletError as error:
            raise PreStartError(f"{unknown}: the socket of --pod-resources: {error}") from None
        except TimeoutError:
            text = f"{unknown}: the socket of --pod-resources did not answer in time"
            raise PreStartError(text) from None

    async def _assign(self, pod: str, fresh: Iterable[Mapping[str, Fresh]]) -> list[str]:
        together = {one: record for records in fresh for one, record in records.items()}
        if not together:
            return []
        try:
            await self._records.assign(together, pod)
        except PreStartError as error:
            return [str(error)]
        except OSError as error:
            return [f"cannot save that {named(together)} is prepared for {pod}: {error}"]
        return []


def _present(devices: Mapping[str, HostDevice], ids: Iterable[str]) -> dict[str, HostDevice]:
    found = {}
    for device_id in distinct(ids):
        device = devices.get(device_id)
        if device is None or (device.missing_since is not None and not device.replaced):
            why = f": {device.reason}" if device and device.reason else ""
            raise PreStartError(f"device {device_id} is missing{why}")
        found[device_id] = device
    return found


async def _run(resource: Resource, start: Start, task: Task, failures: dict[str, str]) -> None:
    """Run a device's steps in order; add the reason of a failure to ``failures``."""
    steps = [
        (number, step)
        for number, step in enumerate(resource.pre_start)
        if task.unprepared or step.every == "start"
    ]
    try:
        if any(step.run and step.every == "holder" for _, step in steps):
            _refuse_shared(start.device, task.others)
            await refuse_in_use(start)
        for number, step in steps:
            await run_step(number, step, start)
    except PreStartError as error:
        failures[start.device.id] = str(error)


def _refuse_shared(device: HostDevice, others: frozenset[str]) -> None:
    if others and any(node.state and node.state.kind is FileKind.BLOCK for node in device.nodes):
        raise PreStartError(
            f"device {device.id} is in use by {', '.join(sorted(others))}: it is not prepared again"
        )
