"""Keeps the ResourceSlices of a driver on a node as they are wanted.

Everything is level-triggered: an event, a new list of devices or an answer only says that what is
there and what is wanted are to be compared again. Kubelet deletes all slices of its node when it
starts, and those of a driver 30 s after its last connection to it has gone (k8s.io/kubernetes
v1.37.1 pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, wipeResourceSlices): the watch shows it.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from devhost.backends.backend import run_together
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.pool import (
    PoolKey,
    PoolWrite,
    SliceDevice,
    named_slice,
    pool_name,
    pool_of,
    writes,
)
from devhost.backends.resource_lock import ResourceLock, ResourceLocks, publisher_number
from devhost.errors import DevhostError
from devhost.watch.threads import wait_at_most

_Json = dict[str, Any]
PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
_SETTLE_S: Final = 0.1  # a burst of changes is written together
_BETWEEN_WRITES_S: Final = 1.0
_PAUSE_S, _PAUSE_MAX_S = 0.75, 60.0  # after a failure
_WATCH_GOOD_S: Final = 20.0  # watches that fail later do not make many requests
_POOLS_AT_ONCE: Final = 8
_LOG: Final = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ResourcePool:
    """The pool of a resource, and how far the API server has it.

    Attributes:
        lock: That of the resource: who has it writes the pool.
        has_lock: Whether it was taken, and not seen to be lost since.
        is_dead: Whether another process has it that does not publish by this driver: then what
            there is of the pool goes.
        devices: Those that pods may be given, in order; ``None`` before the first look.
        published: Those that the API server has.
        problem: Why the last write failed.
        left_out: What the API server did not keep of what was sent, because a feature is off.
    """

    name: str
    lock: ResourceLock
    has_lock: bool = False
    is_dead: bool = False
    devices: Sequence[SliceDevice] | None = None
    published: Sequence[SliceDevice] | None = None
    problem: str | None = None
    left_out: str | None = None

    @property
    def is_published(self) -> bool:
        """Whether the API server has exactly what is wanted."""
        return self.devices is not None and self.published is self.devices

    def set_problem(self, problem: str) -> None:
        """Record why a write failed, and log it if that is another reason."""
        if problem != self.problem:
            fields = {"pool": self.name, "reason": problem}
            _LOG.warning("slices were not written", extra={"fields": fields})
        self.problem = problem


class NodeSlices:
    """The slices of a driver on a node, as they were read or written last."""

    def __init__(self, api: ApiClient, driver: str, node_name: str) -> None:
        self._api, self.driver, self._node_name = api, driver, node_name
        self._selector = f"spec.driver={driver},spec.nodeName={node_name}"
        self._by_name: dict[str, _Json] = {}
        self._by_pool: dict[str, dict[str, _Json]] = {}  # the same; none without slices
        self._compared: dict[str, str] = {}  # the node's UID, by pool that has what is wanted
        self._version = ""  # of the list
        self._turns = asyncio.Semaphore(_POOLS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def pools(self) -> AbstractSet[str]:
        """The names of the pools that have slices."""
        return self._by_pool.keys()

    def resource_of(self, pool: str) -> str:
        """Return the resource of a pool: a device says it, where the pool's name is a hash."""
        for content in self._by_pool.get(pool, {}).values():
            for device in content["spec"].get("devices") or ():
                name = device.get("attributes", {}).get("resource", {}).get("string", "")
                if pool_name(self._node_name, name) == pool:
                    return str(name)
        return pool.partition("/")[2]

    async def read(self) -> None:
        """Read all of them, or raise `ApiError`."""
        listed = await self._api.call("GET", PATH, fieldSelector=self._selector)
        with reading_answer():
            contents = map(named_slice, filter(self._is_own, listed.get("items") or ()))
            self._by_name, self._by_pool = {}, {}
            for name, content in contents:
                self._set(name, content)
            self._compared.clear()
            self._version = str(listed["metadata"]["resourceVersion"])

    async def follow(self, on_change: Callable[[bool], None]) -> None:
        """Keep up with the API server from what was read, until that raises `ApiError`.

        `on_change` gets whether a slice was deleted by others.
        """
        silent = 0  # watches in a row that ended without an event
        while True:
            silent += 1
            async for event in self._api.watch(PATH, self._version, fieldSelector=self._selector):
                silent = 0
                with reading_answer():
                    content = event["object"]
                    self._version = content["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK" and self._is_own(content):
                        on_change(self._take(event["type"], *named_slice(content)))
            # All drivers of a cluster may have been cut off, and a proxy may cut each watch off.
            await asyncio.sleep(_jitter(silent))

    def _is_own(self, content: _Json) -> bool:
        """Whether a slice is of this driver and node; a selector that is ignored gives others."""
        spec, node_name = content["spec"], self._node_name
        is_here = (spec["driver"], spec.get("nodeName")) == (self.driver, node_name)
        return is_here and pool_of(content).startswith(f"{node_name}/")

    def _take(self, kind: str, name: str, content: _Json) -> bool:
        former = self._by_name.get(name)
        for changed in filter(None, (former, content)):
            self._compared.pop(pool_of(changed), None)
        if kind == "DELETED":
            self._set(name, None)
            return former is not None
        if former is None or former["metadata"] != content["metadata"]:  # else it is our write
            self._set(name, content)
        return False

    def _set(self, name: str, content: _Json | None) -> None:
        """Set a slice, or remove it."""
        if (former := self._by_name.pop(name, None)) is not None:
            pool = pool_of(former)
            del self._by_pool[pool][name]
            if not self._by_pool[pool]:
                del self._by_pool[pool]
        if content is not None:
            self._by_name[name] = content
            self._by_pool.setdefault(pool_of(content), {})[name] = content

    def is_written(self, pool: ResourcePool, node_uid: str) -> bool:
        """Whether a pool was compared, and nothing has changed since."""
        is_published = pool.has_lock and pool.is_published
        return is_published and self._compared.get(pool.name) == node_uid

    async def write(self, pool: ResourcePool, node_uid: str) -> bool:
        """Write what differs from the devices of a pool; return whether there was anything.

        A failure is a problem of the pool; if the slices were others, the watch will show them.
        """
        key = PoolKey(self.driver, self._node_name, node_uid, pool.name)
        async with self._turns:
            devices = pool.devices if pool.has_lock else () if pool.is_dead else None
            if devices is None:
                return False
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            needed = writes(key, devices, self._by_pool.get(pool.name, {}), now)
            if needed and pool.has_lock and not pool.lock.held:
                pool.has_lock = False  # its file was removed
                return False
            if not needed:
                self._compared[pool.name] = node_uid
            try:
                left_out = [await self._send(write) for write in needed]
            except ApiError as error:
                pool.set_problem(str(error))
            else:
                pool.published, pool.problem = devices, None
                if needed:
                    pool.left_out = next(filter(None, left_out), None)
        return bool(needed)

    async def _send(self, write: PoolWrite) -> str | None:
        """Send a write; return what the API server did not keep of it, or raise `ApiError`."""
        path = PATH if write.verb == "POST" else f"{PATH}/{quote(write.name, safe='')}"
        answer = await self._api.call(write.verb, path, write.body)
        _LOG.info("slice written", extra={"fields": {"verb": write.verb, "slice": write.name}})
        if write.body is None:
            self._set(write.name, None)
            return None
        with reading_answer():
            # What the API server leaves out, because a feature is off, is not sent again and again.
            sent, kept = write.body["spec"], answer["spec"]
            self._set(*named_slice({**answer, "spec": sent}))
            return _difference(sent["devices"], kept.get("devices") or ())


class PoolLocks:
    """The locks of the pools of a driver, where each pool is a user of its resource's.

    `on_change` is called when there may be something to write of a pool.

    Attributes:
        unowned: The pools that have slices, but no resource here: they are to be deleted.
    """

    def __init__(self, locks: ResourceLocks, driver: str, on_change: Callable[[], None]) -> None:
        self._locks, self._driver, self._on_change = locks, driver, on_change
        self.unowned: dict[str, ResourcePool] = {}

    async def wait_until_taken(self, pool: ResourcePool, show: Callable[[str], None]) -> None:
        """Wait while another instance of devhost publishes the resource, or raise `OSError`."""

        def waiting(reason: str) -> None:
            show(reason)
            self.set_taken(pool, is_taken=False)

        await self._locks.wait_until_locked(pool.lock, pool, self._driver, waiting)
        self.set_taken(pool, is_taken=True)

    def set_taken(self, pool: ResourcePool, *, is_taken: bool) -> None:
        """Set whether this process has the lock of a pool, and look who else has it."""
        was_dead, pool.has_lock = pool.is_dead, is_taken
        publishers_of_pool = None, publisher_number(self._driver)
        pool.is_dead = not is_taken and pool.lock.other_publisher not in publishers_of_pool
        if is_taken or (pool.is_dead and not was_dead):
            self._on_change()

    def add_unowned(self, name: str, resource: str) -> None:
        """Add a pool that has slices, but no resource here."""
        self.unowned[name] = ResourcePool(name, self._locks.get(resource), devices=())

    def release_unowned(self, names: Iterable[str]) -> None:
        """Release the locks of pools that are not to be deleted any longer."""
        for name in [*names]:
            pool = self.unowned.pop(name)
            pool.lock.release(pool)

    async def keep_unowned(self) -> None:
        """Take the locks of unowned pools when other instances free them, until cancelled."""
        while True:
            await self._locks.looked.wait()
            self.take_unowned()

    def take_unowned(self) -> None:
        """Take the locks of unowned pools that no other instance has."""
        for pool in self.unowned.values():
            if not pool.has_lock:
                with contextlib.suppress(OSError):
                    is_taken = pool.lock.join(pool) or pool.lock.acquire(pool, self._driver)
                    self.set_taken(pool, is_taken=is_taken)


class SliceWriter:
    """Writes the slices of a node each time that they may differ from what is wanted.

    `read_node` returns the UID of the node and a warning, or raises `DevhostError` where nothing
    may be published; while `find_problem` returns one, slices are only deleted; `on_change` is
    called when a pool may have another state.

    Attributes:
        pools: Those of the resources of this process, by name.
        problem: Why nothing can be written.
        node_warning: Why containers may not get devices though they are published.
    """

    def __init__(
        self,
        slices: NodeSlices,
        locks: ResourceLocks,
        read_node: Callable[[], Awaitable[tuple[str, str | None]]],
        find_problem: Callable[[], str | None],
        on_change: Callable[[], None],
    ) -> None:
        self._slices, self._read_node, self._on_change = slices, read_node, on_change
        self._find_problem = find_problem
        self.pools: dict[str, ResourcePool] = {}
        self.locks = PoolLocks(locks, slices.driver, self.compare_soon)
        self.problem: str | None = "the API server was not asked yet"
        self._is_read = False  # whether all slices that there may be were read or written
        self._changed, self._is_node_read = asyncio.Event(), False
        self.node_warning: str | None = None
        self._failures = self._watch_failures = 0  # in a row
        self._written = asyncio.Event()  # what differed from the last list

    def has_slices(self, pool: ResourcePool) -> bool:
        """Whether the API server may have slices of a pool that this instance has to delete."""
        return pool.has_lock and (not self._is_read or pool.name in self._slices.pools)

    def compare_soon(self, *, reads_node: bool = False) -> None:
        """Compare what is there with what is wanted, by the node as it is then if `reads_node`."""
        self._is_node_read = self._is_node_read and not reads_node
        self._changed.set()

    async def run(self) -> None:
        """Read, follow and write until cancelled."""
        try:
            while True:
                try:
                    await self._slices.read()
                    self._is_read = True
                    self.compare_soon(reads_node=True)
                    self._written.clear()
                    works = self._follow(), self._write_changes(), self.locks.keep_unowned()
                    await run_together(*works)
                except DevhostError as error:
                    # Other errors are of the node, such as a kubelet that is too old.
                    self._is_read = not isinstance(error, ApiError)
                    self._failures += 1
                    if self._failures > 1:  # else it may only be that a watch could not go on
                        self._set_problem(str(error))
                await asyncio.sleep(_jitter(self._failures))
        finally:
            self.locks.release_unowned(self.locks.unowned)

    async def _follow(self) -> None:
        """Follow the API server once it has what differs: it may refuse to be watched alone."""
        await self._written.wait()
        good = asyncio.get_running_loop().call_later(_WATCH_GOOD_S, self._trust_watch)
        try:
            # The API server deletes the slices of a node that has gone: without another look at
            # the node, they would be written again without end.
            await self._slices.follow(lambda is_deleted: self.compare_soon(reads_node=is_deleted))
        except ApiError:
            self._watch_failures += 1
            raise
        finally:
            good.cancel()

    def _trust_watch(self) -> None:
        self._failures, self._watch_failures, self.problem = 0, 0, None
        self._on_change()

    async def _write_changes(self) -> None:
        """Write what differs after each change, and after a pause what has failed."""
        node_uid, failures = "", 0
        while True:
            await wait_at_most(_jitter(failures) if failures else None, self._changed.wait)
            await asyncio.sleep(_SETTLE_S)
            self._changed.clear()
            if not self._is_node_read:
                self._is_node_read = True
                node_uid, self.node_warning = await self._read_node()
            self._failures = self._watch_failures
            if self._failures < 2:
                self.problem = None
            self._find_unowned()
            pools_here = *self.pools.values(), *self.locks.unowned.values()
            for pool in pools_here:
                if pool.is_dead:  # since the last look an instance of the driver may have it
                    self.locks.set_taken(pool, is_taken=False)
            pools = [pool for pool in pools_here if not self._slices.is_written(pool, node_uid)]
            if self._find_problem():
                pools = [pool for pool in pools if pool.is_dead or not pool.devices]
            async with asyncio.TaskGroup() as tasks:
                written = [tasks.create_task(self._slices.write(pool, node_uid)) for pool in pools]
            failures = failures + 1 if any(pool.problem for pool in pools) else 0
            self._on_change()
            self._written.set()
            if any(task.result() for task in written):
                await asyncio.sleep(_BETWEEN_WRITES_S)

    def _find_unowned(self) -> None:
        """Find the pools that no resource here has, once all resources have been looked at."""
        unowned = self._slices.pools - self.pools.keys()
        self.locks.release_unowned(self.locks.unowned.keys() - unowned)
        if all(pool.devices is not None for pool in self.pools.values()):
            for name in unowned - self.locks.unowned.keys():
                self.locks.add_unowned(name, self._slices.resource_of(name))
            self.locks.take_unowned()

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            _LOG.warning("slices cannot be written", extra={"fields": {"reason": problem}})
        self.problem = problem
        self._on_change()


def _jitter(failures: int) -> float:
    # So slowly that what works again is seen after no longer than it has failed.
    longest = min(_PAUSE_S * 1.5 ** min(failures - 1, 20), _PAUSE_MAX_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 (no herd)


def _difference(sent: Sequence[SliceDevice], kept: Sequence[SliceDevice]) -> str | None:
    """Return what an answer lacks of what was sent, or ``None``."""
    for sent_device, kept_device in zip(sent, kept, strict=False):
        for field, value in sent_device.items():
            if kept_device.get(field) != value:
                return f"the API server did not keep `{field}` of device {sent_device['name']}"
    return None
