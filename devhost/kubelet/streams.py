"""The open ListAndWatch calls of one server, and which of them are kubelet's."""

import asyncio


class Streams:
    """What wakes each open stream, and whether kubelet's is among them.

    It is not known who opened a stream: gRPC shows no peer of a Unix socket. Kubelet opens its
    stream when it is asked to register, so it is one of those that open between `expect` and the
    end of `accepted`; the end of any of these counts as the end of kubelet's. Streams that open
    later belong to somebody else, and nothing depends on them.

    Attributes:
        changed: Set when a stream opens or ends, or when the registration has to be checked.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Event] = set()
        self._kubelets: set[asyncio.Event] = set()
        self._expecting = False
        self._kubelets_ended = False
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def expecting(self) -> bool:
        """Whether kubelet may open its stream now."""
        return self._expecting

    def open(self) -> asyncio.Event:
        """Record a new stream; return the event that wakes it."""
        wake = asyncio.Event()
        self._open.add(wake)
        if self._expecting:
            self._kubelets.add(wake)
        self.changed.set()
        return wake

    def close(self, wake: asyncio.Event) -> None:
        """Record the end of a stream."""
        self._open.discard(wake)
        self._kubelets_ended = self._kubelets_ended or wake in self._kubelets
        self.changed.set()

    def wake_all(self) -> None:
        """Wake all streams."""
        for wake in self._open:
            wake.set()

    @property
    def kubelets_is_open(self) -> bool:
        """Whether kubelet has opened its stream and not ended it."""
        return bool(self._kubelets) and not self._kubelets_ended

    def expect(self) -> None:
        """Count streams that open from now on as kubelet's, and no earlier ones."""
        self._kubelets.clear()
        self._expecting, self._kubelets_ended = True, False

    async def accepted(self) -> None:
        """Wait until kubelet has opened its stream."""
        await self._until(is_open=True)
        self._expecting = False

    async def ended(self) -> None:
        """Wait until kubelet has ended its stream."""
        await self._until(is_open=False)

    async def _until(self, *, is_open: bool) -> None:
        while self.kubelets_is_open is not is_open:
            self.changed.clear()
            await self.changed.wait()
