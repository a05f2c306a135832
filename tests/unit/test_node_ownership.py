"""Who offers a node when several resources find it."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.discovery.ownership import Member, Ownership
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads


class Entered:
    """Three resources, and which of them were to be scanned again."""

    def __init__(self, before: Mapping[str, Collection[str]] | None = None) -> None:
        self.ownership, self.again = Ownership(), set[str]()
        self.ownership.expect(before or {})
        self.a, self.b, self.c = (self.ownership.add(name) for name in "abc")
        self.arrange("abc")
        self.again.clear()

    def arrange(self, order: str) -> None:
        self.again |= {one.name for one in self.ownership.arrange(order)}

    def decide(
        self,
        member: Member,
        offered: Iterable[str],
        left: Iterable[str] = (),
        expected: frozenset[str] = frozenset(),
    ) -> None:
        concerned = self.ownership.decide(member, frozenset(offered), left, expected)
        self.again |= {one.name for one in concerned}

    def remove(self, member: Member) -> None:
        self.again |= {one.name for one in self.ownership.remove(member)}

    def owner(self, member: Member, key: str) -> str | None:
        return self.ownership.owner(member, key)

    def told(self) -> set[str]:
        told, self.again = self.again, set()
        return told


@pytest.fixture
async def at() -> Entered:
    return Entered()


def test_ownership_node_given_up_has_those_scanned_that_left_it(at: Entered) -> None:
    at.decide(at.a, ["n"])
    at.decide(at.b, [], ["n"])
    at.decide(at.c, ["m"], ["x"])
    assert at.told() == {"c"}  # nobody has what it has left
    for offered in (["n", "o"], ["o"], []):
        at.decide(at.a, offered)
    assert at.told() == {"b"}
    at.decide(at.b, ["n"])
    at.decide(at.a, [], ["n"])
    assert at.told() == set()
    at.decide(at.b, [])
    assert at.told() == {"a"}


def test_ownership_resource_moved_before_another_takes_its_node(at: Entered) -> None:
    """At its first decision then; later it leaves what it finds to others."""
    at.decide(at.a, ["n"])
    at.decide(at.b, [])
    at.decide(at.c, ["m"])
    at.arrange("cba")
    at.told()
    assert at.owner(at.b, "n") is None
    assert at.owner(at.b, "m") == "c"
    at.decide(at.b, ["n"])
    assert at.told() == {"a"}
    assert at.owner(at.a, "n") == "b"
    assert at.owner(at.b, "n") is None
    at.decide(at.a, [], ["n"])
    at.decide(at.c, ["m"])
    assert at.owner(at.c, "n") == "b"


def test_ownership_new_resource_takes_nodes_of_those_behind_it(at: Entered) -> None:
    """Also if it decides before it has its place in the file, and another edit comes meanwhile."""
    for member, key in ((at.a, "n"), (at.b, "m")):
        at.decide(member, [key])
    new = at.ownership.add("n")
    at.arrange("anbc")
    at.arrange("anbc")
    assert at.owner(new, "n") == "a"
    assert at.owner(new, "m") is None
    at.decide(new, [])
    assert at.owner(new, "m") == "b"


def test_ownership_edit_of_the_order_elsewhere_moves_nothing(at: Entered) -> None:
    for member in (at.a, at.b):
        at.decide(member, [])
    at.decide(at.c, ["n"])
    at.arrange("bac")
    assert at.owner(at.a, "n") == at.owner(at.b, "n") == "c"


def test_ownership_node_offered_before_the_start_waits_for_its_resource() -> None:
    """The others leave it alone until the resource has been scanned without it."""
    at = Entered({"c": ["n", "m"], "b": ["o"], "gone": ["p"]})
    assert at.owner(at.a, "n") == "c"
    assert at.owner(at.c, "n") is None
    assert at.owner(at.a, "o") == "b"
    assert at.owner(at.a, "p") is None
    at.decide(at.a, [], ["n", "m", "o"])
    assert at.told() == set()
    at.decide(at.c, [], expected=at.c.expected)  # its source has failed
    assert at.owner(at.a, "n") == "c"
    at.decide(at.c, ["n"])
    assert at.told() == {"a"}
    assert at.owner(at.a, "n") == "c"
    assert at.owner(at.a, "m") is None
    at.remove(at.b)
    assert at.owner(at.a, "o") is None


def test_ownership_expected_node_that_another_shares_meanwhile_stays() -> None:
    """As without one: who shares an expected node, before its owner decides, takes nothing."""
    at = Entered({"b": ["n"]})
    at.a.shares = True
    at.decide(at.a, ["n", "m"])
    assert at.owner(at.b, "n") is None
    assert at.owner(at.b, "m") == "a"
    at.decide(at.b, ["n"], ["m"])
    assert at.owner(at.b, "n") is None


def test_ownership_with_overlap_allow_takes_nodes_of_others(at: Entered) -> None:
    """`overlap: allow` leaves nothing to others, but what comes first still keeps its nodes."""
    at.b.shares = True
    at.decide(at.a, ["n"])
    at.decide(at.b, ["n"])
    assert at.owner(at.b, "n") is None
    assert at.owner(at.a, "n") is None
    at.decide(at.c, ["o"])
    at.decide(at.b, ["o"])
    assert at.owner(at.c, "o") is None
    assert at.owner(at.a, "o") == "c"
    at.decide(at.b, ["m"])
    assert at.owner(at.c, "m") == "b"


def test_ownership_of_tokens_is_nobodys(at: Entered) -> None:
    """Two resources may both have a token called 0."""
    at.decide(at.a, ["\0000"])
    assert at.owner(at.b, "\0000") is None


def test_ownership_new_order_has_all_scanned(at: Entered) -> None:
    """Only when the order of those that are there changes; what the file lacks goes behind."""
    at.decide(at.a, ["n"])
    at.arrange("abc")
    assert at.told() == set()
    at.arrange("bc")
    assert at.told() == set()
    assert at.owner(at.b, "n") is None
    at.arrange("cb")
    assert at.told() == {"a", "b", "c"}


def test_ownership_changed_overlap_has_all_scanned(at: Entered) -> None:
    at.b.shares = True
    at.arrange("abc")
    assert at.told() == {"a", "b", "c"}


def test_ownership_resource_inserted_between_has_nobody_scanned(at: Entered) -> None:
    """The others are in the order in which they were; what it has decided is decided again."""
    new = at.ownership.add("n")
    at.arrange("anbc")
    assert at.told() == set()
    at.decide(at.a, ["n"])
    assert at.owner(new, "n") == "a"
    at.decide(new, ["m"])
    assert at.owner(at.b, "m") == "n"


def test_ownership_node_of_a_resource_removed_from_the_file_is_free(at: Entered) -> None:
    """It goes behind the others before it gives its nodes up, or comes back there."""
    at.decide(at.a, ["n"])
    at.decide(at.b, [], ["n"])
    at.arrange("bc")
    assert at.told() == {"b"}
    at.decide(at.b, ["n"])
    at.arrange("bca")
    assert at.owner(at.a, "n") == "b"


def test_ownership_removed_resource_has_nothing(at: Entered) -> None:
    """Those that left its nodes to it are scanned."""
    at.decide(at.a, ["n"])
    at.decide(at.c, [], ["n"])
    at.remove(at.a)
    assert at.told() == {"c"}
    assert at.owner(at.b, "n") is None


found = st.sets(st.sampled_from("nmop"))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), found)),
    st.dictionaries(st.sampled_from("abc"), found),
)
@example([("b", {"n"}), ("a", {"n"})], {"a": {"n"}, "b": {"n"}})
@example([("c", {"n"}), ("b", {"n"})], {"b": {"n"}, "c": {"n"}})
def test_ownership_is_moved_by_no_scan(
    scans: list[tuple[str, set[str]]], before: Mapping[str, set[str]]
) -> None:
    at = Entered(before)
    has: dict[str, str] = {}
    unknown = {name: set(keys) for name, keys in before.items()}
    for name, finds in scans:
        member = getattr(at, name)
        at.again.discard(name)
        left = {key for key in finds if at.owner(member, key)}
        at.decide(member, finds - left, left)
        unknown.pop(name, None)
        for key, owner in tuple(has.items()):
            if owner == name and key not in finds:
                del has[key]
        for key in finds - left:
            assert has.setdefault(key, name) == name, "it was another's"
        for key in left:
            assert key in has or any(key in keys for keys in unknown.values()), "nobody has it"
        for key, owner in has.items():
            assert key in getattr(at, owner).offered, "it was lost"
        for one in (at.a, at.b, at.c):
            in_vain = any(at.owner(one, key) is None for key in one.left)
            assert one.name in at.again or not in_vain, "nobody told it"


def test_ownership_of_a_dry_run_is_that_of_the_host(tmp_path: Path) -> None:
    """The first in the file has a node; one that shares takes it too, and keeps those behind."""
    (tmp_path / "n").touch()
    source = f"sources: [directory: {tmp_path}]"
    shared = f"{source}, overlap: allow"
    text = "\n".join(
        f"  - {{name: example.com/{name}, {options}}}"
        for name, options in {"a": shared, "b": source, "c": shared}.items()
    )
    config = loads(f"version: v1\nresources:\n{text}\n").require()
    reports = report(config, HostFiles(), Policy(), "node")
    assert [len(one.snapshot.devices) for one in reports] == [1, 0, 1]
    (left,) = reports[1].snapshot.skipped
    assert left.reason == "example.com/a offers it already"
