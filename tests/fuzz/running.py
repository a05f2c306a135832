"""How a target of the fuzzing runs: for some examples, or for its share of some seconds.

A run of a few examples belongs to every test run. With ``DEVHOST_FUZZ_SECONDS`` all targets together
take about so long, with other inputs each time.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings

SECONDS: Final = float(os.environ.get("DEVHOST_FUZZ_SECONDS", "0"))
# Of CPU time, for at most 64 KiB; far above what the slowest machine takes: to find what hangs.
HANG_S: Final = 20.0
_ROUND: Final = 50  # examples between two looks at the clock, at least

Test = TypeVar("Test", bound=Callable[..., None])


def fuzzed(share: float, examples: int, **given_by: Any) -> Callable[[Test], Test]:
    """Run a test for some examples, or for its share (of 1) of the seconds that were asked for."""
    seconds = SECONDS * share

    def decorate(test: Test) -> Test:
        chosen = settings(
            max_examples=max(_ROUND, int(seconds) * 10) if seconds else examples,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        if seconds:  # in CI, too
            chosen = settings(chosen, derandomize=False)
        once = chosen(given(**given_by)(test))

        def rounds() -> None:
            done.count = 0
            end = time.monotonic() + seconds
            once()
            while time.monotonic() < end:
                once()
            print(f"{test.__name__}: {done.count} examples")  # noqa: T201

        rounds.__name__ = test.__name__
        rounds.__doc__ = test.__doc__
        return pytest.mark.timeout(seconds * 2 + 300)(rounds)  # type: ignore[return-value]

    return decorate


class _Done:
    count = 0


done: Final = _Done()


@contextmanager
def bounded() -> Iterator[None]:
    """Count an example, and fail if it takes so much CPU time that it hangs, or nearly."""
    start = time.process_time()
    yield
    assert time.process_time() - start < HANG_S, "hangs, or nearly"
    done.count += 1
