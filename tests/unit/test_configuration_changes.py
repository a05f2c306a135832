"""From an old and a new configuration to what a host does about each resource."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devhost.config.diff import Action, Change, changes
from devhost.model.config import Config, Resource

NODE: Final = "node-1"
HERE: Final[dict[str, Any]] = {"nodeNames": ["node-*"]}
ELSEWHERE: Final[dict[str, Any]] = {"nodeNames": ["gpu-*"]}
SHARED: Final[dict[str, Any]] = {"overlap": "allow"}
TOKENS: Final[dict[str, Any]] = {"sources": [{"static": 3}]}
STEP: Final = {"mode": "0600"}
OTHER_STEP: Final = {"mode": "0660"}
MOVED: Final = "moved in the file: nodes that several resources find belong to the first of them"
WAITS: Final = (
    "devices are Unhealthy until their former IDs have left the list and, if pods were given them, "
    "--pod-resources shows that no pod has them"
)
SWITCHES: Final = (
    "running pods keep their devices; the node takes no new pods of the resource until the last of "
    "these has ended"
)
REGISTERS: Final = "preStart: registers again; no device is allocatable meanwhile"

Section = Mapping[str, Any]


def resource(name: str = "a", **section: Any) -> dict[str, Any]:
    """Return a resource as it stands in the file."""
    return {"name": f"example.com/{name}", "sources": ["/dev/x*"], **section}


def config(*resources: Section) -> Config:
    return Config.model_validate({"version": "v1", "resources": list(resources)})


def between(old: Sequence[Section], new: Sequence[Section]) -> dict[str, Change]:
    """Return the changes by name, without the domain."""
    by_change = changes(config(*old), config(*new), NODE)
    return {change.name.removeprefix("example.com/"): change for change in by_change}


def effects() -> Iterator[tuple[Section, Section, str, list[str]]]:
    """Yield the cases of changes.yaml."""
    text = Path(__file__).with_name("changes.yaml").read_text()
    texts = {"WAITS": WAITS, "SWITCHES": SWITCHES, "REGISTERS": REGISTERS}
    for old, new, action, reasons in yaml.safe_load(text):
        pattern = re.compile("|".join(texts))
        yield old, new, action, [pattern.sub(lambda name: texts[name[0]], r) for r in reasons]


@pytest.mark.parametrize(("old", "new", "action", "reasons"), [*effects()])
def test_changes_name_effects(old: Section, new: Section, action: str, reasons: list[str]) -> None:
    (change,) = between([resource(**old)], [resource(**new)]).values()
    assert (change.action, [*change.reasons]) == (action, reasons)


def test_changes_do_not_mention_resources_of_other_nodes() -> None:
    assert between([resource(**ELSEWHERE)], [resource(**ELSEWHERE, replicas=2)]) == {}
    assert changes(None, config(resource(**ELSEWHERE)), NODE) == ()


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("abc", "xaybcz", ""),
        ("abc", "ac", ""),
        ("ab", "ba", "ba"),
        ("abc", "cab", "cab"),
        ("abc", "bca", "bca"),
        ("abcd", "abdc", "dc"),
        ("abc", "cxa", "ca"),
    ],
)
def test_changes_of_the_order_keep_and_say_moved(old: str, new: str, moved: str) -> None:
    before, after = (
        [resource(name, sources=[f"/dev/{name}*"]) for name in names] for names in (old, new)
    )
    plan = between(before, after)
    assert [name for name, change in plan.items() if MOVED in change.reasons] == [*moved]
    assert all(plan[name].action is Action.KEEP for name in moved)


@pytest.mark.parametrize(
    ("section", "moved"), [(SHARED, "b"), (TOKENS, ""), (ELSEWHERE, ""), ({"replicas": 2}, "ba")]
)
def test_changes_of_the_order_matter_for_nodes_not_shared(section: Section, moved: str) -> None:
    old = [resource("a", **section), resource("b")]
    plan = between(old, old[::-1])
    assert [name for name, change in plan.items() if MOVED in change.reasons] == [*moved]


@pytest.mark.parametrize(
    ("old", "new", "waits"),
    [({}, {}, True), (SHARED, {}, True), ({}, SHARED, True), (SHARED, SHARED, False)],
)
def test_changes_renamed_waits_for_the_former(old: Section, new: Section, waits: bool) -> None:
    plan = between([resource("a", **old, replicas=2)], [resource("b", **new)])
    reason = f"looks renamed from example.com/a: {WAITS}"
    assert plan["b"].reasons == ("new", *([reason] if waits else []))


@pytest.mark.parametrize(
    ("old", "new", "renamed"),
    [
        ([resource("a")], [resource("b", sources=["/dev/y*"])], ""),
        ([resource("a")], [resource("a"), resource("b", **SHARED)], ""),
        ([resource("a")], [resource("c"), resource("d")], "cd"),
        ([resource("a", **TOKENS)], [resource("b", **TOKENS)], ""),
    ],
)
def test_changes_find_a_rename(old: list[Section], new: list[Section], renamed: str) -> None:
    plan = between(old, new)
    assert [n for n, change in plan.items() if "renamed from" in str(change.reasons)] == [*renamed]


SECTIONS: Final = st.fixed_dictionaries(
    {"sources": st.sampled_from([["/dev/x*"], ["/dev/y*"], [{"static": 2}], [{"static": 3}]])},
    optional={
        "id": st.sampled_from(["${name}", ["${name}-1"]]),
        "allocate": st.sampled_from([{}, {"devices": []}, {"env": {"A": "1"}}]),
        "overlap": st.sampled_from(["allow", "deny"]),
        "replicas": st.integers(1, 3),
        "removeMissingAfter": st.sampled_from(["never", "5m", "0s"]),
        "preStart": st.sampled_from([[], [STEP], [OTHER_STEP]]),
        "nodeNames": st.sampled_from([["*"], [NODE], ["gpu-*"]]),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True))
    return config(*(resource(name, **draw(SECTIONS)) for name in names))


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
