"""A host that has read before finds in a file what one finds that has not."""

import gc
import pickle
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.host.config.loading import ChildLoader
from devhost.loading.child import LoadRequest, answer
from devhost.loading.loaded import Loaded
from devhost.loading.loader import load_bytes, loads
from tests.fuzz.inputs import MUTATED

POLICIES: Final = (
    Policy(),
    Policy(("/opt/*",), allow_exec=True, enforced=True),
    Policy(enforced=True),
)

# Neighbours differ in what `==` may not see, or in what only other resources make of them.
RESOURCES: Final = (
    "{name: example.com/a, sources: [static: 1]}",
    "{name: example.com/a, sources: [static: 1.0]}",
    "{name: example.com/a, sources: [static: true]}",
    "{name: example.com/a, sources: [static: '1']}",
    "{sources: [static: 1], name: example.com/a}",
    "{name: example.com/a, sources: [static: 2], allocate: {env: {X: '1'}}}",
    "{name: example.com/b, sources: [static: 2], allocate: {env: {X: '2'}}}",
    "{name: example.com/b, sources: [static: 2], allocate: {env: {X: 2}}}",
    "{name: example.com/b, sources: [static: 2], allocate: {env: {X: 2026-01-01}}}",
    "{name: example.com/b, sources: [static: 2], allocate: {env: {X: '2026-01-01'}}}",
    "{name: example.com/b, sources: [static: 2], allocate: {env: {X: '${nme}'}}}",
    "{name: example.com/b, sources: [dev: 'ttyUSB[0-9]+']}",
    "{name: example.com/b, sources: [dev: 'ttyUSB[0-9]+'], id: '${realpath}'}",
    "{name: example.com/c, sources: [/dev/c], allocate: {mounts: [/opt/c]}}",
    "{name: example.com/c, sources: [/dev/c], allocate: {mounts: [/etc/c]}}",
    "{name: example.com/c, sources: [/dev/c], allocate: *all}",
    "{name: example.com/c, sources: [/dev/c], health: {checks: {exec: [x]}}}",
    "{name: example.com/c, sources: [/dev/c], optional: 1, health: }",
    "{name: example.com/c, sources: [dev: '(']}",
    "[x]",
)
HEADS: Final = (
    "version: v1\n",
    "version: v1\nx-all: &all {env: {ALL: '${id}'}}\n",
    "version: v1\nx-all: &all {env: {X: '3'}}\n",
    "version: v2\nx-all: &all {}\n",
)


def text(head: str, resources: list[str]) -> str:
    return f"{head}resources:\n" + "".join(f"  - {one}\n" for one in resources)


TEXTS: Final = st.builds(
    text, st.sampled_from(HEADS), st.lists(st.sampled_from(RESOURCES), max_size=4)
)


class Again:
    """Loads successive contents as a host does, but in this process."""

    def __init__(self, policy: Policy) -> None:
        self._loader, self._policy = ChildLoader(policy), policy

    def load(self, raw: bytes) -> Loaded:
        request = LoadRequest(raw, "f.yaml", self._policy, self._loader.known)
        return self._loader.taken(pickle.dumps(answer(request)))


@given(st.lists(TEXTS, min_size=2, max_size=5), st.sampled_from(POLICIES))
@example([text(HEADS[0], [RESOURCES[0]]), text(HEADS[0], [RESOURCES[2]])], POLICIES[0])
@example([text(HEADS[0], [RESOURCES[5]]), text(HEADS[0], [*RESOURCES[5:7]])], POLICIES[0])
@settings(max_examples=200)
def test_what_was_read_before_changes_nothing(texts: list[str], policy: Policy) -> None:
    again = Again(policy)
    for one in texts:
        assert again.load(one.encode()) == loads(one, "f.yaml", policy)


@given(st.lists(MUTATED, min_size=2, max_size=3))
@settings(max_examples=60)
def test_nor_for_files_that_are_nearly_right(files: list[bytes]) -> None:
    again = Again(Policy())
    for one in (*files, files[0]):
        assert again.load(one) == load_bytes(one, "f.yaml")


def test_a_resource_that_stays_is_the_same_value() -> None:
    """Only what has changed is handed over, wherever it stands."""
    again, same = Again(Policy()), (RESOURCES[0], RESOURCES[12])
    before = again.load(text(HEADS[0], [*same]).encode()).require().resources
    file = text(HEADS[1], [RESOURCES[15], *same[::-1]])
    changed = again.load(file.encode()).require().resources
    assert changed[1] is before[1]
    assert changed[2] is before[0]


@pytest.mark.parametrize("content", ["version: v1\nresources: []", "version: [", "version: v2"])
def test_garbage_is_collected_again_after_a_load(content: str) -> None:
    loads(content)
    assert gc.isenabled()
    gc.disable()
    try:
        loads(content)
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
