"""Who offers a node when several resources find it."""

from devhost.host.claims import Claim, Claims


class Entered:
    """Claims of three resources, and who was told to look again."""

    def __init__(self) -> None:
        self.claims, self.again = Claims(), set[str]()
        self.a, self.b, self.c = (self.enter(name) for name in "abc")
        self.again.clear()

    def enter(self, name: str) -> Claim:
        claim = self.claims.add(name, lambda: self.again.add(name))
        claim.idle.set()
        self.claims.set(claim, [], [])
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
    """It is nobody's to offer before the former ID has left; then the others look again."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.told()
    at.claims.set(at.a, [], ["n"])
    assert at.told() == {"b", "c"}
    assert at.claims.holder(at.b, "n") is None
    assert at.claims.listed(at.b, "n") == "a"
    at.claims.set(at.b, ["n"], [])
    at.told()
    at.claims.set(at.a, [], [])
    assert at.told() == {"b", "c"}
    assert at.claims.listed(at.b, "n") is None


def test_one_before_takes_a_node_over_when_the_one_behind_has_lost_it() -> None:
    """The first in the file waits while the other's ID is in the kubelet's list."""
    at = Entered()
    at.claims.set(at.b, ["n"], [])
    at.told()
    at.claims.set(at.a, ["n"], [])
    assert at.claims.listed(at.a, "n") == "b"
    assert at.told() == {"b"}
    at.claims.set(at.b, [], ["n"])
    assert at.claims.listed(at.a, "n") == "b"
    at.claims.set(at.b, [], [])
    assert "a" in at.told()
    assert at.claims.listed(at.a, "n") is None


def test_shared_nodes_wait_for_nobody() -> None:
    """`overlap: allow` neither skips nor holds up, but what comes first still keeps its nodes."""
    at = Entered()
    at.b.shares = True
    at.claims.set(at.a, ["n"], [])
    at.claims.set(at.b, ["n"], [])
    assert at.claims.holder(at.b, "n") is None
    assert at.claims.listed(at.b, "n") is None
    assert at.claims.listed(at.a, "n") is None
    at.claims.set(at.b, ["m"], [])
    assert at.claims.holder(at.c, "m") == "b"


def test_tokens_are_never_claimed() -> None:
    """Two resources may both have a token called 0."""
    at = Entered()
    at.claims.set(at.a, ["\0000"], [])
    assert at.claims.holder(at.b, "\0000") is None
    assert at.claims.listed(at.b, "\0000") is None


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
    assert at.claims.listed(at.b, "n") == "a"


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
    """Those behind it look again."""
    at = Entered()
    at.claims.set(at.a, ["n"], [])
    at.told()
    at.claims.remove(at.a)
    assert at.told() == {"b", "c"}
    assert at.claims.holder(at.b, "n") is None
