"""`NodeClaims`, driven until nothing has to be read again, against one function over all nodes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.devices.node_claims import NodeClaims
from tests.unit.test_node_claims import resource

NAMES = "abcd"


def assign(
    order: Sequence[str],
    found: Mapping[str, Collection[str]],
    sharing: Collection[str],
    offered: Mapping[str, Collection[str]],
    former: Sequence[str],
    reserved: Mapping[str, Collection[str]],
) -> dict[str, set[str]]:
    """Return the nodes that each resource offers, by what was found, offered and edited."""
    place = {name: at for at, name in enumerate(order)}
    was = {name: at for at, name in enumerate(former)}
    offers: dict[str, set[str]] = {name: set() for name in order}
    for key in set[str]().union(*found.values()):
        finders = [name for name in order if key in found[name]]
        exclusive = [name for name in finders if name not in sharing]
        sharers = [name for name in finders if name in sharing]
        for name in sharers:
            offers[name].add(key)
        free = [one for one in exclusive if not sharers or place[one] < place[sharers[0]]]
        owner = next((one for one in exclusive if key in offered.get(one, ())), None)
        if owner is None:
            mine = [one for one in exclusive if key in reserved.get(one, ())]
            waits = any(key in keys for one, keys in reserved.items() if one not in finders)
            owner = None if waits and not mine else next(iter(mine or free), None)
        else:
            owner = next(
                (
                    one
                    for one in free
                    if place[one] < place[owner]
                    and (one not in was or (owner in was and was[one] > was[owner]))
                ),
                owner,
            )
        if owner is not None:
            offers[owner].add(key)
    return offers


class Driven:
    """Claims of resources that find nodes, until nothing has to be read again."""

    def __init__(self, reserved: Mapping[str, Collection[str]]) -> None:
        self.claims, self.order, self.sharing = NodeClaims(reserved), NAMES, set[str]()
        self.found = {name: set[str]() for name in NAMES}
        self.offers: dict[str, set[str]] = {}
        self.read = set[str]()
        self.reconfigure(NAMES)

    def reconfigure(self, order: str) -> set[str]:
        added = set(order) - set(self.order)
        self.order = order
        resources = [resource(one, shares=one in self.sharing) for one in order]
        return self.claims.reconfigure(resources) | added

    def settle(self, again: Collection[str]) -> int:
        """Read what is to be read, the first in the file first; return how many readings it took."""
        due, readings = set(again), 0
        while name := next((one for one in self.order if one in due), None):
            due.remove(name)
            readings += 1
            skipped = {key for key in self.found[name] if self.claims.owner(name, key)}
            self.offers[name] = self.found[name] - skipped
            self.read.add(name)
            due |= self.claims.claim(name, self.offers[name], skipped, ())
        self.offers = {one: self.offers.get(one, set()) for one in self.order}
        return readings


found = st.sets(st.sampled_from("nmop"))
step = st.one_of(
    st.tuples(st.just("find"), st.sampled_from(NAMES), found),
    st.tuples(st.just("order"), st.permutations(NAMES).map("".join), st.integers(2, 4)),
    st.tuples(st.just("share"), st.sets(st.sampled_from(NAMES)), st.none()),
)


HSM_BEHIND = [
    ("order", "abcd", 2),
    ("find", "a", {"n"}),
    ("order", "bacd", 1),
    ("order", "bacd", 2),
    ("find", "a", {"n"}),
    ("find", "b", {"n"}),  # a link, after the edit that has put it before
]


@settings(deadline=None)
@example(HSM_BEHIND, {})
@example([("find", "a", {"n"}), ("find", "b", {"n"}), ("order", "acbd", 3)], {"c": {"n"}})
@example(
    [("find", "b", {"o"}), ("find", "a", {"o"}), ("order", "bacd", 3)], {"a": {"o"}, "c": {"o"}}
)
@given(st.lists(step, max_size=8), st.dictionaries(st.sampled_from(NAMES), found))
def test_claims_are_those_of_one_function_for_all(
    steps: list[Any], before: Mapping[str, set[str]]
) -> None:
    at = Driven(before)
    for kind, what, more in steps:
        former, had = at.order, {name: set(keys) for name, keys in at.offers.items()}
        again: Collection[str] = ()
        if kind == "find" and what in at.order:
            at.found[what], again = set(more), {what}
        elif kind == "order":
            again = at.reconfigure(what[:more])
            for name in set(NAMES) - set(at.order):
                at.found[name] = set()
        elif kind == "share" and at.sharing != what:
            at.sharing = set(what)
            again = at.reconfigure(at.order)
        reserved = {n: set(at.claims.reserved(n)) for n in at.order}
        readings = at.settle(again)
        finds = {name: at.found[name] for name in at.order}
        waiting = {n: keys & finds[n] if n in at.read else keys for n, keys in reserved.items()}
        want = assign(at.order, finds, at.sharing, had, former, waiting)
        assert at.offers == want
        assert readings <= 3 * len(at.order)
        at.settle([one for one in at.order if one in at.read])
        assert at.offers == want, "what was read again has changed something"
