"""Python's cyclic garbage collector: off where there is no garbage, away from what stays alive."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_MANY: Final = 10_000  # devices
_OLD_AFTER: Final = 1000  # collections of the middle generation before one of the oldest


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Build many values, none of which is garbage yet, without collections in between."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def gc_frozen(*, long_lived: bool = False) -> Iterator[None]:
    """Build values that live as long as the process, such as modules; they are never scanned.

    The garbage among them stays: 1 of 50 objects of imports, which take 10 ms to look through.

    Args:
        long_lived: For a process that lives long: no collections until `gc_freeze_started`, and
            from then on rarely one of the oldest generation, because calls wait meanwhile.
    """
    with gc_paused():
        yield
        gc.freeze()
    if long_lived:
        youngest, middle, _ = gc.get_threshold()
        gc.set_threshold(youngest, middle, _OLD_AFTER)
        gc.disable()


def gc_freeze_many(count: int) -> None:
    """Exempt all values from collection if there are so many devices that it would take long.

    Devices never form cycles. Other values that exist now and do would never be collected, so
    this is only for very many devices.
    """
    if count >= _MANY:
        gc.freeze()


def gc_freeze_started() -> None:
    """Drop the latest garbage of a start, exempt all other values, and begin to collect.

    A full collection would take longer than a call of kubelet may wait. During a start
    collections take 5 % of the instructions, and find next to nothing.
    """
    gc.collect(1)
    gc.freeze()
    gc.enable()
