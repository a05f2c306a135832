"""The state of a resource, and what is logged of it."""

import logging

import pytest

from devhost.host.resource.standing import Standing
from devhost.model.state import State


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    lines = [(one.levelno, str(one.fields["state"])) for one in caplog.records]  # type: ignore[attr-defined]
    caplog.clear()
    return lines


def test_only_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The same state with the same reason is neither logged again nor dated anew."""
    caplog.set_level(logging.INFO)
    standing = Standing("example.com/a")
    standing.tell(State.WAITING, "no kubelet")
    since = standing.status.since
    standing.tell(State.WAITING, "no kubelet")
    assert standing.status.since == since
    standing.tell(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.INFO, "Waiting"), (logging.WARNING, "BackingOff")]


def test_a_state_that_comes_and_goes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After three times it is quiet, until the resource was registered again."""
    caplog.set_level(logging.INFO)
    standing = Standing("example.com/a")
    for _ in range(10):
        standing.tell(State.SERVING)
        standing.tell(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.WARNING, "BackingOff")] * 3
    standing.tell(State.REGISTERED)
    standing.tell(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.INFO, "Registered"), (logging.WARNING, "BackingOff")]


def test_a_covered_state_comes_back() -> None:
    """While a resource drains that is shown; added again, it is as it was told last."""
    standing = Standing("example.com/a")
    standing.tell(State.REGISTERED)
    standing.cover(State.DRAINING, "removed")
    standing.tell(State.WAITING, "no kubelet")
    assert str(standing.status.state) == "Draining"
    standing.uncover()
    assert (standing.status.state, standing.status.reason) == (State.WAITING, "no kubelet")
    standing.uncover()
    assert str(standing.status.state) == "Waiting"
