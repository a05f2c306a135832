"""Garbage is looked for where it can be, and the collector is left as it was."""

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from devhost.memory import gc_freeze_many, gc_freeze_started, gc_frozen, gc_paused


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("context", [gc_paused, gc_frozen])
def test_the_collector_is_off_meanwhile_and_then_as_before(context: type, enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with context():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled
    with contextlib.suppress(LookupError), context():
        raise LookupError
    assert gc.isenabled() == enabled


def test_what_lasts_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    with gc_frozen():
        kept = [Knot() for _ in range(100)]
    assert gc.get_freeze_count() >= before + len(kept)


def test_a_process_that_lives_long_collects_only_after_its_start() -> None:
    with gc_frozen(long_lived=True):
        pass
    assert not gc.isenabled()
    gc_freeze_started()
    assert gc.isenabled()


def test_settling_drops_garbage_and_keeps_the_rest() -> None:
    kept, dropped = Knot(), Knot()
    seen = weakref.ref(dropped)
    del dropped
    gc_freeze_started()
    assert seen() is None
    assert kept.own is kept
    assert gc.get_freeze_count()


@pytest.mark.parametrize(("count", "frozen"), [(9_999, False), (10_000, True)])
def test_very_many_devices_are_frozen(count: int, frozen: bool) -> None:
    kept, before = [Knot() for _ in range(100)], gc.get_freeze_count()
    gc_freeze_many(count)
    assert (gc.get_freeze_count() >= before + len(kept)) is frozen
