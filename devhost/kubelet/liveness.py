"""Whether other instances of devhost answer.

That a connect succeeds says little: the kernel completes it for a process that is stopped or
stuck. So each instance is asked for its options, on one of its sockets.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.kubelet.channel import CANNOT_ASK, connect_error, open_channel

ANSWER_TIMEOUT_S: Final = 3.0
_ATTEMPTS: Final = 2  # the first may fail because this process was stopped itself
_INTERVAL_S: Final = 1.0
_RETRY_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


class Liveness:
    """Probes other instances: one call per instance and second, however many resources it has."""

    def __init__(
        self, sockets: Callable[[str], Sequence[Path]], changed: Callable[[], None]
    ) -> None:
        """Probe nothing yet.

        Args:
            sockets: Returns the sockets of an instance, none if it has gone.
            changed: Called when an instance starts or stops answering.
        """
        self._sockets, self._changed = sockets, changed
        self._known: dict[str, bool] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    def answers(self, instance: str) -> bool | None:
        """Return whether an instance answers; ``None`` while that is not known."""
        return self._known.get(instance)

    def probe(self, instances: AbstractSet[str]) -> None:
        """Start a probe of each instance that is due for one, and forget those that have gone."""
        for gone in self._not_before.keys() - instances:
            self._not_before.pop(gone)
            self._known.pop(gone, None)
        now = asyncio.get_running_loop().time()
        for instance in instances:
            due = instance not in self._known or now >= self._not_before[instance]
            if due and instance not in self._probes:
                probe = asyncio.create_task(self._probe(instance), name=f"probe {instance}")
                self._probes[instance] = probe

    async def until_known(self, instances: AbstractSet[str]) -> None:
        """Wait until each of the instances has answered, or failed to, at least once."""
        self.probe(instances | self._not_before.keys())
        while probes := {
            self._probes[one] for one in instances if one not in self._known and one in self._probes
        }:
            await asyncio.wait(probes)

    async def close(self) -> None:
        """End the probes."""
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    async def _probe(self, instance: str) -> None:
        before = self._known.get(instance)
        try:
            answers = await self._ask(instance)
            for _ in range(_ATTEMPTS - 1):
                if before and answers is False:
                    answers = await self._ask(instance)
        finally:
            del self._probes[instance]
            self._not_before[instance] = asyncio.get_running_loop().time() + _INTERVAL_S
        if answers is None:
            return
        self._known[instance] = answers
        if answers is not before:
            if not answers:
                fields = {"instance": instance}
                _LOG.warning("another instance does not answer", extra={"fields": fields})
            self._changed()

    async def _ask(self, instance: str) -> bool | None:
        """Return whether an instance answers in time; ``None`` if it cannot be asked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while (socket := self._socket(instance)) is not None:
                    if await _answers(socket):
                        return True
                    await asyncio.sleep(_RETRY_S)  # it may have been replaced by another
        socket = self._socket(instance)
        if socket is None or connect_error(socket) in CANNOT_ASK:
            return None
        return False

    def _socket(self, instance: str) -> Path | None:
        sockets = self._sockets(instance)
        return random.choice(sockets) if sockets else None  # noqa: S311 (any of them)


async def _answers(path: Path) -> bool:
    """Ask for the options over one socket."""
    async with open_channel(path) as channel:
        try:
            await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(
                pb.Empty(), timeout=ANSWER_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return False
    return True
