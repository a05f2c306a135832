"""How a target of the fuzzing runs: for some examples, or for its share of some seconds.

A run of a few examples belongs to every test run. With ``DEVHOST_FUZZ_SECONDS`` all targets together
take about so long. ``DEVHOST_FUZZ_SEED`` makes the inputs the same each time, so that a test run says
something about the change that it tests; without it they are others each time.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, seed, settings

SECONDS: Final = float(os.environ.get("DEVHOST_FUZZ_SECONDS", "0"))
SEED: Final = int(os.environ.get("DEVHOST_FUZZ_SEED", "0")) or random.getrandbits(32)
# Of CPU time, for at most 64 KiB; far above what the slowest machine takes: to find what hangs.
HANG_S: Final = 20.0
_ROUND: Final = 50  # examples between two looks at the clock, at least

Test = TypeVar("Test", bound=Callable[..., None])


def fuzzed(share: float, examples: int, **given_by: Any) -> Callable[[Test], Test]:
    """Run a test for some examples, or for its share (of 1) of the seconds that were asked for."""
    seconds = SECONDS * share

    def decorate(test: Test) -> Test:
        chosen = settings(
            max_examples=_ROUND if seconds else examples,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        if seconds:  # seeded here, in CI, too
            chosen = settings(chosen, derandomize=False, database=None)

        def rounds() -> None:
            done.count = 0
            end = time.monotonic() + seconds
            for number in itertools.count(SEED):
                # A property takes a seed once: each round makes its own.
                once = given(**given_by)(test)
                chosen(seed(number)(once) if seconds else once)()
                if time.monotonic() >= end:
                    break
            print(f"{test.__name__}: {done.count} examples, seed {SEED}")  # noqa: T201

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
