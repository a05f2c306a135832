"""Who holds what: the last list that the kubelet's pod-resources API gave, for all resources."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.podresources import HeldBy, PodResources

POLL_S: Final = 10.0
_ALLOCATION_S: Final = 5.0
_NO_SOCKET: Final = "devhost runs without --pod-resources"
_LOG: Final = logging.getLogger(__name__)


class Holders:
    """One per process. A list that could not be had leaves the one before in force."""

    def __init__(self, pod_resources: PodResources | None) -> None:
        self._pod_resources = pod_resources
        self._last: Mapping[str, HeldBy] = {}
        self._before: Mapping[str, HeldBy] = {}
        self._failure: str | None = None
        # Calls are numbered from 1. One that was cancelled has begun and does not end.
        self._begun = self._ended = 0
        self._calling = asyncio.Lock()
        self._callbacks: set[Callable[[], None]] = set()
        self._wanted = asyncio.Event()
        self._allocating = 0
        self._no_allocation = asyncio.Event()
        self._no_allocation.set()

    @property
    def asked(self) -> bool:
        """Whether there is a socket to ask."""
        return self._pod_resources is not None

    @property
    def known(self) -> bool:
        """Whether the last try gave a list; never without a socket."""
        return self._ended > 0 and self._failure is None

    @property
    def unknown(self) -> str | None:
        """Why it is not known who holds what; ``None`` where it is."""
        if not self.asked:
            return _NO_SOCKET
        return None if self.known else self._failure or "not asked yet"

    def of(self, resource: str) -> HeldBy:
        """Return device ID to the pods that hold it (``namespace/name``), as last listed."""
        return self._last.get(resource, {})

    def held(self, resource: str) -> frozenset[str]:
        """Return the device IDs that pods hold, by the last two lists together.

        A kubelet that has just started lists only the pods that it has admitted so far.
        """
        return frozenset(self.of(resource)) | frozenset(self._before.get(resource, {}))

    def resources(self) -> frozenset[str]:
        """Return the resources of which pods hold devices, as `held` does."""
        return frozenset(self._last.keys() | self._before.keys())

    async def until_known(self) -> None:
        """Wait until it is known who holds what; at once without a socket to ask."""
        while self.asked and not self.known:
            await self.settled()
            if not self.known:
                await asyncio.sleep(POLL_S)

    async def settled(self) -> None:
        """Ask anew if that is possible; else the last list stays in force."""
        with contextlib.suppress(KubeletError):
            await self.refresh()

    async def refresh(self) -> None:
        """Ask anew, or share the answer to a question that is under way.

        Raises:
            KubeletError: The list could not be had, or there is no socket to ask.
        """
        await self._ask_after(self._ended)

    async def now(self, resource: str) -> HeldBy:
        """Return what `of` does, from a question that is asked after this moment.

        Raises:
            KubeletError: The list could not be had, or there is no socket to ask.
        """
        await self._ask_after(self._begun)
        return self.of(resource)

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        """Ask nothing while an Allocate runs.

        A question makes the kubelet free what ended pods held, and if one of them has just
        ended it frees what it is allocating, too, and hands it out twice (UpdateAllocatedDevices
        in k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go).
        """
        self._allocating += 1
        self._no_allocation.clear()
        try:
            yield
        finally:
            self._allocating -= 1
            if not self._allocating:
                self._no_allocation.set()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have a callback called when what the list says has changed; `run` polls from now on."""
        self._callbacks.add(callback)
        self._wanted.set()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        self._callbacks.discard(callback)
        if not self._callbacks:
            self._wanted.clear()

    async def run(self) -> None:
        """Ask every `POLL_S` while there is a subscriber, for ever; without a socket, return."""
        if self._pod_resources is None:
            return
        while True:
            await self._wanted.wait()
            before = self._last
            await self.settled()
            changed, self._before = self._before != before, before
            if changed:
                self._tell()
            await asyncio.sleep(POLL_S)

    async def _ask_after(self, number: int) -> None:
        """See that a call with a higher number has ended; whoever waits makes it if need be."""
        if self._pod_resources is None:
            raise KubeletError(_NO_SOCKET)
        async with self._calling:
            if self._ended <= number:
                await self._ask(self._pod_resources)
            if self._failure is not None:
                raise KubeletError(self._failure)

    async def _ask(self, pod_resources: PodResources) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ALLOCATION_S):
                await self._no_allocation.wait()
        self._begun += 1
        before, failure = self._last, None
        try:
            self._last = await pod_resources.holders()
        except KubeletError as error:
            failure = str(error)
        self._ended = self._begun
        if failure != self._failure:
            self._failure = failure
            if failure is not None:
                _LOG.warning("who holds what is not known", extra={"fields": {"reason": failure}})
            else:
                _LOG.info("who holds what is known again")
        if self._last != before:
            self._tell()

    def _tell(self) -> None:
        for callback in tuple(self._callbacks):
            callback()
