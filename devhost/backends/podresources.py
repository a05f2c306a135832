"""A client of kubelet's pod-resources API: which pod holds which device.

The API is v1 of k8s.io/kubelet v0.37.0, pkg/apis/podresources/v1. What its List shows is
decided in k8s.io/kubernetes v1.37.1, pkg/kubelet/apis/podresources/server_v1.go: active pods,
those that are being admitted included, with their app containers and sidecars. Ordinary init
containers are not shown, though they hold devices.
"""

import asyncio
import contextlib
import errno
import functools
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError

from devhost.api.podresources.v1 import podresources_pb2 as pb
from devhost.backends.share_ids import offered_id
from devhost.backends.sockets import connect_error, open_channel, socket_identity
from devhost.errors import KubeletError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.resource_state import PodHoldings, PodList
from devhost.watch.threads import run_in_thread

LIST_TIMEOUT_S: Final = 2.0
_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"

T = TypeVar("T")


class ClaimedId(NamedTuple):
    """A device of a claim; `share` is empty without one, ``None`` for any without a record."""

    driver: str
    pool: str
    device: str
    share: str | None


Claimed = Mapping[ClaimedId, tuple[str, OfferedId]]
"""The resource and the advertised ID of devices of claims."""


class PodResources:
    """The API on one socket; each call makes a connection of its own.

    Kubelet's checkpoint is in `plugin_dir`. `inflight_since` are the times at which calls of
    kubelet to plugins of this process began, and `claimed_ids` returns the devices of claims that
    the list may name.
    """

    def __init__(self, socket: Path, plugin_dir: Path) -> None:
        self.socket, self._checkpoint = socket, plugin_dir / _CHECKPOINT
        self.inflight_since: list[float] = []
        self.claimed_ids: Callable[[], Claimed] = dict
        self.may_hold: Callable[[str, str], bool] = lambda _resource, _advertised_id: True
        self._looking: asyncio.Future[tuple[object, int]] | None = None
        self._served: frozenset[str] = frozenset()  # the resources with healthy devices
        self._served_at, self._asking = -math.inf, asyncio.Lock()

    @property
    def allocating(self) -> bool:
        """Whether kubelet waits for an answer of this process."""
        return bool(self.inflight_since)

    async def _look(self) -> tuple[object, int]:
        """Return what differs from one kubelet to the next, and a connection's error or 0."""
        if self._looking is None or self._looking.done():
            self._looking = run_in_thread(
                "pod-resources socket",
                lambda: (socket_identity(self.socket), connect_error(self.socket)),
            )
        done, _ = await asyncio.wait({self._looking}, timeout=LIST_TIMEOUT_S)
        return done.pop().result() if done else (None, errno.ETIMEDOUT)

    async def list_pods(self) -> PodList:
        """Return the pods, and which devices they hold.

        Raises `KubeletError` if that fails, or takes longer than `LIST_TIMEOUT_S`.
        """
        kubelet, _ = await self._look()
        pods, held = await self._ask(_LIST, functools.partial(_by_resource, self.claimed_ids()))
        if kubelet != (await self._look())[0]:
            raise KubeletError(f"{self.socket}: another kubelet has taken over")
        return PodList(kubelet, pods, held)

    async def covers_checkpoint(self, held: PodHoldings) -> bool:
        """Whether these are all devices in kubelet's checkpoint that pods may hold.

        A kubelet that starts reads it, and takes no pod out of it before its sources of pods are
        ready (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go,
        UpdateAllocatedDevices). Pods that have ended stay in it until it is written again.
        """

        def read() -> bool:
            entries = json.loads(self._checkpoint.read_bytes())["Data"]["PodDeviceEntries"] or ()
            return all(
                offered_id(device_id) in held.by_id.get(entry["ResourceName"], ())
                or not self.may_hold(entry["ResourceName"], device_id)
                for entry in entries
                for device_ids in entry["DeviceIDs"].values()
                for device_id in device_ids
            )

        try:
            return await run_in_thread("kubelet's checkpoint", read)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return False

    async def is_served(self, resource: str) -> bool:
        """Whether a resource has a device plugin already; not where nobody tells.

        Kubelet lists the resources that have healthy devices, and those of a plugin that has gone
        are no longer healthy (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go,
        GetAllocatableDevices and PluginDisconnected). Its checkpoint has the same names, but also
        of plugins that have gone, such as this process before a restart.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        async with self._asking:
            if self._served_at < began:  # those that ask together share an answer
                self._served = frozenset()
                with contextlib.suppress(KubeletError):
                    self._served = await self._ask(_ALLOCATABLE, _allocatable)
                self._served_at = clock()
            return resource in self._served

    async def _ask(self, method: str, read: Callable[[bytes], T]) -> T:
        """Return what `read` makes, in a thread, of the answer to a call with an empty request."""
        if number := (await self._look())[1]:
            reason = "no such socket" if number == errno.ENOENT else os.strerror(number).lower()
            raise KubeletError(f"{self.socket}: {reason}")
        # A channel that failed would wait before it connects again, though kubelet has restarted.
        async with open_channel(self.socket) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            try:
                answer = await call(b"", timeout=LIST_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                reason = error.details() or error.code().name.lower()
                raise KubeletError(f"{self.socket}: {reason}") from None
        try:
            return await run_in_thread("pod resources", lambda: read(answer))
        except DecodeError:
            raise KubeletError(f"{self.socket}: the answer cannot be read") from None


def _allocatable(answer: bytes) -> frozenset[str]:
    listed = pb.AllocatableResourcesResponse.FromString(answer)
    return frozenset(entry.resource_name for entry in listed.devices)


def _by_resource(claimed: Claimed, answer: bytes) -> tuple[AbstractSet[str], PodHoldings]:
    listed = pb.ListPodResourcesResponse.FromString(answer)
    holders: dict[str, dict[OfferedId, set[str]]] = defaultdict(lambda: defaultdict(set))
    plugin_pods: dict[str, set[str]] = defaultdict(set)
    claims: dict[AdvertisedName, set[tuple[str, str]]] = defaultdict(set)
    pods = set[str]()
    for pod in listed.pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        pods.add(name)
        for container in pod.containers:
            for entry in container.devices:
                plugin_pods[entry.resource_name].add(name)
                for device_id in entry.device_ids:
                    holders[entry.resource_name][offered_id(device_id)].add(name)
            for dynamic in container.dynamic_resources if claimed else ():
                for allocated in dynamic.claim_resources:
                    place = allocated.driver_name, allocated.pool_name, allocated.device_name
                    recorded = claimed.get(ClaimedId(*place, allocated.share_id))
                    if device := recorded or claimed.get(ClaimedId(*place, None)):
                        resource, offered = device
                        claim = f"{dynamic.claim_namespace}/{dynamic.claim_name}"
                        holders[resource][offered].add(name)
                        claims[offered.name(resource)].add((allocated.driver_name, claim))
    held = {
        resource: {offered: frozenset(names) for offered, names in pods_by_id.items()}
        for resource, pods_by_id in holders.items()
    }
    return pods, PodHoldings(held, plugin_pods, claims)
