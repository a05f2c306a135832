"""Which pods hold which devices, by the last lists of kubelet's pod-resources API."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.errors import KubeletError
from devhost.host.backend import Pods
from devhost.host.records import Owner
from devhost.model.immutable import immutable
from devhost.model.names import without_share
from devhost.model.resource_state import HeldBy

POLL_S: Final = 10.0
AGAIN_S: Final = 3.0  # between two lists that agree, where something has just changed
_ALLOCATION_POLL_S: Final = 0.02
_ALLOCATION_POLLS: Final = 250
_LISTS_MAX: Final = 3
_NO_SOCKET: Final = "devhost runs without --pod-resources"
_LOG: Final = logging.getLogger(__name__)


@immutable
class _List:
    """What kubelet listed."""

    held: Mapping[str, HeldBy]  # by resource
    at: float  # when it was requested, on the event loop's clock
    trusted: bool  # it has all pods: a kubelet that has just started lists those admitted so far
    pods: Mapping[Owner, AbstractSet[str]]  # by the name under which a device was advertised


class Holders:
    """One per process. While pod-resources is unavailable, the last list remains in force."""

    def __init__(self, pod_resources: Pods | None) -> None:
        self._pod_resources = pod_resources
        # The newest, and before it trusted ones that are `AGAIN_S` apart or of other kubelets.
        self._lists: list[_List] = []
        self._kubelet: object = None  # which one has given the newest list
        self._since = 0.0  # when its first one was requested
        self.soon = asyncio.Event()  # has `run` ask now, and once more `AGAIN_S` later
        self._failure: str | None = None
        self._ended = 0  # calls
        self._calling = asyncio.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.on_list: Callable[[], object] = int  # after each list, the same or another

    @property
    def asked(self) -> bool:
        """Whether devhost runs with --pod-resources."""
        return self._pod_resources is not None

    @property
    def known(self) -> bool:
        """Whether the last call gave a list."""
        return self._ended > 0 and self._failure is None

    @property
    def unknown(self) -> str | None:
        """Why pod-resources is unavailable; ``None`` where it is available."""
        if not self.asked:
            return _NO_SOCKET
        return None if self.known else self._failure or "not asked yet"

    def of(self, resource: str) -> HeldBy:
        """Return each held device ID with its pods (``namespace/name``), as last listed."""
        return self._counted()[0].get(resource, {})

    def held(self, resource: str) -> frozenset[str]:
        """Return the device IDs that pods hold, by the last list and the last trusted one."""
        return frozenset(one for held in self._counted() for one in held.get(resource, ()))

    def _counted(self) -> list[Mapping[str, HeldBy]]:
        """Return the last list, and the last trusted one if that is another."""
        counted: list[Mapping[str, HeldBy]] = []
        for one in reversed(self._lists):
            counted.append(one.held)
            if one.trusted:
                break
        return counted or [{}]

    def unheld(self, owner: Owner, since: float) -> bool:
        """Whether no pod holds a device, by two trusted lists requested ``since`` a moment.

        They are `AGAIN_S` apart, and of the present kubelet.
        """
        begin = max(since, self._since)
        lists = [one for one in self._lists if one.trusted and one.at >= begin]
        return (
            bool(lists)
            and lists[-1].at - lists[0].at >= _again()
            and not any(owner in one.pods for one in lists)
        )

    def holding(self, owner: Owner) -> AbstractSet[str]:
        """Return the pods that hold a device, as last listed."""
        return self.by_owner.get(owner, frozenset())

    @property
    def by_owner(self) -> Mapping[Owner, AbstractSet[str]]:
        """The pods that hold devices, by the names of these, as last listed."""
        return self._lists[-1].pods if self._lists else {}

    async def refresh(self) -> None:
        """Ask kubelet, or wait for the call in progress; if it fails, the last list remains."""
        ended = self._ended
        if self._pod_resources is not None:
            async with self._calling:
                if self._ended == ended:
                    await self._ask(self._pod_resources)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back whenever what `of` or `held` return has changed."""
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        self._callbacks.remove(callback)

    async def run(self) -> None:
        """Ask every `POLL_S`; return without --pod-resources."""
        while self.asked:
            self.soon.clear()
            before = self._counted()
            await self.refresh()
            if self._counted() != before:
                self.soon.set()
            await asyncio.sleep(_again())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S - _again()):
                    await self.soon.wait()

    async def _ask(self, pod_resources: Pods) -> None:
        # The call makes kubelet free the devices of ended pods. If a pod has just ended, kubelet
        # also frees the devices that it is allocating, and allocates them twice
        # (UpdateAllocatedDevices in k8s.io/kubernetes v1.37.1
        # pkg/kubelet/cm/devicemanager/manager.go).
        for _ in range(_ALLOCATION_POLLS):
            if not pod_resources.allocating:
                break
            await asyncio.sleep(_ALLOCATION_POLL_S)
        before, failure = self._counted(), None
        asked_at = asyncio.get_running_loop().time()
        try:
            kubelet, held = await pod_resources.holders()
        except KubeletError as error:
            failure = str(error)
        else:
            self._keep(held, asked_at, kubelet)
        self._ended += 1
        if failure != self._failure:
            self._failure = failure
            if failure is not None:
                _LOG.warning("pod-resources unavailable", extra={"fields": {"reason": failure}})
            else:
                _LOG.info("pod-resources available again")
        if self._counted() != before:
            for callback in tuple(self._callbacks):
                callback()
        self.on_list()

    def _keep(self, held: Mapping[str, HeldBy], at: float, kubelet: object) -> None:
        """Add a list, and drop the one before it where `held` and `unheld` need it no longer."""
        if kubelet != self._kubelet:
            self._kubelet, self._since = kubelet, at
        lists = self._lists
        near = len(lists) > 1 and lists[-2].at > max(at - _again(), self._since)
        if lists and (near or not lists[-1].trusted):
            lists.pop()
        latest = _List(held, at, at >= self._since + POLL_S, _by_owner(held))
        self._lists = [*lists[1 - _LISTS_MAX :], latest]


def _again() -> float:
    return min(AGAIN_S, POLL_S)


def _by_owner(held: Mapping[str, HeldBy]) -> Mapping[Owner, AbstractSet[str]]:
    pods: dict[Owner, AbstractSet[str]] = {}
    for resource, holders in held.items():
        for advertised_id, names in holders.items():
            device = without_share(advertised_id)
            owner = Owner(resource, device, shared=device != advertised_id)
            pods[owner] = pods.get(owner, frozenset()) | names
    return pods
