"""Kubelet's plugin directory, for all resources of a process."""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Final

from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S
from devhost.backends.deviceplugin.kubelet_socket import KubeletSocket, is_there
from devhost.backends.deviceplugin.podresources import PodResources, ServedNames
from devhost.backends.deviceplugin.resource_lock import ResourceLocks
from devhost.errors import BackendGoneError
from devhost.watch.inotify import Subscription, Watcher, WatchTarget
from devhost.watch.threads import run_in_thread

_POLL_S: Final = 5.0  # in addition to the watch, which may miss something
_GONE_S: Final = 10.0
_CONCURRENT_MAX: Final = 32


class PluginDirectory:
    """The plugin directory: `kubelet`, which has its socket there, and the `locks` of resources.

    `served_names` tells which resources have a device plugin. `concurrency` limits how many start a
    server or register at a time: if a thousand did, memory would grow for good, and kubelet's calls
    would have to wait. `socket` is that of kubelet's pod-resources, where it may be asked which
    pods hold devices.
    """

    def __init__(
        self, path: Path, socket: Path | None = None, leave_after: float = LEAVE_AFTER_S
    ) -> None:
        self.path, self.leave_after = path, leave_after
        self.pods = PodResources(socket) if socket else None
        self.inflight_since = self.pods.inflight_since if self.pods else []
        self.served_names = ServedNames(self.pods) if self.pods else None
        self.kubelet, self.locks = KubeletSocket(path), ResourceLocks(path)
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)
        self._gone_since = math.inf

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        return self.kubelet.restarts

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""
        return self.locks.get(resource).locked_by_other

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        return self.locks.get(resource).exists

    async def run(self, watcher: Watcher) -> None:
        """Watch the directory; check it regularly too, in case the watch missed something.

        Raises:
            BackendGoneError: The directory was removed and the path leads to no new one; a
                container's mount of it cannot heal.
        """
        subscription = Subscription(watcher, self.kubelet.check)
        targets = frozenset({WatchTarget(str(self.path))})
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await subscription.watch(targets)
                self._check(clock())
                with contextlib.suppress(OSError):  # it is gone, or became read-only
                    await run_in_thread("dead sockets", self.locks.remove_dead_sockets)
                self.locks.retry()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self.locks.wait_until_free()
        finally:
            subscription.close()

    def _check(self, now: float) -> None:
        self.kubelet.check()
        self._gone_since = math.inf if is_there(self.path) else min(self._gone_since, now)
        if now - self._gone_since >= _GONE_S:
            raise BackendGoneError(f"{self.path} was removed and not recreated")

    async def close(self) -> None:
        """Close the connection to kubelet."""
        await self.kubelet.close()
