"""When Python looks for garbage: not where there is none, and never again in what stays."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_MANY: Final = 10_000  # devices
_SELDOM: Final = 1000  # times that younger values are looked through, to once all others


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Build many values, none of which is garbage yet, without a look for it after every few."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def lasting(*, tidy: bool = False) -> Iterator[None]:
    """Build what stays as long as the process, such as modules: no look at any of it, ever.

    Args:
        tidy: Drop first what is garbage of it, and look through old values seldom from then on:
            for a process that lives long, whose calls would wait while that is done.
    """
    with uncollected():
        yield
        if tidy:
            gc.collect()
            youngest, younger, _ = gc.get_threshold()
            gc.set_threshold(youngest, younger, _SELDOM)
        gc.freeze()


def spare(count: int) -> None:
    """Keep the collector away from what so many devices are made of, if they are very many.

    None of it is ever garbage that only the collector finds, and to go through it holds up all
    of Python for long. What else is alive then and becomes such garbage is never found: so this
    is only for where it matters.
    """
    if count >= _MANY:
        youngest, younger, _ = gc.get_threshold()
        gc.set_threshold(youngest, younger, _SELDOM)
        gc.freeze()


def settle() -> None:
    """Drop the latest garbage of a start, and take all that is left for what stays.

    To look at all of it takes longer than a call of the kubelet is to wait.
    """
    gc.collect(1)
    gc.freeze()
