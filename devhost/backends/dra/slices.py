"""Keeps the ResourceSlices of a driver on a node as they are wanted.

Everything is level-triggered: an event, a new list of devices or an answer only says that what is
there and what is wanted are to be compared again. Kubelet deletes all slices of its node when it
starts, and those of a driver 30 s after its last connection to it has gone (k8s.io/kubernetes
v1.37.1 pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, wipeResourceSlices): the watch shows it.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from devhost.backends.backend import run_together
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.node_versions import KubeNode, read_node
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
        lock: That of the resource: who has it says what is in the pool.
        is_here: Whether this process has the resource, and may take the lock.
        devices: Those that pods may be given, in order; ``None`` before the first look.
        published: Those that the API server has.
        problem: Why the last write failed.
        left_out: What the API server did not keep of what was sent, because a feature is off.
    """

    name: str
    driver: str
    lock: ResourceLock
    is_here: bool = True
    devices: Sequence[SliceDevice] | None = None
    published: Sequence[SliceDevice] | None = None
    problem: str | None = None
    left_out: str | None = None

    @property
    def wanted(self) -> Sequence[SliceDevice] | None:
        """The devices for its slices; ``None`` where that is not for this process to say.

        None are wanted of a resource that is published, but not by this driver.
        """
        if self.lock.held:
            return self.devices
        publisher = self.lock.other_publisher
        by_driver = publisher == publisher_number(self.driver)
        return None if by_driver or (publisher is None and self.is_here) else ()

    @property
    def is_published(self) -> bool:
        """Whether the API server has exactly what is wanted."""
        return self.published is not None and self.published is self.wanted

    def set_problem(self, problem: str) -> None:
        """Record why a write failed, and log it if that is another reason."""
        if problem != self.problem:
            fields = {"pool": self.name, "reason": problem}
            _LOG.warning("slices were not written", extra={"fields": fields})
        self.problem = problem


class NodeSlices:
    """The slices of a driver on a node, as they were read or written last."""

    def __init__(self, api: ApiClient, driver: str, node_name: str) -> None:
        self.api, self.driver, self.node_name = api, driver, node_name
        self._selector = f"spec.driver={driver},spec.nodeName={node_name}"
        self._by_pool: dict[str, dict[str, _Json]] = defaultdict(dict)  # and by name
        self._compared: set[str] = set()  # the pools that have what is wanted
        self._version = ""  # of the list
        self._is_read = False  # whether all that there may be were read or written
        self._turns = asyncio.Semaphore(_POOLS_AT_ONCE)

    def __len__(self) -> int:
        return sum(map(len, self._by_pool.values()))

    @property
    def pools(self) -> AbstractSet[str]:
        """The names of the pools that have slices."""
        return {pool for pool, slices in self._by_pool.items() if slices}

    def has_slices(self, pool: ResourcePool) -> bool:
        """Whether the API server may have slices of a pool that this process has to delete."""
        return pool.lock.held and not (self._is_read and pool.name not in self.pools)

    def resource_of(self, pool: str) -> str:
        """Return the resource of a pool: a device says it, where the pool's name is a hash."""
        for content in self._by_pool[pool].values():
            for device in content["spec"].get("devices") or ():
                name = device.get("attributes", {}).get("resource", {}).get("string", "")
                if pool_name(self.node_name, name) == pool:
                    return str(name)
        return pool.partition("/")[2]

    async def read(self) -> None:
        """Read all of them, or raise `ApiError`."""
        self._is_read = False
        listed = await self.api.call("GET", PATH, fieldSelector=self._selector)
        with reading_answer():
            contents = map(named_slice, filter(self._is_own, listed.get("items") or ()))
            self._by_pool.clear()
            for name, content in contents:
                self._by_pool[pool_of(content)][name] = content
            self._compared.clear()
            self._version = str(listed["metadata"]["resourceVersion"])
        self._is_read = True

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Keep up with the API server from what was read, until that raises `ApiError`."""
        silent, selector = 0, self._selector  # watches in a row that ended without an event
        try:
            while True:
                silent += 1
                async for event in self.api.watch(PATH, self._version, fieldSelector=selector):
                    silent = 0
                    with reading_answer():
                        content = event["object"]
                        self._version = content["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK" and self._is_own(content):
                            self._take(event["type"], *named_slice(content))
                            on_change()
                # All drivers of a cluster may have been cut off, and a proxy may cut each one off.
                await asyncio.sleep(_jitter(silent))
        finally:
            self._is_read = False

    def _is_own(self, content: _Json) -> bool:
        """Whether a slice is of this driver and node; a selector that is ignored gives others."""
        spec, node_name = content["spec"], self.node_name
        is_here = (spec["driver"], spec.get("nodeName")) == (self.driver, node_name)
        return is_here and pool_of(content).startswith(f"{node_name}/")

    def _take(self, kind: str, name: str, content: _Json) -> None:
        """Take over an event."""
        pool, slices = pool_of(content), self._by_pool[pool_of(content)]
        self._compared.discard(pool)
        if kind == "DELETED":
            slices.pop(name, None)
        elif name not in slices or slices[name]["metadata"] != content["metadata"]:
            slices[name] = content  # else it is our write

    def is_due(self, pool: ResourcePool) -> bool:
        """Whether a pool is to be compared, as it may not have what is wanted."""
        is_compared = pool.name in self._compared and pool.is_published
        return pool.wanted is not None and not is_compared

    async def write(self, pool: ResourcePool, node_uid: str) -> bool:
        """Write what differs from the devices of a pool; return whether there was anything.

        A failure is a problem of the pool; if the slices were others, the watch will show them.
        """
        key = PoolKey(self.driver, self.node_name, node_uid, pool.name)
        async with self._turns:
            if (devices := pool.wanted) is None:
                return False
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            needed = writes(key, devices, self._by_pool[pool.name], now)
            if not needed:
                self._compared.add(pool.name)
            try:
                left_out = [await self._send(write, pool.name) for write in needed]
            except ApiError as error:
                pool.set_problem(str(error))
            else:
                pool.published, pool.problem = devices, None
                if needed:
                    pool.left_out = next(filter(None, left_out), None)
        return bool(needed)

    async def _send(self, write: PoolWrite, pool: str) -> str | None:
        """Send a write; return what the API server did not keep of it, or raise `ApiError`."""
        path = PATH if write.verb == "POST" else f"{PATH}/{quote(write.name, safe='')}"
        answer = await self.api.call(write.verb, path, write.body)
        _LOG.info("slice written", extra={"fields": {"verb": write.verb, "slice": write.name}})
        if write.body is None:
            self._by_pool[pool].pop(write.name, None)
            return None
        with reading_answer():
            # What the API server leaves out, because a feature is off, is not sent again and again.
            sent, kept = write.body["spec"], answer["spec"]
            name, content = named_slice({**answer, "spec": sent})
            self._by_pool[pool][name] = content
            return _difference(sent["devices"], kept.get("devices") or ())


class NodePools:
    """The pools of a driver on a node: those of the resources here, and others that have slices."""

    def __init__(self, locks: ResourceLocks, driver: str) -> None:
        self.locks, self._driver = locks, driver
        self.here: dict[str, ResourcePool] = {}  # by name
        self.unowned: dict[str, ResourcePool] = {}

    def __iter__(self) -> Iterator[ResourcePool]:
        return iter((*self.here.values(), *self.unowned.values()))

    def new(self, name: str, resource: str) -> ResourcePool:
        """Return the pool of a resource."""
        return ResourcePool(name, self._driver, self.locks.get(resource))

    def find_unowned(self, slices: NodeSlices) -> None:
        """Find those that have slices only, once all resources have been looked at."""
        names = slices.pools - self.here.keys()
        if any(pool.devices is None for pool in self.here.values()):
            names &= self.unowned.keys()
        former, self.unowned = self.unowned, {}
        for name in names:
            lock = self.locks.get(slices.resource_of(name))
            pool = ResourcePool(name, self._driver, lock, is_here=False, devices=())
            self.unowned[name] = former.get(name, pool)


class SliceWriter:
    """Writes the slices of a node each time that they may differ from what is wanted.

    While `find_problem` returns a problem of the driver, slices are only deleted.

    Attributes:
        problem: Why nothing can be written.
        node: That of the slices.
        changed: Set when a pool may have another state; another one after each change.
    """

    def __init__(
        self, slices: NodeSlices, locks: ResourceLocks, find_problem: Callable[[], str | None]
    ) -> None:
        self.slices, self.pools = slices, NodePools(locks, slices.driver)
        self._find_problem = find_problem
        self.problem: str | None = "the API server was not asked yet"
        self.node = KubeNode("", None)
        self.changed, self._due = asyncio.Event(), asyncio.Event()  # to compare
        self._failures = self._watch_failures = 0  # in a row

    def compare_soon(self) -> None:
        """Compare what is there with what is wanted."""
        self._due.set()

    def report_change(self) -> None:
        """Wake the publications, whose states may have changed."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def run(self) -> None:
        """Read, follow and write until cancelled."""
        while True:
            try:
                await self.slices.read()
                # Before it is followed: the API server may refuse to be watched alone.
                failures = await self._compare()
                await run_together(
                    self._follow(), self._follow_locks(), self._write_changes(failures)
                )
            except DevhostError as error:
                self._failures += 1
                if self._failures > 1:  # else it may only be that a watch could not go on
                    self._set_problem(str(error))
            await asyncio.sleep(_jitter(self._failures))

    async def _follow(self) -> None:
        good = asyncio.get_running_loop().call_later(_WATCH_GOOD_S, self._trust_watch)
        try:
            await self.slices.follow(self.compare_soon)
        except ApiError:
            self._watch_failures += 1
            raise
        finally:
            good.cancel()

    async def _follow_locks(self) -> None:
        """Compare what is published elsewhere, or nowhere, when locks may be other ones."""
        while True:
            await self.pools.locks.looked.wait()
            # What is published here is compared by who publishes it, and after a failure in time.
            pools = (pool for pool in self.pools if not (pool.is_here and pool.lock.held))
            if any(map(self.slices.is_due, pools)):
                self.compare_soon()

    def _trust_watch(self) -> None:
        self._failures, self._watch_failures, self.problem = 0, 0, None
        self.report_change()

    async def _write_changes(self, failures: int) -> None:
        """Write what differs after each change, and after a pause what has failed."""
        while True:
            await wait_at_most(_jitter(failures) if failures else None, self._due.wait)
            await asyncio.sleep(_SETTLE_S)
            failures = await self._compare(failures)

    async def _compare(self, failures: int = 0) -> int:
        """Write what differs; return how often in a row that has failed by now."""
        self._due.clear()
        self.pools.find_unowned(self.slices)
        if pools := [*filter(self.slices.is_due, self.pools)]:
            # Kubelet may be of another version, and the API server deletes the slices of a node
            # that has gone: they would be written again without end.
            self.node = await read_node(self.slices.api, self.slices.node_name)
        self._failures = self._watch_failures
        if self._failures < 2:
            self.problem = None
        if self._find_problem() is not None:
            pools = [pool for pool in pools if not pool.wanted]
        works = [self.slices.write(pool, self.node.uid) for pool in pools]
        async with asyncio.TaskGroup() as tasks:
            written = [*map(tasks.create_task, works)]
        self.report_change()
        if any(task.result() for task in written):
            await asyncio.sleep(_BETWEEN_WRITES_S)
        return failures + 1 if any(pool.problem for pool in pools) else 0

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            _LOG.warning("slices cannot be written", extra={"fields": {"reason": problem}})
        self.problem = problem
        self.report_change()


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
