"""How a target of the fuzzing runs: for some examples, or for its share of some seconds.

A run of a few examples belongs to every test run. With ``DEVHOST_FUZZ_SECONDS`` all targets together
take about so long, in rounds with a seed each, of which ``--hypothesis-seed`` is the first.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, seed, settings

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
            max_examples=_ROUND if seconds else examples, suppress_health_check=list(HealthCheck)
        )

        def rounds(pytestconfig: pytest.Config) -> None:
            first = pytestconfig.getoption("--hypothesis-seed") or random.getrandbits(32)
            done.count, number = 0, int(first)
            end = time.monotonic() + seconds
            try:
                while True:
                    # A property takes a seed once: each round makes its own.
                    chosen(seed(number)(given(**given_by)(test)))()
                    if time.monotonic() >= end:
                        break
                    number += 1
            finally:
                print(f"{test.__name__}: {done.count} examples, last seed {number}")  # noqa: T201

        rounds.__name__ = test.__name__
        rounds.__doc__ = test.__doc__
        return pytest.mark.timeout(seconds * 2 + 300)(rounds)  # type: ignore[return-value]

    return decorate


class _Done:
    count = 0


done: Final = _Done()


@contextmanager
def bounded(limit: float = HANG_S) -> Iterator[None]:
    """Count an example, and fail if it takes so much CPU time that it hangs, or nearly."""
    start = time.process_time()
    yield
    assert time.process_time() - start < limit, "hangs, or nearly"
    done.count += 1
