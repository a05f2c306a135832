"""From a resource's rules and its devices to what a container receives."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.declaration import Declaration, Rules, combine, rules_of
from devhost.allocation.policy import Policy
from devhost.discovery.scan import Taken, clash
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, HostDevice, Node, Snapshot

NONE: Final[list[Any]] = []
CONSTANTS: Final = {"resource": "example.com/a", "nodeName": "node-1"}


def rules(**section: Any) -> Rules:
    """The rules of an ``allocate``; no devices by default."""
    resource = Resource.model_validate(
        {
            "name": "example.com/a",
            "sources": [{"dev": "x"}],
            "allocate": {"devices": NONE, **section},
        },
    )
    return rules_of(resource)


def node(path: str, kind: FileKind = FileKind.CHAR, **groups: str) -> Node:
    name = path.removeprefix("/dev/")
    number = (1, 3) if kind.is_node else None
    return Node(path, FileState(f"/real{path}", kind, number, (1, 2, 3)), 0, name, groups)


def token(name: str) -> Node:
    return Node("", None, 0, name)


def device(device_id: str, *nodes: Node) -> HostDevice:
    return HostDevice(device_id, nodes or (node(f"/dev/{device_id}"),))


def allocate(of: Rules, devices: Iterable[HostDevice], ids: Iterable[str]) -> Allocation:
    return combine(of, CONSTANTS, devices, ids)


def clashes(of: Rules, *devices: HostDevice) -> dict[str, str]:
    """Why devices cannot be offered beside those before them."""
    own, taken = tuple(rule for rule in of if rule.exclusive), Taken()
    found = {one.id: clash(taken, one.id, allocate(own, [one], [one.id])) for one in devices}
    return {device_id: reason for device_id, reason in found.items() if reason}


def given_to(of: Rules, *ids: str) -> Allocation:
    """What a container receives for devices named after their nodes."""
    return allocate(of, [device(each) for each in ids], ids)


# ── the one rule ──


@pytest.mark.parametrize(
    ("env", "ids", "envs"),
    [
        ({"A": "x"}, ["a", "b", "c"], {"A": "x"}),
        ({"A": "${id}"}, ["a"], {"A": "a"}),
        ({"A": "${id}"}, ["a", "b", "c"], {"A": "a,b,c"}),
        ({"A": "${id}"}, ["c10", "c9"], {"A": "c9,c10"}),
        ({"A": "${index}"}, ["c10", "c9"], {"A": "0,1"}),
        ({"A": "${id}=${index}"}, ["c10", "c9", "c1"], {"A": "c1=0,c9=1,c10=2"}),
        ({"A_${index}": "${id}"}, ["c10", "c9"], {"A_0": "c9", "A_1": "c10"}),
        ({"A_${id}": "x"}, ["a", "b"], {"A_a": "x", "A_b": "x"}),
        ({"A_${id}": "p,q"}, ["a", "b"], {"A_a": "p,q", "A_b": "p,q"}),
        ({"A": {"value": "${id}", "separator": ":"}}, ["a", "b"], {"A": "a:b"}),
        ({"A": {"value": "${id}", "separator": ""}}, ["a", "b"], {"A": "ab"}),
        ({"A": {"value": "${id}", "separator": "$"}}, ["a", "b"], {"A": "a$b"}),
        ({"A": "p,q"}, ["a"], {"A": "p,q"}),
        ({"A": "${count}"}, ["a", "b"], {"A": "2"}),
        ({"A": "${resource} ${nodeName}"}, ["a", "b"], {"A": "example.com/a node-1"}),
        ({"A": "/dev/x"}, ["a"], {"A": "/dev/x"}),
        ({"A": "${name} ${path} ${realpath}"}, ["a"], {"A": "a /dev/a /real/dev/a"}),
        ({"A": "$${id}"}, ["a", "b"], {"A": "${id}"}),
        ({"A": ""}, ["a"], {"A": ""}),
    ],
)
def test_env_is_rendered_per_device_and_joined_or_once(
    env: Mapping[str, Any], ids: Sequence[str], envs: Mapping[str, str]
) -> None:
    assert given_to(rules(env=env), *ids).envs == envs


def test_env_equal_results_of_one_device_count_once() -> None:
    """Not across devices."""
    of = rules(env={"IDS": "${id}", "PATHS": "${path}", "SORTS": "${sort}"})
    card = device("card", node("/dev/p", sort="k"), node("/dev/q", sort="k"))
    other = device("other", node("/dev/r", sort="k"))
    expected = {"IDS": "card,other", "PATHS": "/dev/p,/dev/q,/dev/r", "SORTS": "k,k"}
    assert allocate(of, [card, other], ["card", "other"]).envs == expected


def test_allocation_has_each_part_with_the_options_of_its_entry() -> None:
    """Entries without a device variable come once; annotations are joined, CDI names are a list."""
    of = rules(
        devices=["/dev/fuse", {"hostPath": "${path}", "permissions": "rwm", "optional": True}],
        mounts=["/opt", {"hostPath": "/a", "containerPath": "/b", "readOnly": False}],
        cdi=["v/c=all", "v/c=${id}"],
        annotations={"a": "b", "example.com/ids": "${id}"},
    )
    assert given_to(of, "b", "a") == Allocation(
        device_ids=("a", "b"),
        mounts=(MountSpec("/opt", "/opt", read_only=True), MountSpec("/a", "/b", read_only=False)),
        devices=(
            DeviceSpec("/dev/fuse", "/dev/fuse", "rw"),
            DeviceSpec("/dev/a", "/dev/a", "rwm", optional=True, device="a"),
            DeviceSpec("/dev/b", "/dev/b", "rwm", optional=True, device="b"),
        ),
        annotations={"a": "b", "example.com/ids": "a,b"},
        cdi_devices=("v/c=all", "v/c=a", "v/c=b"),
    )


def test_allocation_of_shares_has_their_ids_and_the_device_once() -> None:
    """Shares of one device are one device, named by all of their IDs."""
    of = rules(env={"A": "${id}", "N": "${count}"})
    allocation = allocate(of, [device("a")], ["a::10", "a::9"])
    assert allocation.device_ids == ("a::9", "a::10")
    assert allocation.envs == {"A": "a", "N": "1"}


# ── devices left out ──


def default_rules() -> Rules:
    return rules_of(Resource.model_validate({"name": "a.io/a", "sources": [{"dev": "x"}]}))


@pytest.mark.parametrize("kind", FileKind)
def test_allocation_without_devices_has_the_nodes_under_their_own_names(kind: FileKind) -> None:
    """Without ``devices`` a container receives character and block nodes, and no others.

    The host path stays as found: a link leads to the node also when a container starts again.
    """
    of = default_rules()
    allocation = allocate(of, [device("a", node("/dev/a", kind))], ["a"])
    is_node = kind in (FileKind.CHAR, FileKind.BLOCK)
    expected = (DeviceSpec("/dev/a", "/real/dev/a", "rw", device="a"),) if is_node else ()
    assert allocation == Allocation(device_ids=("a",), devices=expected)


def test_allocation_of_two_nodes_with_one_container_path_is_refused() -> None:
    """Two links that lead to one path, as they may at different moments."""
    of, state = default_rules(), FileState("/dev/x", FileKind.CHAR, (1, 3), (1, 2, 3))
    both = [device(name, Node(f"/dev/by-id/{name}", state, 0, name)) for name in "ab"]
    assert clashes(of, *both) == {"b": "container path /dev/x is used by device a too"}
    with pytest.raises(AllocationError, match="container path /dev/x is set twice"):
        allocate(of, both, ["a", "b"])


# ── what cannot be rendered ──


@pytest.mark.parametrize(
    ("section", "device_id", "says"),
    [
        ({"env": {"A": "${serial}"}}, "a", "env A: ${serial} has no value"),
        ({"env": {"A": "${id}"}}, "a,b", "contains the separator ','"),
        ({"env": {"A": {"value": "${id}", "separator": "-"}}}, "a-b", "contains the separator '-'"),
        (
            {"env": {"A_${id}": "x"}},
            "a-b",
            "'A_a-b' is not a valid name of an environment variable",
        ),
        ({"env": {"A": "${id}"}}, "a\x01", "control character"),
        ({"annotations": {"${id}": "x"}}, "a b", "not an annotation key"),
        ({"annotations": {"${id}/x": "x"}}, "cdi.k8s.io", "control the runtime"),
        ({"cdi": ["v/c=${id}"]}, "a b", "not a fully qualified CDI name"),
        ({"devices": ["${id}"]}, "a", "not an absolute path"),
        ({"devices": ["/dev/${id}"]}, "..", "'..'"),
        ({"mounts": ["/x/${id}"]}, "a\nb", "control character"),
    ],
)
def test_allocation_that_cannot_be_rendered_says_why(
    section: Mapping[str, Any], device_id: str, says: str
) -> None:
    """A missing value, an illegal result or a separator in a value is found at the scan."""
    with pytest.raises(AllocationError) as caught:
        allocate(rules(**section), [device(device_id, node("/dev/x"))], [device_id])
    assert says in str(caught.value)


def test_allocation_larger_than_kubelet_takes_is_refused() -> None:
    of = rules(env={"A": "x" * 2_000_000 + "${id}"})
    assert len(given_to(of, "a", "b").envs["A"]) == 4_000_003
    with pytest.raises(AllocationError, match="a container would receive more than 4 MiB of text"):
        given_to(of, "a", "b", "c")


def test_optional_entry_without_a_value_is_left_out() -> None:
    of = rules(
        env={
            "A": {"value": "${serial}", "optional": True},
            "A_${serial}": {"value": "x", "optional": True},
            "B": "${id}",
        },
        devices=[{"hostPath": "/dev/port${serial}", "optional": True}],
    )
    with_value, without = device("a", node("/dev/a", serial="s1")), device("b")
    both = allocate(of, [with_value, without], ["a", "b"])
    assert both.envs == {"A": "s1", "A_s1": "x", "B": "a,b"}
    assert [one.host_path for one in both.devices] == ["/dev/ports1"]
    alone = allocate(of, [without], ["b"])
    assert (alone.envs, alone.devices) == ({"B": "b"}, ())


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"env": {"A": "x", "${id}": "y"}}, "env A has two values, 'x' and 'y'"),
        ({"env": {"A": "x", "${id}": "x"}}, None),
        ({"env": {"A_0": "${id}", "A_${index}": "x"}}, "env A_0 has two values"),
        ({"env": {"A_${index}": "x", "A_0": "${id}"}}, "env A_0 has two values"),
        ({"env": {"A_${index}": "p,q"}}, None),
        ({"devices": ["/dev/x"], "mounts": ["/dev/x"]}, "container path /dev/x is set twice"),
        (
            {"devices": ["/dev/x", {"hostPath": "/dev/x", "permissions": "r"}]},
            "container path /dev/x is set twice",
        ),
        ({"devices": ["/dev/x", "/dev/x"]}, None),
        (
            {"devices": [{"hostPath": "${path}", "containerPath": "/dev/x"}]},
            "container path /dev/x is set twice: to /dev/A and to /dev/B; use ${index}",
        ),
    ],
)
def test_allocation_with_two_values_at_one_name_or_path_is_refused(
    section: Mapping[str, Any], says: str | None
) -> None:
    if says is None:
        given_to(rules(**section), "A", "B")
        return
    with pytest.raises(AllocationError) as caught:
        given_to(rules(**section), "A", "B")
    assert says in str(caught.value)


def test_allocation_of_an_unhealthy_device_is_refused_with_its_reason() -> None:
    sick = HostDevice("a", (node("/dev/a"),), reason="gone mad")
    resource = Resource.model_validate({"name": "example.com/a", "sources": [{"dev": "a"}]})
    declaration = Declaration(resource, rules(), HostFiles(), Policy(), "node-1")
    with pytest.raises(AllocationError, match=r"^example\.com/a: device a: gone mad$"):
        declaration.allocate(Snapshot({"a": sick}), ["a"])


# ── clashes ──


@pytest.mark.parametrize(
    ("section", "groups", "loser"),
    [
        ({"env": {"A_${minor}": "${id}"}}, ("1", "1"), "b"),
        ({"env": {"A_${minor}": "${id}"}}, ("1", "2"), None),
        ({"env": {"A_${minor}": "same"}}, ("1", "1"), None),
        ({"env": {"A_${minor}_${index}": "${id}"}}, ("1", "1"), None),
        ({"env": {"A": "${id}"}}, ("1", "1"), None),
        ({"annotations": {"a${minor}": "${id}"}}, ("1", "1"), "b"),
        (
            {"devices": [{"hostPath": "${path}", "containerPath": "/dev/x${minor}"}]},
            ("1", "1"),
            "b",
        ),
        ({"devices": [{"hostPath": "${path}", "containerPath": "/dev/x"}]}, ("1", "1"), None),
        ({"mounts": [{"hostPath": "${path}", "containerPath": "/x${minor}"}]}, ("1", "1"), "b"),
        ({"cdi": ["v/c=${minor}"]}, ("1", "1"), None),
    ],
)
def test_clash_of_two_devices_makes_the_later_one_lose(
    section: Mapping[str, Any], groups: tuple[str, str], loser: str | None
) -> None:
    of = rules(**section)
    a, b = (
        device(each, node(f"/dev/{each}", minor=minor))
        for each, minor in zip(("a", "b"), groups, strict=True)
    )
    found = clashes(of, a, b)
    assert list(found) == ([loser] if loser else [])
    assert all("device a too" in reason for reason in found.values())
    assert list(clashes(of, b, a)) == (["a"] if loser else [])


# ── properties ──

FULL: Final = rules(
    env={"IDS": "${id}", "N": "${count}", "P_${index}": "${path}", "C": "x"},
    devices=["/dev/fuse", {"hostPath": "${path}", "containerPath": "/dev/x${index}"}],
    mounts=[{"hostPath": "/opt/${id}", "containerPath": "/opt/${index}"}],
    annotations={"a": "${name}"},
    cdi=["v/c=d${id}"],
)


@given(
    st.sets(st.integers(0, 30).map("c{}".format), min_size=1, max_size=6).flatmap(
        lambda ids: st.tuples(st.permutations(sorted(ids)), st.permutations(sorted(ids)))
    )
)
def test_allocation_does_not_depend_on_the_order_of_devices_or_ids(
    orders: tuple[list[str], list[str]],
) -> None:
    """Devices and IDs in any order give the same answer, also in the order of its parts."""
    devices = {each: device(each) for each in orders[0]}
    one = allocate(FULL, [devices[each] for each in orders[0]], orders[0])
    other = allocate(FULL, [devices[each] for each in orders[1]], orders[1])
    assert one == other
    for mapping in ("envs", "annotations"):
        assert list(getattr(one, mapping)) == list(getattr(other, mapping))
