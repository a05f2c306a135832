"""The rescan: finds changes that no event has told of, such as on NFS or by a mount."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from devhost.host.resource.runner import Runner

RESCAN_S: Final = 60.0


async def rescan_regularly(runners: Callable[[], Iterable[Runner]]) -> None:
    """Have all resources scanned again and again, until cancelled."""
    while True:
        await asyncio.sleep(RESCAN_S)
        for runner in list(runners()):
            runner.rescan()
