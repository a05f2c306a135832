"""What the steps before a start would do, without doing it."""

from typing import Any, Final

import pytest

from devhost.allocation.pre_start import marks, planned
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


@pytest.mark.parametrize(
    ("step", "devices", "values"),
    [
        # A command sees the nodes where devhost does, a path to wait for is the host's.
        (
            {"run": ["mkfs", "${path}", "${realpath}"]},
            [disk("a")],
            [("a", "run", ["mkfs", "/host/dev/a", "/host/real/a"])],
        ),
        ({"waitFor": "${path}"}, [disk("a")], [("a", "waitFor", "/dev/a")]),
        ({"mode": "660"}, [disk("a")], [("a", "mode", "0660")]),
        # For each node, equal results once.
        (
            {"run": ["each", "${path}"]},
            [disk("a", "b")],
            [("a", "run", ["each", "/host/dev/a"]), ("a", "run", ["each", "/host/dev/b"])],
        ),
        ({"run": ["once", "${id}"]}, [disk("a", "b")], [("a", "run", ["once", "a"])]),
        # Devices in natural order, with the variables of the container.
        (
            {"run": ["x", "${index}/${count} ${resource} ${nodeName}"]},
            [disk("d10"), disk("d9")],
            [
                ("d9", "run", ["x", "0/2 example.com/disk node-1"]),
                ("d10", "run", ["x", "1/2 example.com/disk node-1"]),
            ],
        ),
    ],
)
def test_pre_start_plan_has_a_rendered_step_for_each_device_and_node(
    step: dict[str, Any], devices: list[HostDevice], values: list[tuple[str, str, Any]]
) -> None:
    assert shown(resource(step), *devices) == values


def test_pre_start_plan_has_all_steps_of_a_device_before_those_of_the_next() -> None:
    of = resource({"run": ["x"]}, {"mode": "660"})
    assert [one[:2] for one in shown(of, disk("d10"), disk("d9"))] == [
        *(("d9", "run"), ("d9", "mode")),
        *(("d10", "run"), ("d10", "mode")),
    ]
    assert shown(resource(), disk("a")) == []


def test_pre_start_plan_says_how_often_and_for_how_long() -> None:
    of = resource({"mode": "0600", "timeout": "3s"}, {"mode": "0660", "every": "start"})
    plan = planned(of, [disk("a")], CONSTANTS, str)
    assert [(one["every"], one["timeout"]) for one in plan] == [("holder", 3.0), ("start", 10.0)]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"run": ["mkfs.ext4", "${minor}"]}, "preStart[0] (run mkfs.ext4) of device a: ${minor}"),
        ({"waitFor": "/x/${minor}"}, "preStart[0] (waitFor /x/${minor}) of device a: ${minor}"),
        ({"waitFor": "${id}"}, "preStart[0] (waitFor ${id}) of device a: 'a' is not an absolute"),
    ],
)
def test_pre_start_step_that_cannot_be_rendered_is_named(step: dict[str, Any], reason: str) -> None:
    with pytest.raises(PreStartError) as caught:
        shown(resource(step), disk("a"))
    assert str(caught.value).startswith(reason)


def test_pre_start_marks_are_needed_for_steps_of_holders_only() -> None:
    start = {"mode": "0660", "every": "start"}
    assert not marks(resource())
    assert not marks(resource(start))
    assert marks(resource(start, {"mode": "0660"}))
