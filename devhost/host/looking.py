"""Work on the host's files in a thread, around what does not answer."""

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

from devhost.hostfs.hung import HostCall
from devhost.threads import in_thread

T = TypeVar("T")


async def around_hung(
    name: str, work: Callable[[], T], own: Callable[[], Iterable[str] | None], seconds: float
) -> T:
    """Return the result of work; where it hangs at an entry, of the same work without that.

    Args:
        name: The name of the thread.
        work: It may be done twice at a time.
        own: Returns the directories that the work is about, if they are known: for these it waits.
        seconds: How long a call to a filesystem may take.
    """
    while True:
        call = HostCall(work)
        running: asyncio.Future[T] = in_thread(name, call)
        while True:
            done, _ = await asyncio.wait({running}, timeout=seconds)
            if done:
                return running.result()
            directories = own()
            if directories is not None and await in_thread(
                "mounts", functools.partial(call.mark, seconds, tuple(directories))
            ):
                break
