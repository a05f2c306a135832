"""Who offers a node when several resources find it; ownership.txt has examples.

`DEVHOST_TEST_WRITE=1 pytest …` writes what comes of them now.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from devhost.config.loader import loads
from devhost.devices.node_claims import NodeClaims
from devhost.model.config import Resource

GOLDEN: Final = Path(__file__).with_name("ownership.txt")


def resource(name: str, *, shares: bool) -> Resource:
    text = f"version: v1\nresources: [{{name: e.com/{name}, sources: [dev: x]{', overlap: allow' if shares else ''}}}]"
    (loaded,) = loads(text).require().resources
    return loaded.model_copy(update={"name": name})


class File:
    """The resources of a file, and which of them were to be read again."""

    def __init__(self, reserved: Mapping[str, Collection[str]] | None = None) -> None:
        self.claims, self.again, self.sharing = NodeClaims(reserved), set[str](), set[str]()
        self.skipped: dict[str, set[str]] = {}
        self.reorder("abc")
        self.again.clear()

    def reorder(self, order: Iterable[str]) -> None:
        self.order = list(order)
        self.again |= self.claims.reconfigure(
            [resource(n, shares=n in self.sharing) for n in self.order]
        )

    def claim(self, name: str, offers: Iterable[str], skipped: Iterable[str] = ()) -> None:
        self.again.discard(name)
        self.again |= self.claims.claim(name, offers, skipped, ())

    def find(self, name: str, found: set[str]) -> set[str]:
        """Claim what nobody else has; return that."""
        skipped = {key for key in found if self.claims.owner(name, key)}
        self.claim(name, found - skipped, skipped)
        return found - skipped

    def step(self, step: str) -> None:
        match step.split():
            case ["order", order]:
                self.reorder(order)
            case ["add", name]:
                pass
            case ["remove", name]:
                self.reorder(one for one in self.order if one != name)
            case ["share", name]:
                self.sharing.add(name)
                self.reorder(self.order)
                self.again.clear()
            case [name, "fails"]:
                self.again |= self.claims.claim(name, (), (), self.claims.reserved(name))
            case [name, _, *words]:
                offers, _, left = " ".join(words).partition("and leaves")
                if "leaves" in step and "offers" not in step:
                    offers, left = "", offers
                self.claim(name, offers.split(), left.split())


def shown(case: str) -> str:
    """Return a case with what comes of its steps now."""
    head, *steps = re.split(r"^\$ ", case, flags=re.MULTILINE)
    reserved = re.findall(r"(\w+): ([^,]+)", head.partition("expected:")[2])
    file = File({name: keys.split() for name, keys in reserved})
    keys: set[str] = {key for _, some in reserved for key in some.split()}
    for line in (one.partition("\n")[0] for one in steps):
        for step in line.split(" ; "):
            file.step(step)
            keys.update(re.findall(r"\b[m-p]\b", step))
        owners = " ".join(
            f"{key}:{''.join(file.claims.owner(one, key) or '.' for one in sorted(file.order))}"
            for key in sorted(keys)
        )
        again, file.again = file.again, set()
        head += f"$ {line}\n  scanned: {' '.join(sorted(again)) or '-'}; {owners}\n"
    return head


def test_claims_are_as_the_golden_file_shows() -> None:
    text = GOLDEN.read_text()
    head, *cases = re.split(r"^(?=== )", text, flags=re.MULTILINE)
    now = head + "".join(map(shown, cases))
    if os.environ.get("DEVHOST_TEST_WRITE"):
        GOLDEN.write_text(now)
    assert now == text


found = st.sets(st.sampled_from("nmop"))
finding = st.tuples(st.sampled_from("abc"), found)
edit = st.tuples(st.permutations("abc").map("".join), st.integers(1, 3)).map(
    lambda it: it[0][: it[1]]
)


@given(
    st.lists(st.one_of(finding, edit), max_size=12), st.dictionaries(st.sampled_from("abc"), found)
)
@example(["ab", ("a", {"n"}), "b", "ba", ("a", {"n"}), ("b", {"n"})], {})
def test_node_is_moved_only_by_an_edit_to_a_resource_that_it_puts_before(
    steps: list[tuple[str, set[str]] | str], before: Mapping[str, set[str]]
) -> None:
    """To its next finding, of what the other one offered then: no finding else takes a node."""
    file = File(before)
    offers: dict[str, set[str]] = {name: set() for name in file.order}
    may_take = set[tuple[str, str, str]]()  # who, of whom, what
    for step in steps:
        if isinstance(step, str):
            former, order = file.order, list(step)
            offers = {name: offers.get(name, set()) for name in order}
            put_before = [
                (first, second)
                for at, second in enumerate(order)
                for first in order[:at]
                if first not in former
                or (second in former and former.index(second) < former.index(first))
            ]
            still = {(one, two) for at, two in enumerate(order) for one in order[:at]}
            may_take = {it for it in may_take if it[:2] in still and it[0] in former}
            may_take |= {(one, two, key) for one, two in put_before for key in offers[two]}
            file.reorder(order)
        elif step[0] in file.order:
            name, finds = step
            got = file.find(name, finds)
            taken = {
                (name, one, key)
                for key in got - offers[name]
                for one in offers
                if key in offers[one]
            }
            assert taken <= may_take, "it was another's"
            may_take = {it for it in may_take if it[0] != name and (it[1] != name or it[2] in got)}
            offers[name] = got
        for name in file.order:
            free = {key for key in file.claims.skipped(name) if not file.claims.owner(name, key)}
            assert name in file.again or not free, "nothing reads it again"
