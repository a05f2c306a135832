"""From an old and a new configuration to what a host does about each resource."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devhost.config.diff import Action, changes
from devhost.model.config import Config, Resource

NODE: Final = "node-1"
WAITS: Final = (
    "devices are Unhealthy until their former IDs have left the list and, if pods were given them, "
    "--pod-resources shows that no pod has them"
)
SWITCHES: Final = (
    "running pods keep their devices; the node takes no new pods of the resource until the last of "
    "these has ended"
)
TEXTS: Final = {
    "MOVED": "moved in the file: nodes that several resources find belong to the first of them",
    "RENAMED": f"looks renamed from example.com/a: {WAITS}",
    "REGISTERS": "preStart: registers again; no device is allocatable meanwhile",
    "SWITCHES": SWITCHES,
    "WAITS": WAITS,
}

Section = Mapping[str, Any]
Effects = Mapping[str, Sequence[str]]


def config(resources: Mapping[str, Section]) -> Config:
    """Return the configuration with these resources, by the last part of their names."""
    sections = [
        {"name": f"example.com/{name}", "sources": ["/dev/x*"], **section}
        for name, section in resources.items()
    ]
    return Config.model_validate({"version": "v1", "resources": sections})


def effects() -> Iterator[tuple[Mapping[str, Section], Mapping[str, Section], Effects]]:
    """Yield the cases of changes.yaml."""
    text = Path(__file__).with_name("changes.yaml").read_text()
    for old, new, *expected in yaml.safe_load(text):
        if len(expected) == 1:
            yield old, new, expected[0]
        else:
            yield {"a": old}, {"a": new}, {"a": [expected[0], *expected[1]]}


@pytest.mark.parametrize(("old", "new", "expected"), [*effects()])
def test_changes_name_effects(
    old: Mapping[str, Section], new: Mapping[str, Section], expected: Effects
) -> None:
    plan = changes(config(old), config(new), NODE)
    assert {
        change.name.rpartition("/")[2]: [change.action, *change.reasons] for change in plan
    } == {
        name: [re.sub("|".join(TEXTS), lambda word: TEXTS[word[0]], text) for text in texts]
        for name, texts in expected.items()
    }


SECTIONS: Final = st.fixed_dictionaries(
    {"sources": st.sampled_from([["/dev/x*"], ["/dev/y*"], [{"static": 2}], [{"static": 3}]])},
    optional={
        "id": st.sampled_from(["${name}", ["${name}-1"]]),
        "allocate": st.sampled_from([{}, {"devices": []}, {"env": {"A": "1"}}]),
        "overlap": st.sampled_from(["allow", "deny"]),
        "replicas": st.integers(1, 3),
        "removeMissingAfter": st.sampled_from(["never", "5m", "0s"]),
        "preStart": st.sampled_from([[], [{"mode": "0600"}], [{"mode": "0660"}]]),
        "nodeNames": st.sampled_from([["*"], [NODE], ["gpu-*"]]),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True))
    return config({name: draw(SECTIONS) for name in names})


def here(of: Config) -> list[Resource]:
    return [resource for resource in of.resources if resource.applies_to(NODE)]


@given(st.none() | configs(), configs())
def test_changes_lead_from_the_old_file_to_the_new(old: Config | None, new: Config) -> None:
    plan = changes(old, new, NODE)
    before = {resource.name: resource for resource in (here(old) if old else [])}
    gone = [name for name in before if name not in {resource.name for resource in here(new)}]
    assert [change.name for change in plan if change.action is Action.DRAIN] == gone
    assert [change.resource for change in plan] == [*here(new), *(None for _ in gone)]
    for change in plan:
        assert (change.name in before) == (change.action is not Action.START)
        reasons = [text for text in change.reasons if not text.startswith("moved in the file")]
        assert bool(reasons) == (change.action is not Action.KEEP)
        if change.resource is not None and change.name in before:
            was = before[change.name]
            registers = bool(change.resource.pre_start) != bool(was.pre_start)
            assert registers == (change.action is Action.REREGISTER)
            moved = was.model_copy(update={"node_names": change.resource.node_names})
            assert (change.resource == moved) == (change.action is Action.KEEP)
