"""The kubelet's plugin directory: who is there, and is it still the same one?"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet import call_log
from devhost.kubelet.channel import open_channel
from devhost.kubelet.instances import Instances, resource_hash
from devhost.kubelet.kubelet_socket import KUBELET_SOCKET, Identity, KubeletSocket
from devhost.kubelet.liveness import Liveness

REGISTER_TIMEOUT_S: Final = 15.0  # an older instance waits for a newer one for longer than that
_POLL_S: Final = 5.0  # behind the watch, which may miss something
_COMPANY_POLL_S: Final = 1.0  # another instance may be killed, and of that there is no event
_DOUBT_POLL_S: Final = 0.05  # a socket that refuses is looked at twice
_BURST_S: Final = 0.01
_PROBE_FIRST_S: Final = 0.001  # the socket file appears before it listens
_PROBE_MAX_S: Final = 1.0
_LISTING_SHARE: Final = 10  # the directory is read for a tenth of the time at most
_GONE_S: Final = 10.0
_CONCURRENT_MAX: Final = 32
_LOG: Final = logging.getLogger(__name__)


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for the kubelet and for other instances of devhost; registers.

    Attributes:
        restarts: How often something was registered with another kubelet than before.
        limit: How many resources start a server or register at a time. A thousand that did would
            take memory that the process never gives back, and hold up the kubelet's calls.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kubelet = KubeletSocket(path)
        self._due = asyncio.Event()
        self.instances = Instances(path)
        self._liveness = Liveness(self.instances.sockets, self._due.set)
        self.instances.answers = self._liveness.answers
        self.limit = asyncio.Semaphore(_CONCURRENT_MAX)
        self._changed = asyncio.Event()
        self._subscribers: dict[str, set[Callable[[], None]]] = {}
        self._listing: asyncio.Task[None] | None = None
        self._list_at = 0.0
        self._probing: asyncio.Task[Identity] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: Identity | None = None
        self._connecting = asyncio.Lock()
        self._known = self.identity()
        self._registered_with: Identity | None = None
        self._late = False
        self.restarts = 0

    def look_again(self, path: str | None = None) -> None:
        """Something happened in the directory; to one entry, if that is known."""
        name = path.rpartition("/")[2] if path else KUBELET_SOCKET
        if path is None or self.instances.may_matter(name):
            self._due.set()
        if name == KUBELET_SOCKET and (identity := self.identity()) != self._known:
            self._known = identity
            self._notify(self._subscribers)

    def _notify(self, resources: Iterable[str]) -> None:
        self._changed.set()
        for resource in tuple(resources):
            for notice in tuple(self._subscribers.get(resource, ())):
                notice()

    def subscribe(self, resource: str, notice: Callable[[], None]) -> None:
        """Tell whenever kubelet.sock, or who else serves a resource, has changed."""
        self._subscribers.setdefault(resource_hash(resource), set()).add(notice)

    def unsubscribe(self, resource: str, notice: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        of_resource = self._subscribers[resource_hash(resource)]
        of_resource.discard(notice)
        if not of_resource:
            del self._subscribers[resource_hash(resource)]

    def identity(self) -> Identity | None:
        """Return what tells one kubelet.sock from the next."""
        return self._kubelet.identity()

    def replaced(self, identity: Identity) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self._kubelet.replaced(identity)

    # ── looking ──

    async def run(self) -> None:
        """Look for other instances when something happens, and poll behind the watch, for ever.

        Raises:
            DirectoryGoneError: The directory was unlinked and the path leads to no new one.
        """
        descriptor = self._opened()
        self._due.set()  # who was there before
        gone_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._until_due()
                self._look_for_others()
                self.look_again()
                self._due.clear()
                if descriptor is None or self._is_other(descriptor):
                    if descriptor is not None:
                        os.close(descriptor)
                    descriptor = self._opened()
                unlinked = descriptor is not None and os.fstat(descriptor).st_nlink == 0
                gone_since = (gone_since or clock()) if unlinked else None
                if gone_since is not None and clock() - gone_since >= _GONE_S:
                    raise DirectoryGoneError(f"{self.path} was removed, and no new one came")
        finally:
            if descriptor is not None:
                os.close(descriptor)

    async def _until_due(self) -> None:
        pause = _POLL_S if self.instances.alone else _COMPANY_POLL_S
        if self.instances.in_doubt:
            pause = _DOUBT_POLL_S
        try:
            async with asyncio.timeout(pause):
                await self._due.wait()
            await asyncio.sleep(_BURST_S)  # a thousand sockets of our own are one reason to look
        except TimeoutError:
            pass

    def _look_for_others(self) -> None:
        changed, removed = self.instances.look()
        if removed:
            _LOG.info("removed dead sockets", extra={"fields": {"count": removed}})
        if changed:
            self._notify(changed)
        self._liveness.probe(self.instances.present())

    async def surveyed(self, resource: str) -> None:
        """Wait until it is known who else has a socket for a resource, and who of them answers.

        What changes in the directory before this call is seen.
        """
        await self.listed()
        await self._liveness.until_known(self.instances.present(resource))
        self.instances.look_at(resource)

    async def listed(self) -> None:
        """Wait until the directory was read (`Instances.read`) from after this call on.

        Who asks before a reading has begun shares it: a thousand resources ask at a time.
        """
        if self._listing is None:
            self._listing = asyncio.create_task(self._list(), name="list the plugin directory")
        await asyncio.shield(self._listing)

    async def _list(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._list_at - clock())
        self._listing = None
        began = clock()
        self.instances.read()
        self._list_at = clock() + _LISTING_SHARE * (clock() - began)

    def _opened(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None

    def _is_other(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:
            return False

    # ── the kubelet ──

    def absence(self) -> str | None:
        """Say why there is no kubelet, or return ``None``."""
        problem = self._kubelet.problem()
        return problem and f"no kubelet: {problem}"

    def doubt(self) -> None:
        """Have the kubelet asked anew: it ended a stream, so it may be about to die."""
        self._kubelet.doubt()

    async def kubelet(self) -> Identity:
        """Wait until a kubelet accepts connections; return which one."""
        identity = self.identity()
        if identity is not None and self._kubelet.problem() is None:
            return identity
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe(), name="probe kubelet.sock")
        return await asyncio.shield(self._probing)

    async def _probe(self) -> Identity:
        """Ask for all who wait."""
        pause = _PROBE_FIRST_S
        while True:
            self._changed.clear()
            identity = self.identity()
            if identity is not None and self._kubelet.problem() is None:
                self._probing = None
                return identity
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                pause = _PROBE_FIRST_S
            except TimeoutError:
                pause = min(pause * 2, _PROBE_MAX_S)

    async def register(self, resource: str, endpoint: str, *, pre_start: bool) -> None:
        """Register one resource; returns when the kubelet has connected and has the options.

        Args:
            resource: Its name.
            endpoint: The name of its socket.
            pre_start: Whether PreStartContainer is required.

        Raises:
            KubeletError: The kubelet refused, or did not answer in time.
        """
        channel = await self._channel_to_kubelet()
        request = pb.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint,
            resource_name=resource,
            # The kubelet ignores these and asks; they are here for people who read traces.
            options=pb.DevicePluginOptions(
                pre_start_required=pre_start, get_preferred_allocation_available=True
            ),
        )
        late = asyncio.get_running_loop().call_later(call_log.LATE_S, self._say_late, resource)
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
            self._late = False
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._drop(channel)  # or it would wait out its back-off
            # The same reason is to be the same text: each attempt has a socket of its own.
            details = (error.details() or "").replace(endpoint, "the socket")
            raise KubeletError(details or error.code().name.lower()) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # What another resource's `_drop` does to calls that are under way.
            raise KubeletError("the connection to the kubelet was lost") from None
        finally:
            late.cancel()

    def _say_late(self, resource: str) -> None:
        """Log that the kubelet does not answer: once, until it has answered."""
        if not self._late:
            self._late = True
            call_log.log_slow_registration(resource, self._kubelet.path)

    def registered_with(self, identity: Identity) -> None:
        """Take note that something is registered with the kubelet of this identity."""
        self.restarts += self._registered_with not in (identity, None)
        self._registered_with = identity

    async def _channel_to_kubelet(self) -> grpc.aio.Channel:
        async with self._connecting:
            identity = self.identity()
            if self._channel is None or self._channel_of != identity:
                await self._drop(self._channel)
                self._channel_of = identity
                self._channel = open_channel(self._kubelet.path)
            return self._channel

    async def _drop(self, channel: grpc.aio.Channel | None) -> None:
        if channel is not None:
            if channel is self._channel:
                self._channel = None
            await channel.close(grace=None)

    async def close(self) -> None:
        """Close the connection to the kubelet, and leave nothing in the directory."""
        for task in (self._listing, self._probing):
            if task is not None:
                task.cancel()
        self._kubelet.close()
        await self._liveness.close()
        await self._drop(self._channel)
