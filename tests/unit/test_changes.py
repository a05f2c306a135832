"""The log of two snapshots of a resource, and the counts of devices."""

import asyncio
import logging
from collections import Counter

import pytest

from devhost.model.config import Resource
from devhost.model.device import Cause, Verdict
from devhost.node import resource_status
from devhost.node.resource_status import ChangeLog, DeviceCount, log_changes
from tests.support.devices import device, snapshot


def test_changes_log_held_back_candidate_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Every start has some; what is left out for good is one."""
    caplog.set_level(logging.DEBUG)
    held = {"/dev/null": Verdict(Cause.SETTLING, "an earlier source may name it")}
    left_out = {"/dev/sda": Verdict(Cause.BAD_ID, "duplicate ID")}
    log_changes("example.com/a", snapshot(), snapshot(skipped=held | left_out))
    assert [record.fields["candidate"] for record in caplog.records] == ["/dev/sda"]  # type: ignore[attr-defined]


def test_changes_log_unchecked_device_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Every start has some, and they are not healthy again when they first are."""
    caplog.set_level(logging.DEBUG)
    after = snapshot(device("a", reason="not checked yet", cause=Cause.UNCHECKED))
    checked = snapshot(device("a"))
    log_changes("example.com/a", snapshot(), after)
    log_changes("example.com/a", after, checked)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "device found"),
        ("INFO", "device is healthy"),
    ]


RESOURCE = Resource.model_validate({"name": "example.com/a", "sources": ["/dev/x*"]})
ONE = snapshot(device("a"))


def test_device_counts_held_back_is_not_missing() -> None:
    tested = DeviceCount(RESOURCE.name)
    waiting = snapshot(skipped={"/dev/x": Verdict(Cause.SETTLING, "a second")})
    for now, missing in (
        (ONE, 0),
        (waiting, 0),
        (snapshot(error="not readable"), 0),
        (snapshot(), 1),
    ):
        tested.update(RESOURCE, now)
        assert tested.missing == missing


def test_device_counts_expect_after_an_edit_what_is_found_next() -> None:
    tested = DeviceCount(RESOURCE.name)
    expected = []
    for now in (ONE, snapshot(), None, snapshot(), ONE, snapshot()):
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
    for present in (ONE, snapshot()) * 50:
        count.update(RESOURCE, present)
        changes.update(present)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    messages = Counter(record.message for record in caplog.records)
    assert 0 < messages["devices missing"] <= resource_status._BURST + 1
    assert messages.total() <= 3 * (resource_status._BURST + 1)
