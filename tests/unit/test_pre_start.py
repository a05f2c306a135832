"""What the steps before a start would do, without doing it."""

from typing import Any, Final

import pytest

from devhost.allocation.pre_start import label, marks, numbered, planned
from devhost.errors import PreStartError
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, HostDevice, Node

CONSTANTS: Final = {"resource": "example.com/disk", "nodeName": "node-1"}


def resource(*steps: dict[str, Any]) -> Resource:
    return Resource.model_validate(
        {"name": "example.com/disk", "sources": [{"dev": "x"}], "preStart": list(steps)}
    )


def disk(name: str, *more: str) -> HostDevice:
    nodes = tuple(
        Node(f"/dev/{one}", FileState(f"/real/{one}", FileKind.BLOCK, (8, 1), (1, 2, 3)), 0, one)
        for one in (name, *more)
    )
    return HostDevice(name, nodes)


def shown(of: Resource, *devices: HostDevice) -> list[tuple[str, str, Any]]:
    plan = planned(of, devices, CONSTANTS, lambda path: f"/host{path}")
    return [(one["device"], one["step"], one["value"]) for one in plan]


def test_a_command_sees_nodes_where_devhost_does() -> None:
    """A path to wait for is the host's, as anywhere in the configuration."""
    of = resource({"run": ["mkfs", "${path}", "${realpath}"]}, {"waitFor": "${path}"})
    assert shown(of, disk("a")) == [
        ("a", "run", ["mkfs", "/host/dev/a", "/host/real/a"]),
        ("a", "waitFor", "/dev/a"),
    ]


def test_each_device_has_its_steps_in_order() -> None:
    of = resource({"run": ["x", "${id}"]}, {"mode": "660"})
    assert shown(of, disk("d10"), disk("d9")) == [
        ("d9", "run", ["x", "d9"]),
        ("d9", "mode", "0660"),
        ("d10", "run", ["x", "d10"]),
        ("d10", "mode", "0660"),
    ]


def test_a_step_is_rendered_for_each_node_and_equal_results_count_once() -> None:
    of = resource({"run": ["each", "${path}"]}, {"run": ["once", "${id}"]})
    assert shown(of, disk("a", "b")) == [
        ("a", "run", ["each", "/host/dev/a"]),
        ("a", "run", ["each", "/host/dev/b"]),
        ("a", "run", ["once", "a"]),
    ]


def test_the_containers_variables_have_values() -> None:
    of = resource({"run": ["x", "${index}/${count} ${resource} ${nodeName}"]})
    assert shown(of, disk("d10"), disk("d9")) == [
        ("d9", "run", ["x", "0/2 example.com/disk node-1"]),
        ("d10", "run", ["x", "1/2 example.com/disk node-1"]),
    ]


def test_a_plan_says_how_often_and_for_how_long() -> None:
    of = resource({"mode": "0600", "timeout": "3s"}, {"mode": "0660", "every": "start"})
    plan = planned(of, [disk("a")], CONSTANTS, str)
    assert [(one["every"], one["timeout"]) for one in plan] == [("holder", 3.0), ("start", 10.0)]


def test_nothing_is_planned_without_steps() -> None:
    assert shown(resource(), disk("a")) == []


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"run": ["mkfs.ext4", "${minor}"]}, "preStart[0] (run mkfs.ext4) of device a: ${minor}"),
        ({"waitFor": "/x/${minor}"}, "preStart[0] (waitFor /x/${minor}) of device a: ${minor}"),
        ({"waitFor": "${id}"}, "preStart[0] (waitFor ${id}) of device a: 'a' is not an absolute"),
    ],
)
def test_what_cannot_be_rendered_is_named(step: dict[str, Any], reason: str) -> None:
    with pytest.raises(PreStartError) as caught:
        shown(resource(step), disk("a"))
    assert str(caught.value).startswith(reason)


def test_records_are_kept_for_steps_of_holders_only() -> None:
    start = {"mode": "0660", "every": "start"}
    assert not marks(resource())
    assert not marks(resource(start))
    assert marks(resource(start, {"mode": "0660"}))


def test_steps_are_called_by_place_and_action() -> None:
    steps = resource(
        {"run": ["/usr/sbin/mkfs.ext4", "${path}"]}, {"mode": "0660"}, {"waitFor": "/x"}
    ).pre_start
    assert [label(number, step) for number, step in enumerate(steps)] == [
        "preStart[0] (run mkfs.ext4)",
        "preStart[1] (mode 0660)",
        "preStart[2] (waitFor /x)",
    ]


def test_devices_are_counted_in_natural_order() -> None:
    assert [(one.id, own) for one, own in numbered([disk("d10"), disk("d9")])] == [
        ("d9", {"index": "0", "count": "2"}),
        ("d10", {"index": "1", "count": "2"}),
    ]
