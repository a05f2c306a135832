"""The steps before a start that need has_holder_steps; scans/steps.txt has what steps would do."""

from typing import Any

from devhost.allocation.steps import has_holder_steps
from devhost.model.config import Resource


def resource(*steps: dict[str, Any]) -> Resource:
    return Resource.model_validate(
        {"name": "example.com/disk", "sources": [{"dev": "x"}], "preStart": list(steps)}
    )


def test_pre_start_has_holder_steps_are_needed_for_steps_of_holders_only() -> None:
    start = {"mode": "0660", "every": "start"}
    assert not has_holder_steps(resource())
    assert not has_holder_steps(resource(start))
    assert has_holder_steps(resource(start, {"mode": "0660"}))
