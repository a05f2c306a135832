"""The open ListAndWatch calls of one server, and which of them are the kubelet's."""

import asyncio


class Streams:
    """What wakes each open stream, and whether the kubelet's is among them.

    Nothing on a stream tells who opened it: gRPC shows no peer of a Unix socket. The kubelet
    opens its own when it is asked to register, so it is among those that open between `expect`
    and the end of `accepted`; the end of any of these counts as the end of the kubelet's. What
    opens later is somebody else's, and nothing depends on it.

    Attributes:
        changed: Set when a stream opens or ends.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Event] = set()
        self._kubelets: set[asyncio.Event] = set()
        self._expecting = False
        self._ended = False
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> asyncio.Event:
        """Note a new stream; return what wakes it."""
        wake = asyncio.Event()
        self._open.add(wake)
        if self._expecting:
            self._kubelets.add(wake)
        self.changed.set()
        return wake

    def close(self, wake: asyncio.Event) -> None:
        """Note the end of a stream."""
        self._open.discard(wake)
        self._ended = self._ended or wake in self._kubelets
        self.changed.set()

    def wake(self) -> None:
        """Wake all streams."""
        for wake in self._open:
            wake.set()

    @property
    def kept(self) -> bool:
        """Whether the kubelet has opened its stream and not ended it."""
        return bool(self._kubelets) and not self._ended

    def expect(self) -> None:
        """Count streams that open from now on as the kubelet's, and no earlier ones."""
        self._kubelets.clear()
        self._expecting, self._ended = True, False

    async def accepted(self) -> None:
        """Wait until the kubelet has opened its stream."""
        await self._until(kept=True)
        self._expecting = False

    async def ended(self) -> None:
        """Wait until the kubelet has ended its stream."""
        await self._until(kept=False)

    async def _until(self, *, kept: bool) -> None:
        while self.kept is not kept:
            self.changed.clear()
            await self.changed.wait()
