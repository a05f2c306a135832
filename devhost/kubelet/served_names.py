"""Which resources have a device plugin already: kubelet's pod-resources API tells.

It lists the resources that have healthy devices, and those of a plugin that has gone are no longer
healthy (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go, GetAllocatableDevices
and PluginDisconnected). Kubelet's checkpoint has the same names, but keeps those of plugins that
have gone, such as this process before a restart.
"""

import asyncio
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.podresources import PodResources

_PATIENCE_S: Final = 2.0


class ServedNames:
    """One per process; resources that ask at the same time share an answer."""

    def __init__(self, pod_resources: PodResources) -> None:
        self._pod_resources = pod_resources
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Task[frozenset[str]] | None = None
        self._asking: set[asyncio.Task[frozenset[str]]] = set()

    async def has(self, resource: str) -> bool:
        """Whether a resource has healthy devices, after this moment; not where nobody tells."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask(), name="served names")
            self._asking.add(self._next)
            self._next.add_done_callback(self._asking.discard)
        return resource in await asyncio.shield(self._next)

    async def _ask(self) -> frozenset[str]:
        async with self._one_at_a_time:
            self._next = None  # what is asked from now on is another question
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    return await self._pod_resources.served()
            except (KubeletError, TimeoutError):
                return frozenset()

    def close(self) -> None:
        """End what is running."""
        for task in self._asking:
            task.cancel()
