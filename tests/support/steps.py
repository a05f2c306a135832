"""Runs one preStart step for one device."""

from typing import Any

from devhost.errors import PreStartError
from devhost.host.preparation import Start, run_steps
from devhost.model.config import Step
from devhost.watch.threads import BlockingCalls


def start_of(**attributes: Any) -> Start:
    """Return what a step needs; with calls of its own."""
    return Start(calls=BlockingCalls("preStart"), **attributes)


async def run_step(number: int, step: Step, start: Start) -> None:
    """Run a step, by its place in the list; raise `PreStartError` if it fails."""
    if (why := await run_steps([(number, step)], start)) is not None:
        raise PreStartError(why)
