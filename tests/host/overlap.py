"""Several hosts on one plugin directory."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.host.host import Host, Settings
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.state import State, Status
from devhost.standin.kubelet import AdmissionError
from tests.support.hosting import Kubelet

POLL_S = 0.005
WAIT_S = 60.0


def tokens(who: str, **counts: int) -> str:
    """Return a configuration with resources of so many tokens; its answers say whose it is."""
    resources = "".join(
        f'\n  - {{name: "example.com/{name}", sources: [static: {count}],'
        f" allocate: {{env: {{WHO: {who}}}}}}}"
        for name, count in counts.items()
    )
    return f"version: v1\nresources:{resources or ' []'}\n"


class Instance:
    """A host in this process."""

    def __init__(self, directory: Path, config: str) -> None:
        settings = Settings(
            directory / "plugins", "node-1", HostFiles(), Policy(), leave_after=0.3, hold_s=0.0
        )
        self.host = Host(loads(config).require(), settings)
        self.task = asyncio.create_task(self.host.run())

    def status(self, resource: str) -> Status:
        found = [one.status for one in self.host.resources if one.name == resource]
        return found[0] if found else Status()

    async def until(self, resource: str, state: State) -> Status:
        """Wait until a resource is in a state."""
        try:
            async with asyncio.timeout(WAIT_S):
                while self.status(resource).state is not state:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"{resource}: not {state}, {self.status(resource)}") from None
        return self.status(resource)

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


Start = Callable[[str], Instance]  # starts a host with a configuration


async def served_by(kubelet: Kubelet, who: str, resource: str, count: int) -> None:
    """Wait until all is allocatable and a container is answered by the right instance."""
    seen: object = None
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    answer = await kubelet.admit("probe", {"app": {resource: 1}})
                except AdmissionError as error:
                    seen = error
                else:
                    await kubelet.free("probe")
                    counts = (await kubelet.capacity()).get(resource)
                    seen = answer["app"]["envs"], counts
                    if seen == ({"WHO": who}, (count, count)):
                        return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"{resource}: not served by {who}, last seen: {seen}") from None
