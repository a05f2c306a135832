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
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.pool import (
    PoolKey,
    PoolWrite,
    SliceDevice,
    named_slice,
    pool_of,
    writes,
)

_Json = dict[str, Any]
PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
_SETTLE_S: Final = 0.1  # a burst of changes is written together
_BETWEEN_WRITES_S: Final = 1.0  # of a pool
_PAUSE_S, _PAUSE_MAX_S = 0.5, 60.0  # after a failure, with full jitter
_POOLS_AT_ONCE: Final = 8
_CONFLICTS_MAX: Final = 3
_LOG: Final = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class WantedPool:
    """The pool of a resource.

    Attributes:
        devices: Those that pods may be given, by advertised ID; ``None`` before the first look.
        confirmed: Whether the API server has had exactly these.
        problem: Why the API server refused a write.
        left_out: What the API server did not keep of what was sent, because a feature is off.
        not_before: When it may be written again, on the event loop's clock.
        refusals: How many writes were refused in a row.
    """

    devices: Mapping[str, SliceDevice] | None = None
    confirmed: bool = False
    problem: str | None = None
    left_out: str | None = None
    not_before: float = 0.0
    refusals: int = 0


class SliceWriter:
    """The slices of a driver on a node.

    `connect` is called before each list: it returns the UID of the node, ``None`` while nothing may
    be published, or raises `ApiError`. `on_change` is called when a pool may have another state.

    Attributes:
        pools: What is wanted, by the pool's name.
        problem: Why the API server cannot be asked.
        may_write: Whether this instance is the one that publishes.
        requests: How many writes were answered, by verb and HTTP status.
    """

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node_name: str,
        connect: Callable[[], Awaitable[str | None]],
        on_change: Callable[[], None],
    ) -> None:
        self._api, self._driver, self._node_name = api, driver, node_name
        self._connect, self._on_change = connect, on_change
        self.pools: dict[str, WantedPool] = {}
        self.problem: str | None = "the API server was not asked yet"
        self.may_write = False
        self.requests: Counter[tuple[str, int]] = Counter()
        self._present: dict[str, _Json] = {}  # by name, as read or written last
        self._changed, self._again = asyncio.Event(), asyncio.Event()
        self._failures = 0

    def __len__(self) -> int:
        return len(self._present)

    def want(self, pool: str, devices: Mapping[str, SliceDevice]) -> None:
        """Publish these devices in a pool, in this order."""
        wanted = self.pools[pool]
        if wanted.devices is None or [*wanted.devices.items()] != [*devices.items()]:
            wanted.devices, wanted.confirmed = devices, False
            self.compare_soon()

    def has_slices(self, pool: str) -> bool:
        """Whether the API server may have slices of a pool that this instance has to delete."""
        if not self.may_write:
            return False
        return self.problem is not None or pool in map(pool_of, self._present.values())

    def compare_soon(self) -> None:
        """Compare what is there with what is wanted."""
        self._changed.set()

    def reconnect(self) -> None:
        """Begin again, with what `connect` asks for."""
        self._again.set()

    # ── reading ──

    async def run(self) -> None:
        """Read, follow and write until cancelled."""
        while True:
            self._again.clear()
            pause = 0.0
            try:
                if (node_uid := await self._connect()) is not None:
                    await self._session(node_uid)
                else:
                    self.problem, pause = None, _PAUSE_MAX_S
            except ApiError as error:
                is_outdated = error.status in (409, 410)  # the list is, once or twice
                if not is_outdated or self._failures > _CONFLICTS_MAX:
                    self._set_problem(str(error))
                pause = max(_jitter(self._failures), error.retry_after)
                self._failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()

    async def _session(self, node_uid: str) -> None:
        """Keep the slices until something fails or `reconnect` is called."""
        selector = f"spec.driver={self._driver},spec.nodeName={self._node_name}"
        listed = await self._api.call("GET", PATH, fieldSelector=selector)
        with reading_answer():
            self._present = dict(map(named_slice, listed.get("items") or ()))
            version = str(listed["metadata"]["resourceVersion"])
        self._set_problem(None)
        self.compare_soon()
        works = self._follow(version, selector), self._write_all(node_uid), self._again.wait()
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, version: str, selector: str) -> None:
        while True:
            async for event in self._api.watch(PATH, version, fieldSelector=selector):
                with reading_answer():
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["type"], *named_slice(event["object"]))
                self.compare_soon()
            await asyncio.sleep(_jitter(0))  # all drivers of a cluster may have been cut off

    def _take(self, kind: str, name: str, content: _Json) -> None:
        former = self._present.get(name)
        if kind == "DELETED":
            self._present.pop(name, None)
        elif former is None or _version(former) != _version(content):
            self._present[name] = content

    # ── writing ──

    async def _write_all(self, node_uid: str) -> None:
        limit = asyncio.Semaphore(_POOLS_AT_ONCE)

        async def write(pool: str, present: Mapping[str, _Json]) -> None:
            key = PoolKey(self._driver, self._node_name, node_uid, pool)
            async with limit:
                await self._write_pool(key, present)

        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_S)
            self._changed.clear()
            if self.may_write:
                try:
                    async with asyncio.TaskGroup() as tasks:
                        for pool, present in self._by_pool().items():
                            tasks.create_task(write(pool, present))
                except* ApiError as errors:
                    raise errors.exceptions[0] from None
            self._on_change()

    def _by_pool(self) -> Mapping[str, Mapping[str, _Json]]:
        """Return the slices of each pool; of pools that nobody has once all have been looked at."""
        by_pool: dict[str, dict[str, _Json]] = {pool: {} for pool in self.pools}
        have_looked = all(wanted.devices is not None for wanted in self.pools.values())
        for name, content in self._present.items():
            if (pool := pool_of(content)) in self.pools or have_looked:
                by_pool.setdefault(pool, {})[name] = content
        return by_pool

    async def _write_pool(self, key: PoolKey, present: Mapping[str, _Json]) -> None:
        """Write what differs, unless that is too early: then it is compared again in time."""
        wanted = self.pools.get(key.name) or WantedPool({})
        if (devices := wanted.devices) is None:
            return
        needed, loop = writes(key, [*devices.values()], present), asyncio.get_running_loop()
        if needed and loop.time() < wanted.not_before:
            loop.call_at(wanted.not_before, self.compare_soon)
            return
        if needed:
            wanted.left_out = None
        for write in needed:
            wanted.not_before = loop.time() + _BETWEEN_WRITES_S
            try:
                await self._send(write, wanted)
                fields = {"verb": write.verb, "pool": key.name, "slice": write.name}
                _LOG.info("slice written", extra={"fields": fields})
            except ApiError as error:
                if not error.is_refusal:
                    raise
                self._refused(key.name, wanted, error)
                return
        wanted.refusals, self._failures, wanted.problem = 0, 0, None
        wanted.confirmed = wanted.devices is devices

    def _refused(self, pool: str, wanted: WantedPool, error: ApiError) -> None:
        loop = asyncio.get_running_loop()
        wanted.not_before = loop.time() + max(_jitter(wanted.refusals), error.retry_after)
        wanted.refusals, wanted.confirmed = wanted.refusals + 1, False
        if wanted.problem != str(error):
            fields = {"pool": pool, "reason": str(error)}
            _LOG.warning("the API server refused a slice", extra={"fields": fields})
        wanted.problem = str(error)
        loop.call_at(wanted.not_before, self.compare_soon)

    async def _send(self, write: PoolWrite, wanted: WantedPool) -> None:
        is_new = write.verb == "POST"
        path, status = PATH if is_new else f"{PATH}/{write.name}", 201 if is_new else 200
        try:
            answer = await self._api.call(write.verb, path, write.body)
        except ApiError as error:
            status = error.status
            if (write.verb, status) != ("DELETE", 404):
                raise
            answer = {}
        finally:
            self.requests[write.verb, status] += 1
        if write.body is None:
            self._present.pop(write.name, None)
            return
        # What the API server has left out, because a feature is off, would be sent again and again.
        with reading_answer():
            self._present |= [named_slice({**answer, "spec": write.body["spec"]})]
            wanted.left_out = wanted.left_out or _difference(write.body["spec"], answer["spec"])

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            fields = {"reason": problem}
            _LOG.warning("the API server cannot be asked", extra={"fields": fields})
        self.problem = problem
        self._on_change()


def _jitter(failures: int) -> float:
    return random.uniform(0.0, min(_PAUSE_S * 2**failures, _PAUSE_MAX_S))  # noqa: S311 (no herd)


def _difference(sent: _Json, kept: _Json) -> str | None:
    """Return what an answer lacks of what was sent, or ``None``."""
    for sent_device, kept_device in zip(sent["devices"], kept.get("devices") or (), strict=False):
        for field, value in sent_device.items():
            if kept_device.get(field) != value:
                return f"the API server did not keep `{field}` of device {sent_device['name']}"
    return None


def _version(content: _Json) -> object:
    return content["metadata"].get("resourceVersion")
