"""Any sequence of changes ends in what is declared, and nothing forbidden happens on the way.

Hypothesis draws the sequences. A short run belongs to every test run; ``DEVHOST_MODEL_EXAMPLES=N``
makes N sequences, each longer; with ``DEVHOST_MODEL_RAW`` it does not look for the shortest that
fails. Every failure prints its steps, the last one a blob that makes them again.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.declared import Declared
from tests.model.holding import HoldingMachine
from tests.model.rules import Machine
from tests.model.sequence import Sequence
from tests.support.hosting import KUBELETS

EXAMPLES: Final = int(os.environ.get("DEVHOST_MODEL_EXAMPLES", "0"))
RAW: Final = "DEVHOST_MODEL_RAW" in os.environ
DEFAULT_EXAMPLES: Final = 8
REAL_EXAMPLES: Final = 4


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The steps of a machine are no coroutines, and share an event loop."""
    with asyncio.Runner() as runner:
        monkeypatch.setattr(Sequence, "runner", runner, raising=False)
        yield


# On the stand-in kubelet, which also hears what is never allowed in a list; and on a real device
# manager, which dies of what it cannot bear.
@pytest.mark.timeout(600 + EXAMPLES * 60)
@pytest.mark.parametrize("machine", [Machine, HoldingMachine])
@pytest.mark.parametrize("binary", KUBELETS)
def test_any_sequence_of_changes_comes_to_rest(
    monkeypatch: pytest.MonkeyPatch, machine: type[Sequence], binary: Path | None
) -> None:
    monkeypatch.setattr(Sequence, "binary", binary)
    chosen = settings(
        max_examples=EXAMPLES or (REAL_EXAMPLES if binary else DEFAULT_EXAMPLES),
        stateful_step_count=50 if EXAMPLES else 20,
        suppress_health_check=list(HealthCheck),
        # To shrink takes long, because each attempt waits for things that do not happen.
        phases=list(Phase) if EXAMPLES and not RAW else [Phase.generate],
        report_multiple_bugs=False,
    )
    began, Sequence.steps = time.monotonic(), 0
    try:
        run_state_machine_as_test(machine, settings=chosen)
    finally:
        print(f"{Sequence.steps} steps in {time.monotonic() - began:.0f} s")  # noqa: T201


# ── sequences that were drawn once ──


@pytest.mark.parametrize(
    "names", [["c1", "c0"], ["c1", "a1", "c0"], ["c1", "c0", "c1"], ["b1", "c0"]], ids="-".join
)
def test_a_renamed_file_with_a_symlink_leaves_its_former_id(names: list[str]) -> None:
    """Also that of a time before it was in no source."""
    machine = Machine.drawn([Declared("example.com/p", sources=("d1",))], names[0])
    machine.second_name("k1", rest=True)
    for old, new in itertools.pairwise(names):
        machine.rename(old, new, rest=True)
    machine.teardown()


def test_a_node_that_a_resource_before_finds_by_a_symlink_stays() -> None:
    """The node stays for as long as nothing is edited."""
    before = Declared("example.com/p", sources=("d1/k*",))
    owner = Declared("example.com/q", sources=("d0",))
    machine = Machine.drawn([before, owner], "b1")
    machine.second_name("k1", rest=True)
    machine.create("a0", rest=True)
    machine.teardown()


def test_overlap_that_is_taken_back_moves_the_node_to_the_first_resource() -> None:
    """Without another reason to scan the resource that no longer has it alone."""
    first = Declared("example.com/p", sources=("d1/k*",), overlap=True)
    second = Declared("example.com/q", sources=("d0/a*",))
    machine = Machine.drawn([second], "a0")
    machine.second_name("k0", rest=True)
    machine.add(first, 0, rest=True)
    machine.change(0, "overlap", replace(first, overlap=False), rest=True)
    assert machine.bench.entries("example.com/q") == {}
    machine.teardown()


def test_node_that_one_of_two_owners_leaves_is_offered_to_who_may_share_with_the_other() -> None:
    """The resource that waits is scanned when the one leaves that it may not share with."""
    alone = Declared("example.com/p", sources=("d0/*1",), max_devices=1)
    sharing = Declared("example.com/q", sources=("d0",), overlap=True)
    machine = Machine.drawn([alone], "a1")
    machine.add(sharing, 0, rest=True)
    machine.add(Declared("example.com/r", sources=("d0",), id="${name}-y"), 0, rest=True)
    machine.teardown()


def test_resource_that_is_moved_and_given_other_sources_has_the_seats_of_its_former_devices() -> (
    None
):
    """The first scan takes the node of the one behind it: a later scan moves nothing."""
    limited = Declared("example.com/q", sources=("d1/c*", "d0/*1"), max_devices=1)
    machine = Machine.drawn([Declared("example.com/p", sources=("d0/*1",)), limited], "a1", "c0")
    machine.add(replace(limited, sources=("d0/*1",)), 0, rest=True)
    machine.teardown()


def test_node_of_a_resource_that_has_no_seat_for_it_any_more_is_offered_by_the_one_behind() -> None:
    """When its former ID has left the kubelet's list."""
    first = Declared("example.com/p", sources=("d0/*1",))
    machine = Machine.drawn([first, replace(first, name="example.com/q")], "a1", "b1")
    machine.change(0, "max_devices", replace(first, max_devices=1), rest=True)
    assert machine.bench.entries("example.com/q") == {"b1": True}
    machine.teardown()
