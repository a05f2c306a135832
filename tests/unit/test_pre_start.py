"""Which steps before a start need marks; what steps would do is shown in scans/steps.txt."""

from typing import Any

from devhost.allocation.pre_start import marks
from devhost.model.config import Resource


def resource(*steps: dict[str, Any]) -> Resource:
    return Resource.model_validate(
        {"name": "example.com/disk", "sources": [{"dev": "x"}], "preStart": list(steps)}
    )


def test_pre_start_marks_are_needed_for_steps_of_holders_only() -> None:
    start = {"mode": "0660", "every": "start"}
    assert not marks(resource())
    assert not marks(resource(start))
    assert marks(resource(start, {"mode": "0660"}))
