"""A wait that is long enough for a busy machine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE = 120.0  # seconds for what is awaited
T = TypeVar("T")


async def until_said(ask: Callable[[], Awaitable[T]], true: Callable[[T], object]) -> T:
    """Ask until the answer is so, and return it."""
    seen: object = None
    try:
        async with asyncio.timeout(PATIENCE):
            while not true(answer := await ask()):
                seen = answer
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"the last answer is {seen}") from None
    return answer
