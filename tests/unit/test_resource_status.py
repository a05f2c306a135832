"""The state of a resource, the counts of its devices, and what is logged of both."""

import asyncio
import logging
from collections import Counter

import pytest

from devhost.model.config import Resource
from devhost.model.device import Cause, Verdict
from devhost.model.resource_state import State
from devhost.node import resource_status
from devhost.node.resource_status import ChangeLog, DeviceCount, ResourceStatus, log_changes
from tests.support.devices import device, snapshot

RESOURCE = Resource.model_validate({"name": "example.com/a", "sources": ["/dev/x*"]})
PRESENT = snapshot(device("a"))


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    lines = [(record.levelno, str(record.fields["state"])) for record in caplog.records]  # type: ignore[attr-defined]
    caplog.clear()
    return lines


def test_resource_status_logs_only_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    status = ResourceStatus(RESOURCE.name)
    status.set(State.WAITING, "no kubelet")
    since = status.current.since
    status.set(State.WAITING, "no kubelet")
    assert status.current.since == since
    assert shown(caplog) == [(logging.INFO, "Waiting")]
    for _ in range(10):  # a state that comes again and again does not fill the log
        status.set(State.SERVING)
        status.set(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.WARNING, "BackingOff")] * 3
    status.set(State.REGISTERED)
    status.set(State.BACKING_OFF, "refused")
    assert shown(caplog) == [(logging.INFO, "Registered"), (logging.WARNING, "BackingOff")]


def test_resource_status_overridden_comes_back() -> None:
    status = ResourceStatus(RESOURCE.name)
    status.set(State.REGISTERED)
    status.override(State.DRAINING, "removed")
    status.set(State.WAITING, "no kubelet")
    assert str(status.current.state) == "Draining"
    status.restore()
    assert (status.current.state, status.current.reason) == (State.WAITING, "no kubelet")
    status.restore()
    assert str(status.current.state) == "Waiting"


def test_log_of_changes_has_no_warning_of_what_every_start_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Candidates that are held back, and devices that are not checked yet, unlike what is left out."""
    caplog.set_level(logging.DEBUG)
    skipped = {
        "/dev/null": Verdict(Cause.SETTLING, "an earlier source may name it"),
        "/dev/sda": Verdict(Cause.BAD_ID, "duplicate ID"),
    }
    unchecked = device("a", reason="not checked yet", cause=Cause.UNCHECKED)
    start, later = (snapshot(first, skipped=skipped) for first in (unchecked, device("a")))
    log_changes(RESOURCE.name, snapshot(), start)
    log_changes(RESOURCE.name, start, later)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "skipped"),
        ("INFO", "device found"),
        ("INFO", "device is healthy"),
    ]
    assert caplog.records[0].fields["candidate"] == "/dev/sda"  # type: ignore[attr-defined]


def test_device_counts_held_back_is_not_missing() -> None:
    tested = DeviceCount(RESOURCE.name)
    waiting = snapshot(skipped={"/dev/x": Verdict(Cause.SETTLING, "a second")})
    for now, missing in (
        (PRESENT, 0),
        (waiting, 0),
        (snapshot(error="not readable"), 0),
        (snapshot(), 1),
    ):
        tested.update(RESOURCE, now)
        assert tested.missing == missing


def test_device_counts_expect_after_an_edit_what_is_found_next() -> None:
    tested = DeviceCount(RESOURCE.name)
    expected = []
    for now in (PRESENT, snapshot(), None, snapshot(), PRESENT, snapshot()):
        if now is None:
            tested.accept_next = True
        else:
            tested.update(RESOURCE, now)
        expected.append(tested.expected)
    assert expected == [1, 1, 1, 0, 1, 1]


async def test_log_of_a_device_that_comes_and_goes_has_a_few_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad cable: how many devices are missing is logged with a pause, too."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(resource_status, "_EVERY_S", 3600.0)
    count = DeviceCount(RESOURCE.name)
    changes = ChangeLog(RESOURCE.name, count.log_change)
    for present in (PRESENT, snapshot()) * 50:
        count.update(RESOURCE, present)
        changes.update(present)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    messages = Counter(record.message for record in caplog.records)
    assert 0 < messages["devices missing"] <= resource_status._BURST + 1
    assert messages.total() <= 3 * (resource_status._BURST + 1)
