"""Who offers a node when several resources find it."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from devhost.host.ownership.claim import Claim
from devhost.host.ownership.claims import Claims


class Entered:
    """Claims of three resources, and who was told to look again."""

    def __init__(self) -> None:
        self.claims, self.again = Claims(), set[str]()
        self.a, self.b, self.c = (self.enter(name) for name in "abc")
        self.again.clear()

    def enter(self, name: str) -> Claim:
        claim = self.claims.add(name, lambda: self.again.add(name))
        self.claims.set(claim, [], [])
        self.claims.order.idle(claim)
        return claim

    def told(self) -> set[str]:
        told, self.again = self.again, set()
        return told


def test_the_first_in_the_file_holds_a_node() -> None:
    """Those behind see who holds it; the one itself and those before do not."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    assert at.claims.holder(at.b, "n") == "a"
    assert at.claims.holder(at.a, "n") is None
    at.claims.set(at.c, ["m"], [])
    assert at.claims.holder(at.b, "m") is None


def test_a_node_that_leaves_is_listed_still() -> None:
    """Who skipped it looks again, and once more when the former ID has left the list."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.b, [], [], skipped=["n"])
    at.told()
    at.claims.set(at.a, [], ["n"])
    assert at.told() == {"b"}
    assert at.claims.holder(at.b, "n") is None
    at.claims.set(at.b, ["n"], [])
    at.told()
    at.claims.set(at.a, [], [])
    assert at.told() == {"b"}


def test_who_has_nothing_to_do_with_a_node_is_left_alone() -> None:
    at = Entered()
    at.claims.set(at.b, [], [], skipped=["n"])
    at.claims.set(at.c, ["m"], [], skipped=["x"])
    at.told()
    for offered in (["n"], ["n", "o"], ["o"], []):
        at.claims.set(at.a, offered, [])
    assert at.told() == {"b"}
    at.claims.set(at.b, [], [])
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.a, [], [])
    assert at.told() == set()


def test_who_looks_is_not_told() -> None:
    """What it finds is compared with what has changed, at the end of the look."""
    at = Entered()
    at.claims.set(at.b, [], [], skipped=["n"])
    at.claims.order.busy(at.b)
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.a, [], [])
    assert at.told() == set()


def test_one_before_takes_a_node_over_when_the_one_behind_has_lost_it() -> None:
    """The first in the file looks again when the other's ID has left the kubelet's list."""
    at = Entered()
    at.claims.set(at.b, ["n"], [])
    at.told()
    at.claims.set(at.a, ["n"], [])
    assert at.told() == {"b"}
    at.claims.set(at.b, [], ["n"])
    at.claims.set(at.b, [], [])
    assert "a" in at.told()


def test_shared_nodes_wait_for_nobody() -> None:
    """`overlap: allow` neither skips nor holds up, but what comes first still keeps its nodes."""
    at = Entered()
    at.b.shares = True
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.b, ["n"], [])
    assert at.claims.holder(at.b, "n") is None
    at.claims.set(at.b, ["m"], [])
    assert at.claims.holder(at.c, "m") == "b"


def test_who_waited_for_one_that_shares_now_looks_again() -> None:
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.b, ["n"], [])
    at.told()
    at.claims.share(at.b, shares=True)
    assert at.told() == {"a"}


def test_tokens_are_never_claimed() -> None:
    """Two resources may both have a token called 0."""
    at = Entered()
    at.claims.set(at.a, ["\0000"], [])
    assert at.claims.holder(at.b, "\0000") is None


def test_a_new_order_has_all_look_again() -> None:
    """Only when the order of those that are there changes; what the file lacks goes behind."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.b, [], [])
    at.told()
    at.claims.arrange(["a", "b", "c"])
    assert at.told() == set()
    at.claims.arrange(["b", "c"])
    assert at.told() == {"a", "b", "c"}
    assert at.claims.holder(at.b, "n") is None


def test_a_resource_that_comes_between_disturbs_nobody() -> None:
    """The others are in the order in which they were."""
    at = Entered()
    new = at.claims.add("new", lambda: at.again.add("new"))
    at.claims.arrange(["a", "new", "b", "c"])
    assert at.told() == set()
    at.claims.set(at.a, ["n"], [])
    assert at.claims.holder(new, "n") == "a"
    at.claims.set(new, ["m"], [])
    assert at.claims.holder(at.b, "m") == "new"


def test_a_removed_resource_holds_nothing() -> None:
    """Those that left its nodes to it look again."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.c, [], [], skipped=["n"])
    at.told()
    at.claims.remove(at.a)
    assert at.told() == {"c"}
    assert at.claims.holder(at.b, "n") is None


def test_nobody_waits_for_a_removed_resource() -> None:
    """Something of it may come late, such as what a filesystem that hung has to say."""
    at = Entered()
    at.claims.order.busy(at.a)
    at.claims.remove(at.a)
    at.claims.order.busy(at.a)
    assert at.claims.order.first(at.b)


# ── looks ──


def test_what_was_offered_when_it_was_looked_for_counts() -> None:
    """It may be there no more; that may be why it is not offered now."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.claims.look(at.b)
    at.claims.set(at.a, [], [])
    at.claims.judge(at.b)
    assert at.claims.holder(at.b, "n") == "a"
    assert at.claims.holder(at.c, "n") is None
    assert at.claims.outdated(at.b, ["n"])
    assert not at.claims.outdated(at.b, ["m"])
    at.claims.looked(at.b)
    assert at.claims.holder(at.b, "n") is None
    assert not at.claims.outdated(at.b, ["n"])


def test_what_is_offered_after_it_was_judged_outdates_a_look() -> None:
    at = Entered()
    at.claims.look(at.b)
    at.claims.set(at.a, ["n"], [])
    at.claims.judge(at.b)
    assert not at.claims.outdated(at.b, ["n"])
    at.claims.set(at.a, ["n", "m"], [])
    assert at.claims.outdated(at.b, ["n", "m"])
    at.claims.looked(at.b)


def test_those_behind_outdate_no_look() -> None:
    at = Entered()
    at.claims.look(at.b)
    at.claims.set(at.c, ["n"], [])
    at.claims.set(at.c, [], [])
    assert not at.claims.outdated(at.b, ["n"])
    assert at.claims.holder(at.b, "n") is None


# ── whose turn it is ──


async def judged(at: Entered, finds: Mapping[str, Iterable[str]], told: Iterable[str]) -> list[str]:
    """Return in which order claims have their turn, of which a scan is due.

    Args:
        at: The claims.
        finds: What each finds.
        told: The order in which it is known what they have found.
    """
    claims = {"a": at.a, "b": at.b, "c": at.c}
    order: list[str] = []

    async def look(claim: Claim) -> None:
        await at.claims.order.turn(claim)
        order.append(claim.name)
        at.claims.order.idle(claim)

    for name in finds:
        at.claims.order.busy(claims[name])
    looks = []
    for name in told:
        at.claims.order.found(claims[name], frozenset(finds[name]))
        looks.append(asyncio.create_task(look(claims[name])))
        await asyncio.sleep(0)
    await asyncio.gather(*looks)
    return order


async def test_those_that_find_the_same_have_their_turn_in_the_order_of_the_file() -> None:
    assert await judged(Entered(), {"a": "n", "b": "no", "c": "o"}, "cba") == ["a", "b", "c"]


async def test_nobody_waits_for_one_before_that_finds_something_else() -> None:
    at = Entered()
    at.claims.order.busy(at.a)
    at.claims.order.found(at.a, frozenset("n"))
    assert await judged(at, {"c": "m", "b": "o"}, "bc") == ["b", "c"]
    assert at.a.busy
    assert not at.claims.order.first(at.b)


async def test_one_that_has_not_found_anything_yet_is_waited_for() -> None:
    at = Entered()
    at.claims.order.busy(at.b)
    waiting = asyncio.create_task(judged(at, {"c": "o"}, "c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    at.claims.order.found(at.b, frozenset("n"))
    assert await waiting == ["c"]


async def test_what_was_found_counts_no_more_when_a_scan_is_due_again() -> None:
    at = Entered()
    at.claims.order.busy(at.a)
    at.claims.order.found(at.a, frozenset("n"))
    at.claims.order.busy(at.a)
    waiting = asyncio.create_task(judged(at, {"c": "o"}, "c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    at.claims.order.idle(at.a)
    assert await waiting == ["c"]


async def test_tokens_of_the_same_name_are_not_the_same() -> None:
    assert await judged(Entered(), {"a": ["\0t"], "c": ["\0t"]}, "ac") == ["a", "c"]
    at = Entered()
    at.claims.order.busy(at.a)
    at.claims.order.found(at.a, frozenset(["\0t"]))
    assert await judged(at, {"c": ["\0t"]}, "c") == ["c"]


@given(
    st.dictionaries(st.sampled_from("abc"), st.sets(st.sampled_from("nmop")), min_size=3),
    st.permutations("abc"),
)
async def test_of_two_with_a_node_the_first_in_the_file_is_the_first(
    finds: dict[str, set[str]], told: list[str]
) -> None:
    at = Entered()
    order = await judged(at, finds, told)
    assert sorted(order) == ["a", "b", "c"]
    for one, other in itertools.combinations("abc", 2):
        if finds[one] & finds[other]:
            assert order.index(one) < order.index(other)
    assert at.claims.order.first(at.c)
    assert not any(claim.busy or claim.found or claim.waiting for claim in (at.a, at.b, at.c))


nodes = st.sets(st.sampled_from("nmop"))
moves = st.lists(st.tuples(st.sampled_from("abc"), nodes, nodes, nodes, st.booleans()))


@given(moves)
def test_a_change_is_a_setting(
    moves: Iterable[tuple[str, set[str], set[str], set[str], bool]],
) -> None:
    """To tell of some nodes is to tell of all, of which the others are as they were."""
    whole, part = Entered(), Entered()
    for name, some, others_of_it, touched, parted in moves:
        one, other = getattr(whole, name), getattr(part, name)
        offered, leaving = some, others_of_it
        if parted:
            offered = (one.offered - touched) | (some & touched)
            leaving = (one.leaving - touched) | (others_of_it & touched)
            gone = touched - offered - leaving
            part.claims.change(other, offered & touched, leaving & touched, gone)
            skipped: Iterable[str] = one.skipped
        else:
            skipped = touched
            part.claims.set(other, offered, leaving, skipped)
        whole.claims.set(one, offered, leaving, skipped)
        assert (one.offered, one.leaving) == (other.offered, other.leaving)
        assert whole.told() == part.told()
        for claims, at in ((whole.claims, whole), (part.claims, part)):
            for claim in (at.a, at.b, at.c):
                before = [at.a, at.b, at.c][: "abc".index(claim.name)]
                for key in "nmop":
                    first = next((each.name for each in before if key in each.offered), None)
                    assert (claims.holder(claim, key) is None) == (first is None)
