"""The pods that hold devices, by the last lists of kubelet's pod-resources API."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from devhost.backends.podresources import PodResources
from devhost.errors import KubeletError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.resource_state import HeldBy, PodHoldings, PodList
from devhost.watch.threads import wait_at_most

POLL_S: Final = 10.0
CONFIRM_S: Final = 3.0  # between two lists that agree, where something has just changed
_ALLOCATION_POLL_S: Final = 0.02
_ALLOCATION_POLLS: Final = 250
_LISTS_MAX: Final = 3
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _List:
    """A list of kubelet."""

    held: PodHoldings
    at: float  # when it was requested, on the event loop's clock
    has_all_pods: bool  # not those alone that a kubelet has admitted since its start
    complete: bool  # it has all devices that device plugins have given
    by_name: Mapping[AdvertisedName, HeldBy]  # the IDs that pods hold, by their device


@dataclass(slots=True)
class _Kubelet:
    """The kubelet that has given the newest list."""

    identity: object = None
    since: float = 0.0  # when its first list was requested
    api_pod_at: float = math.inf  # when its first one with a pod of the API server was


class Holders:
    """One per process. While pod-resources is unavailable, the last list remains in force."""

    def __init__(self, pod_resources: PodResources, node_name: str) -> None:
        self._pod_resources = pod_resources
        # Of the names of static pods (k8s.io/kubernetes v1.37.1 pkg/kubelet/config/common.go,
        # generatePodName).
        self._static_suffix = f"-{node_name.lower()}"
        # The newest, and before it complete ones that are `CONFIRM_S` apart or of other kubelets.
        self._lists: list[_List] = []
        self._kubelet = _Kubelet()
        self.ask_soon = asyncio.Event()  # has `run` ask now, and once more `CONFIRM_S` later
        self._failure: str | None = None
        self._ended = 0  # calls
        self._calling = asyncio.Lock()
        # Called when what `pods_by_id` or `held_ids` return has changed.
        self.on_change: list[Callable[[], None]] = []
        self.on_list: Callable[[], object] = int  # after each list, the same or another

    @property
    def unavailable_reason(self) -> str | None:
        """Why pod-resources is unavailable; ``None`` where it is available."""
        return self._failure or (None if self._ended else "not asked yet")

    def pods_by_id(self, resource: str) -> HeldBy:
        """Return each held device ID with its pods (``namespace/name``), as last listed."""
        return self._lists[-1].held.by_id.get(resource, {}) if self._lists else {}

    def held_ids(self, resource: str) -> frozenset[str]:
        """Return the IDs that pods hold by a device plugin, by the last and last complete list."""
        return frozenset(
            offered.id
            for held in _counted(self._lists)
            for offered, pods in held.by_id.get(resource, {}).items()
            if not pods.isdisjoint(held.plugin_pods.get(resource, ()))
        )

    @property
    def complete(self) -> bool:
        """Whether a list had all devices that device plugins have given."""
        return any(listed.complete for listed in self._lists)

    def plugin_pods(self, resource: str) -> AbstractSet[str]:
        """Return the pods that hold devices by a device plugin, by the lists of `held_ids`."""
        counted = _counted(self._lists)
        pods = (held.plugin_pods.get(resource, frozenset()) for held in counted)
        return frozenset[str]().union(*pods)

    def confirmed_free(
        self, name: AdvertisedName, since: float, share: OfferedId | None = None
    ) -> bool:
        """Whether no pod holds a device, or, by whatever backend, this share of it.

        That is so by two complete lists requested ``since`` a moment. They are `CONFIRM_S` apart,
        and of the present kubelet.
        """
        begin = max(since, self._kubelet.since)
        lists = [
            listed
            for listed in self._lists
            if listed.at >= begin and (listed.complete if share is None else listed.has_all_pods)
        ]
        return (
            bool(lists)
            and lists[-1].at - lists[0].at >= _confirm_s()
            and not any(
                name in listed.by_name if share is None else share in listed.by_name.get(name, ())
                for listed in lists
            )
        )

    @property
    def by_name(self) -> Mapping[AdvertisedName, HeldBy]:
        """The IDs that pods hold, by the name of their device, as last listed."""
        return self._lists[-1].by_name if self._lists else {}

    def claims(self, name: AdvertisedName) -> AbstractSet[tuple[str, str]]:
        """Return the drivers and names of the claims with which pods have a device."""
        return self._lists[-1].held.claims.get(name, frozenset()) if self._lists else frozenset()

    def pods_of_device(self, name: AdvertisedName) -> AbstractSet[str]:
        """Return the pods that hold a device, as last listed."""
        return frozenset[str]().union(*self.by_name.get(name, {}).values())

    async def refresh(self) -> None:
        """Ask kubelet, or wait for the call in progress; if it fails, the last list remains."""
        ended = self._ended
        async with self._calling:
            if self._ended == ended:
                await self._ask()

    async def run(self) -> None:
        """Ask every `POLL_S`."""
        while True:
            self.ask_soon.clear()
            before = _counted(self._lists)
            await self.refresh()
            if _counted(self._lists) != before:
                self.ask_soon.set()
            await asyncio.sleep(_confirm_s())
            await wait_at_most(POLL_S - _confirm_s(), self.ask_soon.wait)

    async def _ask(self) -> None:
        # The call makes kubelet free the devices of ended pods. If a pod has just ended, kubelet
        # also frees the devices that it is allocating, and allocates them twice
        # (UpdateAllocatedDevices in k8s.io/kubernetes v1.37.1
        # pkg/kubelet/cm/devicemanager/manager.go).
        for _ in range(_ALLOCATION_POLLS):
            if not self._pod_resources.allocating:
                break
            await asyncio.sleep(_ALLOCATION_POLL_S)
        before, failure = _counted(self._lists), None
        asked_at = asyncio.get_running_loop().time()
        try:
            listed = await self._pod_resources.list_pods()
        except KubeletError as error:
            failure = str(error)
        else:
            await self._keep(listed, asked_at)
        self._ended += 1
        if failure != self._failure:
            self._failure = failure
            if failure is not None:
                _LOG.warning("pod-resources unavailable", extra={"fields": {"reason": failure}})
            else:
                _LOG.info("pod-resources available again")
        if _counted(self._lists) != before:
            for callback in tuple(self.on_change):
                callback()
        self.on_list()

    async def _keep(self, listed: PodList, at: float) -> None:
        """Add a list, and drop the one before it if it is needed no longer.

        A kubelet whose API server is away lists static pods alone, for however long. Of those of
        the API server it learns at a time, and admits them one after the other
        (k8s.io/kubernetes v1.37.1 pkg/kubelet/kubelet.go, HandlePodAdditions).
        """
        held, kubelet = listed.held, self._kubelet
        if listed.kubelet != kubelet.identity:
            kubelet = self._kubelet = _Kubelet(listed.kubelet, at)
        if not all(name.endswith(self._static_suffix) for name in listed.pods):
            kubelet.api_pod_at = min(kubelet.api_pod_at, at)
        has_all_pods = at >= kubelet.api_pod_at + POLL_S
        complete = has_all_pods or await self._pod_resources.covers_checkpoint(held)
        lists = self._lists
        near = len(lists) > 1 and lists[-2].at > max(at - _confirm_s(), kubelet.since)
        if lists and (near or not lists[-1].complete):
            lists.pop()
        latest = _List(held, at, has_all_pods, complete, _by_name(held.by_id))
        self._lists = [*lists[1 - _LISTS_MAX :], latest]


def _confirm_s() -> float:
    return min(CONFIRM_S, POLL_S)


def _counted(lists: Sequence[_List]) -> list[PodHoldings]:
    """Return what pods hold by the last list, and by the last complete one if that is another."""
    counted: list[PodHoldings] = []
    for listed in reversed(lists):
        counted.append(listed.held)
        if listed.complete:
            break
    return counted or [PodHoldings({}, {})]


def _by_name(held: Mapping[str, HeldBy]) -> Mapping[AdvertisedName, HeldBy]:
    by_name: dict[AdvertisedName, dict[OfferedId, frozenset[str]]] = {}
    for resource, holders in held.items():
        for offered, pods in holders.items():
            by_name.setdefault(offered.name(resource), {})[offered] = pods
    return by_name
