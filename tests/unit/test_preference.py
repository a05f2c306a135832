"""Which devices a container had best receive."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devhost.allocation.preference import Preference, preferred
from devhost.model.limits import DEVICE_IDS_MAX
from devhost.model.names import natural, share_ids, without_share

POLICIES: tuple[Preference, ...] = ("packed", "spread", "numa", "none")


def ask(
    policy: Preference,
    available: str | Iterable[str],
    size: int,
    *,
    must: str = "",
    replicas: int = 1,
    limit: int | None = None,
    numa: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Ask and answer in words separated by blanks, for tests to be read."""
    ids = available.split() if isinstance(available, str) else available
    return " ".join(
        preferred(
            policy,
            ids,
            must.split(),
            size,
            replicas=replicas,
            max_per_container=limit,
            numa_nodes=numa or {},
        )
    )


def shares(**counts: str) -> list[str]:
    """Return the named shares of devices: ``a="02"`` is a::0 and a::2."""
    return [f"{device}::{share}" for device, which in counts.items() for share in which]


# ── the definition itself, by trying everything ────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """A request small enough to try all answers."""

    policy: Preference
    available: list[str]
    must: list[str]
    size: int
    replicas: int
    numa: dict[str, tuple[int, ...]]

    @property
    def ids(self) -> list[str]:
        return natural({*self.available, *self.must})

    def answer(self) -> tuple[str, ...]:
        return preferred(
            self.policy,
            self.available,
            self.must,
            self.size,
            replicas=self.replicas,
            max_per_container=1,
            numa_nodes=self.numa,
        )


def fair(case: Case, answer: Iterable[str]) -> bool:
    """Say whether no device gives its k+1-th share while another could give its k-th."""
    taken = set(answer)
    counts = Counter(map(without_share, taken))
    giving = {without_share(one) for one in taken - set(case.must)}
    able = {without_share(one) for one in set(case.ids) - taken}
    return not any(counts[giver] >= counts[other] + 2 for giver in giving for other in able)


def numa_score(case: Case, answer: Iterable[str]) -> tuple[Any, ...]:
    """Return nodeless devices, then the size, the left-over and the numbers of the nodes."""
    taken = {without_share(one) for one in answer}
    nodes = sorted({node for of_device in case.numa.values() for node in of_device})
    left = {without_share(one) for one in case.ids} - taken

    def on(device: str, some: Iterable[int]) -> bool:
        return bool(set(case.numa.get(device, ())) & set(some))

    serving = (
        (len(some), sum(on(one, some) for one in left), some)
        for some in subsets(nodes)
        if all(on(one, some) for one in taken if case.numa.get(one))
    )
    return sum(not case.numa.get(without_share(one)) for one in answer), *min(serving)


def score(case: Case, answer: Iterable[str]) -> tuple[Any, ...]:
    """Return what the best answer has the least of; no two answers have the same."""
    answer = list(answer)
    order = natural({without_share(one) for one in case.ids})
    free = Counter(map(without_share, case.ids))
    devices = sorted(order.index(without_share(one)) for one in answer)
    policy: tuple[Any, ...] = ()
    if case.policy in ("packed", "spread", "none"):
        sign = 1 if case.policy == "packed" else -1
        policy = tuple(sorted((sign * free[order[index]], index) for index in devices))
    elif case.policy == "numa":
        policy = numa_score(case, answer)
    lowest = sorted((order.index(without_share(one)), case.ids.index(one)) for one in answer)
    return policy, devices, lowest


def subsets(things: list[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(things, count) for count in range(len(things) + 1))


@st.composite
def cases(draw: st.DrawFn, policies: tuple[Preference, ...] = POLICIES) -> Case:
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    names = st.sampled_from(["d", "d1", "d01", "d2", "d10", "e", "e:5", "f9"])
    devices = draw(st.lists(names, unique=True, min_size=1, max_size=8 if replicas == 1 else 5))
    everything = [one for device in devices for one in share_ids(device, replicas)]
    available = draw(st.lists(st.sampled_from(everything), unique=True, max_size=9))
    must = draw(st.lists(st.sampled_from(everything), unique=True, max_size=3))
    nodes = st.lists(st.integers(0, 4), unique=True, max_size=draw(st.integers(1, 3)))
    numa = draw(st.dictionaries(names, nodes.map(tuple)))
    total = len({*available, *must})
    size = draw(st.integers(1, max(1, total)))
    return Case(draw(st.sampled_from(policies)), available, must, size, replicas, numa)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_answer_is_the_best_of_all(policy: Preference) -> None:
    """It is what trying each set of IDs finds by the definition."""

    @settings(max_examples=100)
    @given(cases((policy,)))
    def check(case: Case) -> None:
        assume(len(case.must) <= case.size <= len(case.ids))
        possible = [
            one
            for one in combinations(case.ids, case.size)
            if set(case.must) <= set(one) and fair(case, one)
        ]
        assert case.answer() == min(possible, key=lambda one: score(case, one))

    check()


@given(cases())
def test_no_answer_is_more_even(case: Case) -> None:
    """The most shares of one device are as few as can be; then of the next, and so on."""
    assume(len(case.must) <= case.size <= len(case.ids))

    def counts(answer: Iterable[str]) -> list[int]:
        return sorted(Counter(map(without_share, answer)).values(), reverse=True)

    possible = (one for one in combinations(case.ids, case.size) if set(case.must) <= set(one))
    assert counts(case.answer()) == min(map(counts, possible))


@given(cases(), st.integers(-2, 12), st.sampled_from([None, 1, 2]))
def test_an_answer_is_empty_or_what_was_asked_for(case: Case, size: int, limit: int | None) -> None:
    """Never an error, never too many, and always the IDs that must be included."""
    answer = preferred(
        case.policy,
        case.available,
        case.must,
        size,
        replicas=case.replicas,
        max_per_container=limit,
        numa_nodes=case.numa,
    )
    silent = case.policy == "none" and limit is None and case.replicas == 1
    if silent or size < 1 or not len(case.must) <= size <= len(case.ids):
        assert answer == ()
    else:
        assert len(set(answer)) == len(answer) == size
        assert set(case.must) <= set(answer) <= set(case.ids)
        assert list(answer) == natural(answer)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_makes_no_difference(case: Case, chance: random.Random) -> None:
    """Nor does an ID that is given twice, nor where the kubelet lists the must-include ones."""
    available = [*case.available, *case.available[:2], *case.must]
    must = [*case.must, *case.must]
    chance.shuffle(available)
    chance.shuffle(must)
    numa = dict(reversed(case.numa.items()))
    other = Case(case.policy, available, must, case.size, case.replicas, numa)
    assert other.answer() == case.answer()


# ── examples ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("available", "must", "size"),
    [("a b", "", 0), ("a b", "", -1), ("a b", "a b", 1), ("a b", "", 3), ("", "", 1)],
)
def test_what_cannot_be_is_answered_with_nothing(
    policy: Preference, available: str, must: str, size: int
) -> None:
    assert ask(policy, available, size, must=must, limit=1) == ""


def test_none_spreads_shares_and_leaves_whole_devices_to_kubelet() -> None:
    free = shares(a="012", b="0", c="01")
    for limit in (None, 2):
        assert ask("none", free, 2, replicas=3, limit=limit) == "a::0 c::0"
        assert ask("none", free, 4, replicas=3, limit=limit) == "a::0 a::1 b::0 c::0"
    assert ask("none", "a b c", 2) == ""
    assert ask("none", "a b c", 2, limit=1) == "a b"


def test_a_limit_that_cannot_be_kept_is_no_error() -> None:
    assert ask("none", shares(a="012"), 3, replicas=3, limit=1) == "a::0 a::1 a::2"


def test_packed_takes_the_most_used_devices() -> None:
    """So that b stays whole; of c and d, equally used, the first."""
    free = shares(a="01", b="012", c="2", d="0")
    assert ask("packed", free, 1, replicas=3) == "c::2"
    assert ask("packed", free, 3, replicas=3) == "a::0 c::2 d::0"


def test_spread_takes_the_least_used_devices() -> None:
    free = shares(a="01", b="012", c="2", d="012")
    assert ask("spread", free, 1, replicas=3) == "b::0"
    assert ask("spread", free, 3, replicas=3) == "a::0 b::0 d::0"


def test_the_policy_decides_the_last_share_of_each_round() -> None:
    """Each device once, and then by the policy, whatever is left."""
    free = shares(a="01", b="012", c="2")
    assert ask("packed", free, 4, replicas=3) == "a::0 a::1 b::0 c::2"
    assert ask("spread", free, 4, replicas=3) == "a::0 b::0 b::1 c::2"
    assert ask("packed", free, 6, replicas=3) == "a::0 a::1 b::0 b::1 b::2 c::2"


def test_names_and_shares_are_in_natural_order() -> None:
    assert ask("packed", "c10 c9 c1", 2) == "c1 c9"
    assert ask("spread", ["c::10", "c::9", "c::2"], 2, replicas=11) == "c::2 c::9"


def test_a_device_that_must_be_included_comes_last_for_a_second_share() -> None:
    free = shares(a="012", b="0", c="0")
    assert ask("spread", free, 2, must="a::1", replicas=3) == "a::1 b::0"
    assert ask("packed", free, 4, must="a::1", replicas=3) == "a::0 a::1 b::0 c::0"
    assert ask("packed", free, 3, must="a::0 a::1", replicas=3) == "a::0 a::1 b::0"


def test_what_must_be_included_is_included_even_if_it_is_unknown() -> None:
    assert ask("packed", "a b", 2, must="x") == "a x"
    assert ask("numa", "a b", 1, must="x", numa={"b": (1,)}) == "x"
    assert ask("spread", "", 1, must="x") == "x"
    assert ask("numa", "a b", 2, must="x", numa={"x": (1,), "a": (0,), "b": (1,)}) == "b x"


def test_numa_takes_as_few_nodes_as_possible() -> None:
    """Two devices are on node 1; node 0 has one only."""
    numa = {"a": (0,), "b": (1,), "c": (2,), "d": (1,)}
    assert ask("numa", "a b c d", 2, numa=numa) == "b d"
    assert ask("numa", "a b c d", 3, numa=numa) == "a b d"


def test_numa_leaves_the_fewest_devices_over() -> None:
    """The pair on node 1 goes, so that the three on node 0 stay together."""
    numa = {"a": (0,), "b": (0,), "c": (0,), "x": (1,), "y": (1,)}
    assert ask("numa", "a b c x y", 2, numa=numa) == "x y"
    assert ask("numa", "a b c x y", 3, numa=numa) == "a b c"
    assert ask("numa", "a b x y", 2, numa=numa) == "a b"


def test_numa_cannot_do_without_the_nodes_of_what_must_be_included() -> None:
    """x is on node 1: what is there costs no other node; else one is added."""
    numa = {"a": (0,), "b": (0,), "x": (1,), "y": (1,), "z": (2,)}
    assert ask("numa", "a b x y", 2, must="x", numa=numa) == "x y"
    assert ask("numa", "a b x y z", 4, must="x", numa=numa) == "a b x y"
    assert ask("numa", "a b x z", 2, must="x", numa=numa) == "x z"


def test_a_device_on_several_nodes_is_served_by_each() -> None:
    numa = {"a": (0,), "b": (0, 1), "c": (1,), "d": (1,)}
    assert ask("numa", "a b c d", 3, numa=numa) == "b c d"
    assert ask("numa", "a b c d", 2, numa=numa) == "a b"
    assert ask("numa", "a b c", 2, must="b", numa=numa) == "a b"


def test_devices_without_a_node_come_last() -> None:
    numa: dict[str, tuple[int, ...]] = {"b": (0,), "c": (), "d": (1,)}
    assert ask("numa", "a b c d", 2, numa=numa) == "b d"
    assert ask("numa", "a b c d", 3, numa=numa) == "a b d"
    assert ask("numa", "a b c d", 2, must="c", numa=numa) == "b c"
    assert ask("numa", "a b c d", 2) == "a b"


def test_distinct_devices_go_before_numa() -> None:
    numa = {"a": (0,), "b": (1,)}
    assert ask("numa", shares(a="01", b="01"), 2, replicas=2, numa=numa) == "a::0 b::0"


def test_numa_has_nothing_to_say_once_all_devices_are_in_the_answer() -> None:
    """Their nodes are in it, wherever second shares are taken; no node still comes last."""
    free = shares(a="01", b="01", c="01")
    numa = {"a": (0,), "b": (1,), "c": (1,)}
    assert ask("numa", free, 5, replicas=2, numa=numa) == "a::0 a::1 b::0 b::1 c::0"
    del numa["a"]
    assert ask("numa", free, 5, replicas=2, numa=numa) == "a::0 b::0 b::1 c::0 c::1"


def test_numa_beyond_eight_nodes_leaves_out_only_devices_without_a_node() -> None:
    numa: dict[str, tuple[int, ...]] = {f"d{node}": (node,) for node in range(9)}
    numa |= {"d8b": (8,)}
    assert ask("numa", ["a", *numa], 2, numa=numa) == "d0 d1"
    del numa["d0"]
    assert ask("numa", ["a", *numa], 2, numa=numa) == "d8 d8b"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replicas", [1, 4, DEVICE_IDS_MAX])
def test_many_devices_are_no_trouble(policy: Preference, replicas: int) -> None:
    """It takes well below a second; what grows faster than the devices would take minutes."""
    chance = random.Random(1)
    devices = [f"0000:{index:04x}:00.0" for index in range(DEVICE_IDS_MAX // replicas)]
    numa = {one: tuple(chance.sample(range(8), chance.choice([1, 2]))) for one in devices}
    ids = [one for device in devices for one in share_ids(device, replicas)]
    chance.shuffle(ids)
    start = time.process_time()
    assert len(ask(policy, ids, 1_000, replicas=replicas, limit=1, numa=numa).split()) == 1_000
    assert time.process_time() - start < 5
