"""A server outlives the registration that it was made for, where nothing of that is left."""

import asyncio
from pathlib import Path

from devhost.model.state import State
from tests.scenarios.test_reload import A, reloading
from tests.support.hosting import Kubelet

TRIES = 20


async def test_when_the_kubelet_restarts(started: Kubelet, directory: Path) -> None:
    """The socket is the same one, on a name that no kubelet has seen, registered once.

    A real kubelet that dies may be asked once more, and after a failure no server is kept.
    """
    text = f"version: v1\nresources: [{{name: {A}, sources: [static: [t]]}}]\n"
    plugins, rested, endpoints = directory / "plugins", False, list[str]()
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        registration = running.runner(A)._registration
        while not rested and len(endpoints) < TRIES:
            server = registration._server
            assert server is not None
            endpoints.append(server.endpoint)
            await started.restart()
            await started.wait(A, 1, 1)
            async with asyncio.timeout(60):
                while running.runner(A).status.state is not State.REGISTERED:
                    await asyncio.sleep(0.005)
            rested = registration._server is server
            assert server.endpoint not in endpoints or not rested
        assert rested
        assert not any((plugins / one).exists() for one in endpoints)
    assert not list(plugins.glob("devhost-*"))
