"""From an old and a new configuration to what a host does about each resource."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.model.changes import Action, Change, changes
from devhost.model.config import Config, Resource

NODE: Final = "node-1"
GLOB: Final = ["/dev/x*"]
HERE: Final[dict[str, Any]] = {"nodeNames": ["node-*"]}
ELSEWHERE: Final[dict[str, Any]] = {"nodeNames": ["gpu-*"]}
STEP: Final = {"mode": "0600"}
OTHER_STEP: Final = {"mode": "0660"}

Section = Mapping[str, Any]


def resource(name: str = "a", **section: Any) -> dict[str, Any]:
    """A declaration as it stands in the file."""
    return {"name": f"example.com/{name}", "sources": GLOB, **section}


def config(*resources: Section) -> Config:
    return Config.model_validate({"version": "v1", "resources": list(resources)})


def between(old: Sequence[Section], new: Sequence[Section]) -> list[tuple[str, str]]:
    """Each resource's name without its domain, and what becomes of it."""
    found = changes(config(*old), config(*new), NODE)
    return [(change.name.removeprefix("example.com/"), str(change.action)) for change in found]


def of_one(old: Section, new: Section) -> Change:
    """What becomes of the only resource."""
    (change,) = changes(config(resource(**old)), config(resource(**new)), NODE)
    return change


def reasons(old: Sequence[Section], new: Sequence[Section]) -> dict[str, tuple[str, ...]]:
    return {
        change.name.removeprefix("example.com/"): change.reasons
        for change in changes(config(*old), config(*new), NODE)
    }


# ── what becomes of a resource ──


def test_a_first_configuration_starts_everything() -> None:
    """Without an old one, each resource of this node starts."""
    found = changes(None, config(resource("a"), resource("b", **ELSEWHERE)), NODE)
    assert [(change.name, change.action) for change in found] == [("example.com/a", Action.START)]


def test_each_action() -> None:
    """In the new file's order, what is drained at the end in the old file's order."""
    old = [
        resource("z", sources=["/dev/z"]),
        resource("keep"),
        resource("update"),
        resource("register"),
        resource("y", sources=["/dev/y"]),
    ]
    new = [
        resource("start", sources=["/dev/start"]),
        resource("register", preStart=[STEP]),
        resource("update", replicas=2),
        resource("keep"),
    ]
    assert between(old, new) == [
        ("start", "start"),
        ("register", "reregister"),
        ("update", "update"),
        ("keep", "keep"),
        ("z", "drain"),
        ("y", "drain"),
    ]


def test_a_change_carries_the_new_declaration() -> None:
    """All but a drained resource bring what is to be served."""
    new = config(resource("a", replicas=2), resource("b"))
    old = config(resource("a"), resource("gone", sources=["/dev/gone"]))
    found = changes(old, new, NODE)
    assert [change.resource for change in found] == [*new.resources, None]


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        ({}, {}, "keep"),
        ({}, {"replicas": 1, "topology": "auto", "allocate": {}, "preStart": []}, "keep"),
        ({"sources": ["/dev/x*"]}, {"sources": [{"glob": {"paths": "/dev/x*"}}]}, "keep"),
        ({"removeMissingAfter": "60s"}, {"removeMissingAfter": "1m"}, "keep"),
        ({}, HERE, "keep"),
        (HERE, {}, "keep"),
        (HERE, {"nodeNames": [NODE]}, "keep"),
        ({}, {**HERE, "replicas": 2}, "update"),
        ({}, {"preStart": [STEP]}, "reregister"),
        ({"preStart": [STEP]}, {}, "reregister"),
        ({"preStart": [STEP]}, {"preStart": [OTHER_STEP]}, "update"),
        ({"preStart": [STEP]}, {"preStart": [STEP, STEP]}, "update"),
        ({}, {"preStart": [STEP], "replicas": 2}, "reregister"),
        ({}, {"allocate": {"devices": []}}, "update"),
    ],
)
def test_what_becomes_of_a_resource(old: Section, new: Section, action: str) -> None:
    """Only preStart altogether registers again; what means the same is kept."""
    change = of_one(old, new)
    assert change.action == action
    assert bool(change.reasons) == (action != "keep")


MOVED: Final = "moved in the file: nodes that several resources find belong to the first of them"


def moved(old: Sequence[Section], new: Sequence[Section]) -> str:
    """Name the resources that have passed another one, or were passed by one."""
    return "".join(name for name, said in reasons(old, new).items() if MOVED in said)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("abc", "abc", ""),
        ("abc", "xaybcz", ""),
        ("abc", "ac", ""),
        ("ab", "ba", "ba"),
        ("abc", "cab", "cab"),
        ("abc", "bca", "bca"),
        ("abcd", "abdc", "dc"),
        ("abc", "cxa", "ca"),
        ("", "ab", ""),
    ],
)
def test_a_resource_that_moved_past_another_is_kept_and_says_so(
    old: str, new: str, found: str
) -> None:
    """What comes or goes changes no place; who is passed is said too."""
    before, after = (
        [resource(name, sources=[f"/dev/{name}*"]) for name in names] for names in (old, new)
    )
    assert moved(before, after) == found
    actions = dict(between(before, after))
    assert all(actions[name] == "keep" for name in found)


@pytest.mark.parametrize(
    ("section", "found"),
    [({"overlap": "allow"}, "b"), ({"sources": [{"static": 1}]}, ""), (ELSEWHERE, "")],
)
def test_whose_place_does_not_matter(section: Section, found: str) -> None:
    """What shares its nodes takes all, tokens are no nodes, and other nodes have other files."""
    old = [resource("a", **section), resource("b")]
    assert moved(old, old[::-1]) == found


def test_another_place_is_said_after_other_changes() -> None:
    old, new = [resource("a"), resource("b")], [resource("b"), resource("a", replicas=2)]
    first, last = reasons(old, new)["a"]
    assert first.startswith("replicas")
    assert last == MOVED


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [(ELSEWHERE, {}, "start"), ({}, ELSEWHERE, "drain"), (HERE, ELSEWHERE, "drain")],
)
def test_another_node(old: Section, new: Section, action: str) -> None:
    change = of_one(old, new)
    assert change.action == action
    assert (change.resource is None) == (action == "drain")


def test_resources_for_other_nodes_do_not_count() -> None:
    """What applies neither before nor after is not mentioned."""
    assert between([resource(**ELSEWHERE)], [resource(**ELSEWHERE, replicas=2)]) == []


# ── reasons ──


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"sources": ["/dev/y*"]}, "sources"),
        ({}, {"allocate": {"env": {"A": "1"}}}, "allocate"),
        ({"maxDevices": 4}, {"maxDevices": 2}, "maxDevices 4 → 2"),
        ({}, {"minDevices": 2}, "minDevices default → 2"),
        ({"overlap": "allow"}, {}, "overlap allow → deny"),
        ({"replicas": 2}, {"replicas": 3}, "replicas 2 → 3"),
        ({}, {"topology": 0}, "topology auto → 0"),
        ({}, {"removeMissingAfter": "never"}, "removeMissingAfter"),
        ({"health": ["readable"]}, {}, "health"),
        ({"preStart": [STEP]}, {"preStart": [OTHER_STEP]}, "preStart"),
    ],
)
def test_a_changed_key_is_named_with_a_short_value(old: Section, new: Section, reason: str) -> None:
    assert of_one(old, new).reasons == (reason,)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"preStart": [STEP]}, "preStart: registers again; no device is allocatable meanwhile"),
        ({}, {"id": "${name}"}, "id: devices stay Unhealthy until their former IDs have left "),
        ({}, {"group": "${name}"}, "group: devices stay Unhealthy until their former IDs "),
        ({}, {"replicas": 3}, "replicas 1 → 3: devices stay Unhealthy until their former IDs "),
    ],
)
def test_a_changed_key_that_pods_feel_says_so(old: Section, new: Section, reason: str) -> None:
    (found,) = of_one(old, new).reasons
    assert found.startswith(reason)


def test_reasons_are_in_the_order_of_the_language() -> None:
    """Whatever the order in the file."""
    change = of_one({}, {"replicas": 2, "id": "${name}", "allocate": {"devices": []}})
    assert [reason.split(":")[0].split()[0] for reason in change.reasons] == [
        "id",
        "allocate",
        "replicas",
    ]


# ── renamed ──


def test_a_renamed_resource() -> None:
    """Equal sources under another name: both say so, and which list is waited for."""
    found = reasons([resource("a", replicas=2)], [resource("b")])
    assert found["b"][1] == (
        "looks renamed from example.com/a: devices stay Unhealthy until those of example.com/a "
        "have left the list and no pod has them; without --pod-resources, devhost rejects this "
        "file once pods were given such devices"
    )
    assert found["a"][-1].startswith("looks renamed to example.com/b: ")


def test_other_sources_are_another_resource() -> None:
    """Nothing is said of what only comes while another goes."""
    found = reasons([resource("a")], [resource("b", sources=["/dev/y*"])])
    assert "renamed" not in str(found)


def test_what_stays_is_not_renamed() -> None:
    """A second resource with the same sources has not replaced the first."""
    found = reasons([resource("a")], [resource("a"), resource("b", overlap="allow")])
    assert "renamed" not in str(found)


@pytest.mark.parametrize("old", ["allow", "deny"])
@pytest.mark.parametrize("new", ["allow", "deny"])
def test_a_renamed_resource_waits_unless_both_share(old: str, new: str) -> None:
    """Only nodes that may be offered twice under both names are not waited for."""
    found = reasons([resource("a", overlap=old)], [resource("b", overlap=new)])
    shared = found["b"][1] == "looks renamed from example.com/a"
    assert shared is (old == new == "allow")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ({}, {"id": "${name}"}, "id"),
        ({}, {"group": "${name}"}, "group"),
        ({}, {"replicas": 2}, "replicas"),
        ({"replicas": 2}, {}, "replicas"),
        ({"replicas": 3}, {"replicas": 2}, "replicas"),
        ({"replicas": 2}, {"replicas": 3}, None),
        ({}, {"maxDevices": 2}, None),
        ({"sources": [{"static": 3}]}, {"sources": [{"static": 3}], "replicas": 2}, None),
    ],
)
def test_what_gives_nodes_other_ids(old: Section, new: Section, key: str | None) -> None:
    """The key to blame is named, and the reason says who refuses it; tokens are nobody's."""
    (change,) = changes(config(resource("a", **old)), config(resource("a", **new)), NODE)
    assert change.moved_by == (key and (key, "example.com/a"))
    assert any("devhost rejects this file" in one for one in change.reasons) is (key is not None)


def test_two_renamed_resources() -> None:
    """Each is the successor of one."""
    shared = {"overlap": "allow"}
    found = reasons(
        [resource("a", **shared), resource("b", **shared)],
        [resource("c", **shared), resource("d", **shared), resource("e", **shared)],
    )
    assert [found[name][-1].split(":")[0] for name in "abcde"] == [
        "looks renamed to example.com/c",
        "looks renamed to example.com/d",
        "looks renamed from example.com/a",
        "looks renamed from example.com/b",
        "new",
    ]


def test_tokens_are_renamed_if_all_is_equal() -> None:
    """The same number of tokens is chance, the whole declaration is not; nothing waits."""
    tokens = {"sources": [{"static": 3}]}
    env = {"allocate": {"env": {"A": "${id}"}}}
    assert "renamed" not in str(
        reasons([resource("a", **tokens)], [resource("b", **tokens, **env)])
    )
    found = reasons([resource("a", **tokens)], [resource("b", **tokens, **HERE)])
    assert found["b"][1] == "looks renamed from example.com/a"
    assert found["a"][-1].startswith("looks renamed to example.com/b")


# ── for any two files ──

SECTIONS: Final = st.fixed_dictionaries(
    {"sources": st.sampled_from([GLOB, ["/dev/y*"], [{"static": 2}], [{"static": 3}]])},
    optional={
        "id": st.sampled_from(["${name}", ["${name}-1"]]),
        "group": st.just("${name}"),
        "allocate": st.sampled_from([{}, {"devices": []}, {"env": {"A": "1"}}]),
        "maxDevices": st.integers(1, 3),
        "minDevices": st.integers(0, 1),
        "overlap": st.sampled_from(["allow", "deny"]),
        "replicas": st.integers(1, 3),
        "maxPerContainer": st.integers(1, 2),
        "prefer": st.sampled_from(["packed", "spread", "numa", "none"]),
        "topology": st.sampled_from(["auto", "none", 0, 1]),
        "removeMissingAfter": st.sampled_from(["never", "5m", "0s", "1500ms"]),
        "health": st.sampled_from([["readable"], {"checks": ["readable"], "failures": 2}]),
        "preStart": st.sampled_from([[], [STEP], [OTHER_STEP]]),
        "nodeNames": st.sampled_from([["*"], [NODE], ["gpu-*"]]),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True))
    return config(*(resource(name, **draw(SECTIONS)) for name in names))


def here(of: Config) -> list[Resource]:
    return [one for one in of.resources if one.applies_to(NODE)]


@given(configs())
def test_the_same_again_keeps_everything(same: Config) -> None:
    """No difference, nothing to do, nothing to say."""
    found = changes(same, copy.deepcopy(same), NODE)
    assert [change.resource for change in found] == here(same)
    assert all((change.action, change.reasons) == (Action.KEEP, ()) for change in found)


@given(st.none() | configs(), configs())
def test_changes_lead_from_the_old_to_the_new(old: Config | None, new: Config) -> None:
    """Done in order they give the new file's resources; only what it lacks is drained."""
    found = changes(old, new, NODE)
    served = here(old) if old else []
    before = {one.name: one for one in served}
    wanted = [one.name for one in here(new)]
    drained = [change for change in found if change.action is Action.DRAIN]
    assert len({change.name for change in found}) == len(found)
    assert [change.name for change in drained] == [name for name in before if name not in wanted]
    assert [change.resource for change in found] == [*here(new), *(None for _ in drained)]
    for change in found:
        known = change.name in before
        assert known == (change.action is not Action.START)
        other = [one for one in change.reasons if not one.startswith("moved in the file")]
        assert bool(other) == (change.action is not Action.KEEP)
        if change.resource is not None and known:
            registers = bool(change.resource.pre_start) != bool(before[change.name].pre_start)
            assert registers == (change.action is Action.REREGISTER)
            expected = before[change.name].model_copy(
                update={"node_names": change.resource.node_names}
            )
            equal = change.resource == expected
            assert equal == (change.action is Action.KEEP)
