"""How long a registration waits until kubelet has opened its stream."""

import asyncio
import math

import pytest

from devhost.backends.deviceplugin import registration
from devhost.fake_kubelet.connections import PluginEndpoint, Plugins
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model.resource_state import State
from tests.support.daemon import tokens, until
from tests.support.hosting import Hosting

NAME = "example.com/t"


async def test_registration_waits_for_a_late_stream(
    standin: SimulatedKubelet,
    hosting: Hosting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Except at the first attempt after a stream has ended, when a bug of 1.36 is likely."""
    watch = Plugins._watch

    async def watch_late(plugins: Plugins, endpoint: PluginEndpoint) -> None:
        await asyncio.sleep(0.1)
        await watch(plugins, endpoint)

    monkeypatch.setattr(Plugins, "_watch", watch_late)
    monkeypatch.setattr(registration, "QUICK_STREAM_TIMEOUT_S", 0.0)
    monkeypatch.setattr(registration, "STREAM_TIMEOUT_S", 60.0)
    monkeypatch.setattr(registration, "STABLE_AFTER_S", math.inf)
    monkeypatch.setattr(registration, "_FAILURE_PAUSE_S", 0.0)
    hosting.start(tokens(t=3))
    await hosting.until(NAME, State.REGISTERED)
    (endpoint,) = standin._plugins.connected.values()
    await endpoint.channel.close()

    def attempts_have_ended() -> bool:
        count = len(standin.registrations)
        return count > 3 or (count == 3 and hosting.status(NAME).state is State.REGISTERED)

    await until(attempts_have_ended, "two more attempts")
    shown = [getattr(record, "fields", {}) for record in caplog.records]
    reasons = [fields["reason"] for fields in shown if fields.get("state") == State.BACKING_OFF]
    assert reasons == ["registered, but the kubelet opened no stream"]
