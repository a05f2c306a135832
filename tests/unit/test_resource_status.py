"""The state of a resource, and what is logged of it."""

import logging

import pytest

from devhost.model.resource_state import State
from devhost.node.resource_status import ResourceStatus


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    lines = [(record.levelno, str(record.fields["state"])) for record in caplog.records]  # type: ignore[attr-defined]
    caplog.clear()
    return lines


def test_resource_status_logs_only_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    status = ResourceStatus("example.com/a")
    status.set(State.WAITING, "no kubelet")
    since = status.current.since
    status.set(State.WAITING, "no kubelet")
    assert status.current.since == since
    status.set(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.INFO, "Waiting"), (logging.WARNING, "BackingOff")]


def test_resource_status_flapping_does_not_fill_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    status = ResourceStatus("example.com/a")
    for _ in range(10):
        status.set(State.SERVING)
        status.set(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.WARNING, "BackingOff")] * 3
    status.set(State.REGISTERED)
    status.set(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.INFO, "Registered"), (logging.WARNING, "BackingOff")]


def test_resource_status_overridden_comes_back() -> None:
    status = ResourceStatus("example.com/a")
    status.set(State.REGISTERED)
    status.override(State.DRAINING, "removed")
    status.set(State.WAITING, "no kubelet")
    assert str(status.current.state) == "Draining"
    status.restore()
    assert (status.current.state, status.current.reason) == (State.WAITING, "no kubelet")
    status.restore()
    assert str(status.current.state) == "Waiting"
