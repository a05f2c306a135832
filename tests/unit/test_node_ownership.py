"""Who offers a node when several resources find it; ownership.txt has examples.

`DEVHOST_TEST_WRITE=1 pytest …` writes what comes of them now.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.discovery.ownership import Member, Ownership, View
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


GOLDEN: Final = Path(__file__).with_name("ownership.txt")


def stepped(at: Entered, step: str) -> None:
    """Take a step of the golden file."""
    match step.split():
        case ["order", order]:
            at.arrange(order)
        case ["add", name]:
            setattr(at, name, at.ownership.add(name))
        case ["remove", name]:
            at.remove(getattr(at, name))
        case ["share", name]:
            getattr(at, name).shares = True
        case [name, "fails"]:
            at.decide(getattr(at, name), [], expected=getattr(at, name).expected)
        case [name, _, *words]:
            offered, _, left = " ".join(words).partition("and leaves")
            if "leaves" in step and "offers" not in step:
                offered, left = "", offered
            at.decide(getattr(at, name), offered.split(), left.split())


def seen(case: str) -> str:
    """Return a case with what comes of its steps now."""
    head, *steps = re.split(r"^\$ ", case, flags=re.MULTILINE)
    expected = re.findall(r"(\w+): ([^,]+)", head.partition("expected:")[2])
    at = Entered({name: keys.split() for name, keys in expected})
    keys: set[str] = {key for _, some in expected for key in some.split()}
    for line in (one.partition("\n")[0] for one in steps):
        for step in line.split(" ; "):
            stepped(at, step)
            keys.update(re.findall(r"\b[m-p]\b", step))
        owners = " ".join(f"{key}:{''.join(views(at, key))}" for key in sorted(keys))
        head += f"$ {line}\n  scanned: {' '.join(sorted(at.told())) or '-'}; {owners}\n"
    return head


def views(at: Entered, key: str) -> Iterator[str]:
    """Yield who has a node, as each resource sees it."""
    yield from (at.owner(one, key) or "." for one in vars(at).values() if isinstance(one, Member))


def test_ownership_is_as_the_golden_file_shows() -> None:
    text = GOLDEN.read_text()
    head, *cases = re.split(r"^(?=== )", text, flags=re.MULTILINE)
    now = head + "".join(map(seen, cases))
    if os.environ.get("DEVHOST_TEST_WRITE"):
        GOLDEN.write_text(now)
    assert now == text


def test_ownership_of_tokens_is_nobodys() -> None:
    """Two resources may both have a token called 0."""
    at = Entered()
    at.decide(at.a, ["\0000"])
    assert at.owner(at.b, "\0000") is None


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


def test_ownership_seen_by_a_scan_holds_until_a_node_of_it_has_another_owner() -> None:
    at = Entered()
    seen = View(at.ownership, at.b)
    assert seen.owner("x") is None
    assert seen.holds()
    at.decide(at.a, {"y"})
    assert seen.holds(), "it has not asked for that"
    at.decide(at.a, {"x", "y"})
    assert not seen.holds()
    assert View(at.ownership, at.b).owner("x") == "a"


def test_ownership_seen_by_a_scan_holds_until_links_may_come() -> None:
    at = Entered()
    seen = View(at.ownership, at.b)
    at.a.finds_links = True
    at.arrange("abc")
    assert not seen.holds()
