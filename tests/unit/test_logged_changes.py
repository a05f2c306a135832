"""What the log has of two snapshots of a resource."""

import logging

import pytest

from devhost.discovery.candidates import DEFERRED
from devhost.host.changes import log_changes
from devhost.host.health import UNCHECKED
from devhost.model.device import HostDevice, Skipped, Snapshot


def test_what_is_held_back_for_a_moment_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Every start has some; what is left out for good is one."""
    caplog.set_level(logging.DEBUG)
    held = Skipped("/dev/null", f"{DEFERRED}an earlier source may name it")
    left_out = Skipped("/dev/sda", "duplicate ID")
    log_changes("example.com/a", Snapshot(), Snapshot(skipped=(held, left_out)))
    assert [one.fields["candidate"] for one in caplog.records] == ["/dev/sda"]  # type: ignore[attr-defined]


def test_a_device_that_is_yet_to_be_checked_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every start has some, and they are not healthy again when they first are."""
    caplog.set_level(logging.DEBUG)
    found = Snapshot(devices={"a": HostDevice("a", nodes=(), reason=UNCHECKED)})
    checked = Snapshot(devices={"a": HostDevice("a", nodes=())})
    log_changes("example.com/a", Snapshot(), found)
    log_changes("example.com/a", found, checked)
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("INFO", "device found"),
        ("INFO", "device is healthy"),
    ]
