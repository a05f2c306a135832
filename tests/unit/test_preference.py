"""The devices that a container had best receive."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devhost.allocation.preference import Preference, preferred
from devhost.backends.share_ids import offered_id, offered_ids
from devhost.model.names import natural
from tests.support.offered import offered

POLICIES: tuple[Preference, ...] = ("packed", "spread", "numa")


def device_of(advertised_id: str) -> str:
    return offered_id(advertised_id).device


def ask(
    policy: Preference,
    available: Iterable[str],
    size: int,
    *,
    must: Iterable[str] = (),
    replicas: int = 1,
    numa: Mapping[str, tuple[int, ...]] | None = None,
) -> list[str]:
    free, needed = offered(*available), offered(*must)
    chosen = preferred(policy, free, needed, size, replicas=replicas, numa_nodes=numa or {})
    return [share.id for share in chosen]


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

    def answer(self, size: int | None = None) -> list[str]:
        keys: Any = {"must": self.must, "replicas": self.replicas, "numa": self.numa}
        return ask(self.policy, self.available, self.size if size is None else size, **keys)


def fair(case: Case, answer: Iterable[str]) -> bool:
    """Return whether no device gives its k+1-th share while another could give its k-th."""
    taken = set(answer)
    counts = Counter(map(device_of, taken))
    giving = {device_of(token) for token in taken - set(case.must)}
    able = {device_of(token) for token in set(case.ids) - taken}
    return not any(counts[giver] >= counts[taker] + 2 for giver in giving for taker in able)


def numa_score(case: Case, answer: Iterable[str]) -> tuple[int, int]:
    """Return how many devices without a node, and how many nodes, an answer has."""
    nodes = [case.numa.get(device_of(token), ()) for token in answer]
    return nodes.count(()), len({node for of_device in nodes for node in of_device})


def score(case: Case, answer: Iterable[str]) -> tuple[Any, ...]:
    """Return what the best answer has the least of; no two answers have the same."""
    answer = list(answer)
    order = natural({device_of(token) for token in case.ids})
    free = Counter(map(device_of, case.ids))
    devices = sorted(order.index(device_of(token)) for token in answer)
    policy: tuple[Any, ...] = ()
    if case.policy in ("packed", "spread"):
        sign = 1 if case.policy == "packed" else -1
        policy = tuple(sorted((sign * free[order[index]], index) for index in devices))
    lowest = sorted((order.index(device_of(token)), case.ids.index(token)) for token in answer)
    return policy, devices, lowest


@st.composite
def cases(draw: st.DrawFn, policies: tuple[Preference, ...] = POLICIES) -> Case:
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    names = st.sampled_from(["d", "d1", "d01", "d2", "d10", "e", "e:5", "f9"])
    devices = draw(st.lists(names, unique=True, min_size=1, max_size=8 if replicas == 1 else 5))
    everything = [token.id for device in devices for token in offered_ids(device, replicas)]
    available = draw(st.lists(st.sampled_from(everything), unique=True, max_size=9))
    must = draw(st.lists(st.sampled_from(everything), unique=True, max_size=3))
    nodes = st.lists(st.integers(0, 4), max_size=1)
    numa = draw(st.dictionaries(names, nodes.map(tuple)))
    total = len({*available, *must})
    size = draw(st.integers(1, max(1, total)))
    return Case(draw(st.sampled_from(policies)), available, must, size, replicas, numa)


@pytest.mark.parametrize("policy", POLICIES)
def test_preferred_is_the_best_of_all_answers(policy: Preference) -> None:

    @settings(max_examples=100)
    @given(cases((policy,)))
    def check(case: Case) -> None:
        assume(len(case.must) <= case.size <= len(case.ids))
        possible = [
            answer
            for answer in combinations(case.ids, case.size)
            if set(case.must) <= set(answer) and fair(case, answer)
        ]
        if policy == "numa":
            best = min(numa_score(case, answer) for answer in possible)
            assert numa_score(case, case.answer()) == best
        else:
            assert case.answer() == list(min(possible, key=lambda answer: score(case, answer)))

    check()


@given(cases(), st.integers(-2, 12))
def test_preferred_is_empty_or_what_was_asked_for(case: Case, size: int) -> None:
    answer = case.answer(size)
    if size < 1 or not len(case.must) <= size <= len(case.ids):
        assert answer == []
    else:
        assert len(set(answer)) == len(answer) == size
        assert set(case.must) <= set(answer) <= set(case.ids)
        assert answer == natural(answer)


CASES: Final = yaml.safe_load(Path(__file__).with_name("preference.yaml").read_text())


@pytest.mark.parametrize(("policy", "free", "size", "keys", "answer"), CASES)
def test_preferred_devices_by_policy(
    policy: Preference, free: str, size: int, keys: dict[str, Any], answer: str
) -> None:
    assert ask(policy, free.split(), size, **keys) == answer.split()
