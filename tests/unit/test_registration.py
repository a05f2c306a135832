"""How long a registration waits for what kubelet does, by a fake one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from devhost.backends.deviceplugin import registration
from devhost.backends.deviceplugin.device_list import DeviceList
from devhost.backends.deviceplugin.registration import Registration
from devhost.backends.deviceplugin.servicer import Servicer
from devhost.errors import KubeletError


class Directory:
    """A plugin directory whose kubelet accepts everything."""

    def __init__(self) -> None:
        self.concurrency = asyncio.Semaphore(1)
        self.registered, self.leave_after, self.inflight_since = 0, 0.0, list[float]()
        self.kubelet = self.pods = self

    @property
    def locks(self) -> dict[str, None]:
        return {}

    async def register(self, _name: str, _endpoint: str) -> None:
        self.registered += 1


class Parts:
    """The part that answers, and a server of it, for a test."""

    name = endpoint = "example.com/a"
    pre_start_required = False

    def __init__(self) -> None:
        self.servicer = Servicer(self, DeviceList())  # type: ignore[arg-type]

    async def registered(self, directory: Any, ends: int) -> None:
        await of(directory, ends)._register(self.servicer, self.endpoint)

    def open_stream(self) -> None:
        self.servicer._streams.add(asyncio.Event())
        self.servicer.changed.set()


def of(directory: Any, ends: int) -> Any:
    hooks: Any = SimpleNamespace(
        handler=Parts(), set_state=lambda _state, _reason: None, held=frozenset, exclusive=False
    )
    tried = Registration(directory, hooks)
    tried._ends = ends
    return tried


async def test_registration_waits_for_a_late_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except at the first attempt after a stream has ended, when a bug of 1.36 is likely."""
    monkeypatch.setattr(registration, "QUICK_STREAM_TIMEOUT_S", 0.0)
    directory = Directory()
    for ends in (0, 2):
        server = Parts()
        asyncio.get_running_loop().call_later(0.05, server.open_stream)
        await server.registered(directory, ends)
    with pytest.raises(KubeletError, match="opened no stream"):
        await Parts().registered(directory, 1)
    assert directory.registered == 3
