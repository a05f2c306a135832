"""When Python looks for garbage: not where there is none, and never again in what stays."""

import contextlib
import gc
from collections.abc import Iterator


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
        tidy: Drop first what is garbage of it, for a process that lives long.
    """
    with uncollected():
        yield
        if tidy:
            gc.collect()
        gc.freeze()


def settle() -> None:
    """Drop the garbage of a start, and take all that is left for what stays."""
    gc.collect()
    gc.freeze()
