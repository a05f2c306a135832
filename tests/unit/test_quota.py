"""How many device IDs each resource may offer: all of them are bounded, and nobody is pushed out."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost import limits
from devhost.host.quota import Quota


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "DEVICE_IDS_MAX", 100)
        yield


def test_what_is_declared_is_granted() -> None:
    quota = Quota()
    quota.declare({"tokens": 99, "other": 1})
    assert (quota.most("tokens"), quota.most("other")) == (99, 1)
    quota.use("other", 1)
    assert quota.most("tokens") == 99


def test_one_that_grows_leaves_room_for_others() -> None:
    quota = Quota()
    quota.declare({"flood": 10, "tokens": 20, "calm": 10})
    assert quota.most("flood") == 50
    quota.use("flood", 50)
    assert (quota.most("flood"), quota.most("calm"), quota.most("tokens")) == (50, 20, 30)


def test_one_that_was_cut_is_told_of_room() -> None:
    told = []
    quota = Quota()
    quota.declare({"a": 1, "b": 1})
    quota.use("b", quota.most("b"))
    quota.use("a", quota.most("a"), lambda: told.append("a"))
    quota.use("b", 80)
    assert not told
    quota.use("b", 10)
    assert told
    quota.use("a", quota.most("a"))
    del told[:]
    quota.end("b")
    assert not told


def test_nobody_is_pushed_out_by_a_change() -> None:
    """What is offered stays, also when more resources are declared."""
    quota = Quota()
    quota.declare({"a": 1})
    quota.use("a", quota.most("a"))
    assert quota.most("a") == 100
    quota.declare({"a": 1, "b": 50})
    assert quota.most("a") == 100
    assert quota.most("b") == 0


@given(
    declared=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 16), min_size=1),
    uses=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 200))),
)
def test_there_are_never_more_than_may_be(
    declared: dict[str, int], uses: list[tuple[str, int]]
) -> None:
    quota, used = Quota(), dict[str, int]()
    quota.declare(declared)
    for name, wanted in uses:
        if name in declared:
            used[name] = min(wanted, quota.most(name))
            quota.use(name, used[name])
            assert sum(used.values()) <= limits.DEVICE_IDS_MAX
            assert all(quota.most(one) >= declared[one] for one in declared)


@given(
    operations=st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 40)),
            st.tuples(st.sampled_from("abcd"), st.integers(0, 60)),
            st.sampled_from("abcd"),
        )
    )
)
def test_the_total_is_that_of_all(operations: list[dict[str, int] | tuple[str, int] | str]) -> None:
    """It is kept up to date, and the same as that of a new quota with the same resources."""
    quota, declared, used = Quota(), dict[str, int](), dict[str, int]()
    for operation in operations:
        match operation:
            case dict():
                declared = operation
                quota.declare(declared)
            case (name, ids):
                used[name] = ids
                quota.use(name, ids)
            case name:
                used.pop(name, None)
                quota.end(name)
    fresh = Quota()
    for name, ids in used.items():
        fresh.use(name, ids)
    fresh.declare(declared)
    assert [quota.most(name) for name in "abcd"] == [fresh.most(name) for name in "abcd"]
