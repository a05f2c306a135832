"""How many devices a resource should have, over time and edits."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.host.expectations import ACCEPTED_AFTER_S, Expectation
from devhost.loading.shapes import shaped
from devhost.model.config import Resource

HOUR: Final = 3600.0


def resource(**options: Any) -> Resource:
    return shaped(Resource, {"name": "a.b/c", "sources": ["/dev/x*"], **options})


def after(*counts: tuple[float, int], **options: Any) -> Expectation:
    """What is expected when devices were counted at these hours."""
    expectation = Expectation()
    for hours, found in counts:
        expectation = expectation.then(Expectation.of(resource(**options), found), hours * HOUR)
    return expectation


def test_a_resource_that_never_had_a_device_misses_none() -> None:
    assert after((0, 0), (1, 0)).missing(2 * HOUR) == 0


def test_a_device_that_goes_is_missing_for_a_day() -> None:
    gone = after((0, 2), (10, 1))
    assert (gone.expected(10 * HOUR), gone.missing(10 * HOUR)) == (2, 1)
    assert gone.missing(10 * HOUR + ACCEPTED_AFTER_S - 1) == 1
    assert gone.missing(10 * HOUR + ACCEPTED_AFTER_S) == 0


def test_one_that_comes_back_is_not() -> None:
    assert after((0, 2), (1, 0), (2, 2)).missing(2 * HOUR) == 0


def test_each_device_has_a_day_of_its_own() -> None:
    """The second that goes is not accepted with the first."""
    gone = after((0, 3), (1, 2), (24, 1))
    assert [gone.missing(hours * HOUR) for hours in (24, 26, 49)] == [2, 1, 0]


def test_a_minimum_counts_alone() -> None:
    assert after((0, 0), minDevices=2).missing(0) == 2
    assert after((0, 5), (1, 3), minDevices=2).missing(HOUR) == 0
    assert after((0, 5), (1, 0), minDevices=0).missing(HOUR) == 0


@pytest.mark.parametrize(
    "edit",
    [
        {"sources": ["/dev/y*"]},
        {"maxDevices": 1},
        {"id": "${name}"},
        {"group": "${name}"},
        {"overlap": "allow"},
    ],
)
def test_an_edit_of_what_is_found_explains_fewer(edit: dict[str, Any]) -> None:
    edited = Expectation.of(resource(**edit), 1)
    assert after((0, 2)).then(edited, HOUR).missing(HOUR) == 0


@pytest.mark.parametrize("edit", [{"replicas": 2}, {"prefer": "numa"}, {"minDevices": 2}])
def test_another_edit_does_not(edit: dict[str, Any]) -> None:
    edited = Expectation.of(resource(**edit), 1)
    assert after((0, 2)).then(edited, HOUR).missing(HOUR) == 1


def test_devices_that_another_resource_has_now_are_not_missing() -> None:
    three = after((0, 3))
    assert three.then(Expectation.of(resource(), 1, 2), HOUR).missing(HOUR) == 0
    assert three.then(Expectation.of(resource(), 0, 2), HOUR).missing(HOUR) == 1


def test_a_clock_that_was_wrong_is_no_reason_to_miss_a_device_for_years() -> None:
    gone = after((0, 1), (1e6, 2), (1e6, 1))
    assert gone.missing(HOUR) == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), min_size=1))
def test_the_most_of_a_day_is_expected(steps: list[tuple[int, int]]) -> None:
    """As if every count were remembered: each lasts until the next one."""
    now, counts = 0, []
    for pause, found in steps:
        now += pause
        counts.append((now, found))
    ends = [*(moment for moment, _ in counts[1:]), now]
    lately = [
        found
        for (_, found), end in zip(counts, ends, strict=True)
        if (now - end) * HOUR < ACCEPTED_AFTER_S
    ]
    assert after(*counts).expected(now * HOUR) == max(lately)
