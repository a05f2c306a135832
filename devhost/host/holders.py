"""Which pods hold which devices, by the last list of kubelet's pod-resources API."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.podresources import HeldBy, PodResources
from devhost.model.names import without_share

POLL_S: Final = 10.0
AGAIN_S: Final = 3.0  # between two lists that agree, where something has just changed
_ALLOCATION_S: Final = 5.0
_STILL_HELD_S: Final = 2.0  # Allocate waits for it
_LISTS_MAX: Final = 3
_NO_SOCKET: Final = "devhost runs without --pod-resources"
_LOG: Final = logging.getLogger(__name__)


class Holders:
    """One per process. While pod-resources is unavailable, the last list remains in force.

    Attributes:
        listed_at: When the last list was requested, on the event loop's clock.
    """

    def __init__(self, pod_resources: PodResources | None) -> None:
        self._pod_resources = pod_resources
        self.listed_at = float("-inf")
        self._last: Mapping[str, HeldBy] = {}
        self._before: Mapping[str, HeldBy] = {}
        # The last few lists of the present kubelet, with the times when they were requested.
        self._lists: list[tuple[float, Mapping[str, HeldBy]]] = []
        self._kubelet: object = None
        self._kubelet_since = 0.0
        self._soon = asyncio.Event()
        self._failure: str | None = None
        # Calls are numbered from 1. A cancelled one has begun and never ends.
        self._begun = self._ended = 0
        self._calling = asyncio.Lock()
        self._callbacks: dict[Callable[[], None], bool] = {}  # whether of equal lists, too
        self._wanted = asyncio.Event()
        self._allocating = 0
        self._no_allocation = asyncio.Event()
        self._no_allocation.set()

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
        return self._last.get(resource, {})

    def held(self, resource: str) -> frozenset[str]:
        """Return the device IDs that pods hold by at least one of the last two lists.

        A kubelet that has just started lists only the pods that it has admitted so far.
        """
        return frozenset(self.of(resource)) | frozenset(self._before.get(resource, {}))

    async def still_held(self, resource: str, ids: Sequence[str]) -> HeldBy:
        """Return the pods that hold IDs which somebody allocates just now, mostly none.

        Kubelet allocates a device only when no pod holds it, and lists it for the new pod when it
        has the answer. So where a pod held one by the lists of `held`, kubelet is asked once more;
        where it does not answer, its last list counts. It is asked for no other ID, for the reason
        given in `allocating`.
        """
        if self.held(resource).isdisjoint(ids):
            return {}
        with contextlib.suppress(KubeletError, TimeoutError):
            async with asyncio.timeout(_STILL_HELD_S):
                await self.now(resource)
        held = self.of(resource)
        return {one: held[one] for one in ids if one in held}

    def unheld(self, resource: str, device_id: str, *, shared: bool, since: float) -> bool:
        """Whether no pod holds a device, by two lists that were requested after a moment.

        They are `AGAIN_S` apart, and of one kubelet. None of its first `POLL_S` counts: a kubelet
        that has just started lists only the pods that it has admitted so far.

        Args:
            resource: The resource's name.
            device_id: The device's ID, without the suffix of a share.
            shared: Whether it is advertised as shares.
            since: The moment, on the event loop's clock.
        """
        since = max(since, self._kubelet_since + POLL_S)
        times = [at for at, _ in self._lists if at >= since]
        return (
            bool(times)
            and times[-1] - times[0] >= _again()
            and not any(
                _has(listed.get(resource, {}), device_id, shared=shared)
                for at, listed in self._lists
                if at >= since
            )
        )

    def holding(self, resource: str, device_id: str, *, shared: bool) -> list[str]:
        """Return the pods that hold a device, as last listed."""
        held = self.of(resource)
        found = (held[one] for one in _advertised(held, device_id, shared=shared))
        return sorted(frozenset[str]().union(*found))

    def ask_soon(self) -> None:
        """Let `run` ask now, and once more `AGAIN_S` later."""
        self._soon.set()

    def resources(self) -> frozenset[str]:
        """Return the resources whose devices pods hold, by the lists of `held`."""
        return frozenset(self._last.keys() | self._before.keys())

    async def until_known(self) -> None:
        """Wait until there is a list; return immediately without --pod-resources."""
        while self.asked and not self.known:
            await self.try_refresh()
            if not self.known:
                await asyncio.sleep(POLL_S)

    async def try_refresh(self) -> None:
        """Ask kubelet; if that fails, the last list remains in force."""
        with contextlib.suppress(KubeletError):
            await self.refresh()

    async def refresh(self) -> None:
        """Ask kubelet, or wait for the call that is in progress.

        Raises:
            KubeletError: pod-resources is unavailable.
        """
        await self._ask_after(self._ended)

    async def now(self, resource: str) -> HeldBy:
        """Return what `of` does, by a list that is requested after this moment.

        Raises:
            KubeletError: pod-resources is unavailable.
        """
        await self._ask_after(self._begun)
        return self.of(resource)

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        """Ask nothing while an Allocate runs.

        The call makes kubelet free the devices of ended pods. If a pod has just ended, kubelet
        also frees the devices that it is allocating, and allocates them twice
        (UpdateAllocatedDevices in k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/devicemanager/manager.go).
        """
        self._allocating += 1
        self._no_allocation.clear()
        try:
            yield
        finally:
            self._allocating -= 1
            if not self._allocating:
                self._no_allocation.set()

    def subscribe(self, callback: Callable[[], None], *, always: bool = False) -> None:
        """Call back whenever the list has changed; `run` polls from now on.

        Args:
            callback: What to call.
            always: Call it also when a list is the same as the one before.
        """
        self._callbacks[callback] = always
        self._wanted.set()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        self._callbacks.pop(callback, None)
        if not self._callbacks:
            self._wanted.clear()

    async def run(self) -> None:
        """Ask every `POLL_S` while there is a subscriber; return without --pod-resources."""
        if self._pod_resources is None:
            return
        clock = asyncio.get_running_loop().time
        while True:
            await self._wanted.wait()
            self._soon.clear()
            before, kubelet = self._last, self._kubelet
            await self.try_refresh()
            changed = self._before != before
            if self._kubelet is not kubelet or clock() - self._kubelet_since >= POLL_S:
                self._before = before
            if changed:
                self._tell(changed=True)
            if changed or self._last != before:
                self._soon.set()
            await asyncio.sleep(_again())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S - _again()):
                    await self._soon.wait()

    async def _ask_after(self, number: int) -> None:
        """Wait until a call with a higher number has ended; make it if none is in progress."""
        if self._pod_resources is None:
            raise KubeletError(_NO_SOCKET)
        async with self._calling:
            if self._ended <= number:
                await self._ask(self._pod_resources)
            if self._failure is not None:
                raise KubeletError(self._failure)

    async def _ask(self, pod_resources: PodResources) -> None:
        kubelet = await pod_resources.kubelet()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ALLOCATION_S):
                await self._no_allocation.wait()
        self._begun += 1
        before, failure = self._last, None
        asked_at = asyncio.get_running_loop().time()
        try:
            self._last = await pod_resources.holders()
        except KubeletError as error:
            failure = str(error)
        else:
            self.listed_at = asked_at
            if kubelet == await pod_resources.kubelet():  # else the list may be of either kubelet
                self._note(asked_at, kubelet)
        self._ended = self._begun
        if failure != self._failure:
            self._failure = failure
            if failure is not None:
                _LOG.warning("pod-resources unavailable", extra={"fields": {"reason": failure}})
            else:
                _LOG.info("pod-resources available again")
        self._tell(changed=self._last != before)

    def _note(self, asked_at: float, kubelet: object) -> None:
        """Keep the list, and as many earlier ones as `unheld` needs."""
        if self._kubelet != kubelet or not self._lists:
            self._kubelet, self._kubelet_since = kubelet, asked_at
            self._lists.clear()
        lists = self._lists
        if len(lists) > 1 and asked_at - lists[-2][0] < _again():
            lists.pop()
        lists.append((asked_at, self._last))
        while len(lists) > _LISTS_MAX:
            del lists[0]

    def _tell(self, *, changed: bool) -> None:
        for callback, always in tuple(self._callbacks.items()):
            if changed or always:
                callback()


def _again() -> float:
    return min(AGAIN_S, POLL_S)


def _advertised(held: HeldBy, device_id: str, *, shared: bool) -> Iterator[str]:
    """Yield the advertised IDs of a device that are held."""
    return (one for one in held if without_share(one) == device_id and (one != device_id) is shared)


def _has(held: HeldBy, device_id: str, *, shared: bool) -> bool:
    return next(_advertised(held, device_id, shared=shared), None) is not None
