"""The owner of a node when several resources find it; ownership.txt has examples.

`DEVHOST_TEST_WRITE=1 pytest …` writes what comes of them now.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.config.loader import loads
from devhost.devices.node_offers import NodeOffers
from devhost.model.config import Resource

GOLDEN: Final = Path(__file__).with_name("ownership.txt")


def resource(name: str, *, shares: bool) -> Resource:
    text = f"version: v1\nresources: [{{name: e.com/{name}, sources: [dev: x]{', overlap: allow' if shares else ''}}}]"
    (loaded,) = loads(text).require().resources
    return loaded.model_copy(update={"name": name})


class File:
    """The resources of a file, and which of them were to be read again."""

    def __init__(self, reserved: Mapping[str, Collection[str]], order: str = "abc") -> None:
        self.nodes, self.again, self.sharing = NodeOffers(reserved), set[str](), set[str]()
        self.reorder(order)
        self.again.clear()

    def reorder(self, order: Iterable[str]) -> None:
        self.order = list(order)
        self.again |= self.nodes.reconfigure(
            [resource(n, shares=n in self.sharing) for n in self.order]
        )

    def offer(self, name: str, offers: Iterable[str], skipped: Iterable[str] = ()) -> None:
        self.again.discard(name)
        self.again |= self.nodes.offer(name, offers, skipped, ())

    def find(self, name: str, keys: set[str]) -> set[str]:
        """Offer what nobody else has; return that."""
        skipped = {key for key in keys if self.nodes.owner(name, key)}
        self.offer(name, keys - skipped, skipped)
        return keys - skipped

    def step(self, step: str) -> None:
        match step.split():
            case ["order", order]:
                self.reorder(order)
            case ["add", name]:
                pass
            case ["remove", name]:
                self.reorder(kept for kept in self.order if kept != name)
            case ["share", name]:
                self.sharing.add(name)
                self.reorder(self.order)
                self.again.clear()
            case [name, "fails"]:
                self.again |= self.nodes.offer(name, (), (), self.nodes.reserved(name))
            case [name, _, *words]:
                offers, _, left = " ".join(words).partition("and leaves")
                if "leaves" in step and "offers" not in step:
                    offers, left = "", offers
                self.offer(name, offers.split(), left.split())


def shown(case: str) -> str:
    """Return a case with what comes of its steps now."""
    head, *steps = re.split(r"^\$ ", case, flags=re.MULTILINE)
    reserved = re.findall(r"(\w+): ([^,]+)", head.partition("expected:")[2])
    file = File({name: keys.split() for name, keys in reserved})
    keys: set[str] = {key for _, text in reserved for key in text.split()}
    for line in (part.partition("\n")[0] for part in steps):
        for step in line.split(" ; "):
            file.step(step)
            keys.update(re.findall(r"\b[m-p]\b", step))
        owners = " ".join(
            f"{key}:{''.join(file.nodes.owner(name, key) or '.' for name in sorted(file.order))}"
            for key in sorted(keys)
        )
        again, file.again = file.again, set()
        head += f"$ {line}\n  scanned: {' '.join(sorted(again)) or '-'}; {owners}\n"
    return head


def test_offers_are_as_the_golden_file_shows() -> None:
    text = GOLDEN.read_text()
    head, *cases = re.split(r"^(?=== )", text, flags=re.MULTILINE)
    now = head + "".join(map(shown, cases))
    if os.environ.get("DEVHOST_TEST_WRITE"):
        GOLDEN.write_text(now)
    assert now == text


finds = st.sets(st.sampled_from("nmop"))


NAMES = "abcd"


def assign(
    order: Sequence[str],
    finds: Mapping[str, Collection[str]],
    sharing: Collection[str],
    offered: Mapping[str, Collection[str]],
    former: Sequence[str],
    reserved: Mapping[str, Collection[str]],
) -> dict[str, set[str]]:
    """Return the nodes that each resource offers, by what was found, offered and edited."""
    place = {name: at for at, name in enumerate(order)}
    was = {name: at for at, name in enumerate(former)}
    offers: dict[str, set[str]] = {name: set() for name in order}
    for key in set[str]().union(*finds.values()):
        finders = [name for name in order if key in finds[name]]
        exclusive = [name for name in finders if name not in sharing]
        sharers = [name for name in finders if name in sharing]
        for name in sharers:
            offers[name].add(key)
        free = [finder for finder in exclusive if not sharers or place[finder] < place[sharers[0]]]
        owner = next((finder for finder in exclusive if key in offered.get(finder, ())), None)
        if owner is None:
            mine = [finder for finder in exclusive if key in reserved.get(finder, ())]
            waits = any(key in keys for finder, keys in reserved.items() if finder not in finders)
            owner = None if waits and not mine else next(iter(mine or free), None)
        else:
            owner = next(
                (
                    finder
                    for finder in free
                    if place[finder] < place[owner]
                    and (finder not in was or (owner in was and was[finder] > was[owner]))
                ),
                owner,
            )
        if owner is not None:
            offers[owner].add(key)
    return offers


class Driven(File):
    """Offers of resources that find nodes, until nothing has to be read again."""

    def __init__(self, reserved: Mapping[str, Collection[str]]) -> None:
        super().__init__(reserved, NAMES)
        self.found = {name: set[str]() for name in NAMES}
        self.offers: dict[str, set[str]] = {}
        self.read = set[str]()

    def settle(self) -> int:
        """Read what is to be read, the first in the file first; return how many readings it took."""
        readings = 0
        while name := next((waiting for waiting in self.order if waiting in self.again), None):
            readings += 1
            self.offers[name] = self.find(name, self.found[name])
            self.read.add(name)
        self.offers = {name: self.offers.get(name, set()) for name in self.order}
        return readings


step = st.one_of(
    st.tuples(st.just("find"), st.sampled_from(NAMES), finds),
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
@given(st.lists(step, max_size=8), st.dictionaries(st.sampled_from(NAMES), finds))
def test_offers_follow_one_function(steps: list[Any], before: Mapping[str, set[str]]) -> None:
    at = Driven(before)
    for kind, subject, value in steps:
        former, had = at.order, {name: set(keys) for name, keys in at.offers.items()}
        if kind == "find" and subject in at.order:
            at.found[subject] = set(value)
            at.again.add(subject)
        elif kind == "order":
            at.reorder(subject[:value])
            at.again |= set(at.order) - set(former)
            for name in set(NAMES) - set(at.order):
                at.found[name] = set()
        elif kind == "share" and at.sharing != subject:
            at.sharing = set(subject)
            at.reorder(at.order)
        reserved = {n: set(at.nodes.reserved(n)) for n in at.order}
        readings = at.settle()
        finds = {name: at.found[name] for name in at.order}
        waiting = {n: keys & finds[n] if n in at.read else keys for n, keys in reserved.items()}
        want = assign(at.order, finds, at.sharing, had, former, waiting)
        assert at.offers == want
        assert readings <= 3 * len(at.order)
        at.again |= at.read
        at.settle()
        assert at.offers == want, "what was read again has changed something"
