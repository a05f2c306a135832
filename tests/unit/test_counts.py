"""When devices are counted."""

import asyncio
from functools import partial

import pytest

from devhost.discovery.candidates import DEFERRED
from devhost.host import counts
from devhost.host.counts import DeviceCounts
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Skipped, Snapshot

A = "example.com/a"


async def test_devices_that_wait_for_their_name_are_not_counted_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor those of a source that cannot be read: another scan follows."""
    monkeypatch.setattr(counts, "_BURST_S", 0.0)
    resource = Resource.model_validate({"name": A, "sources": ["/dev/x*"]})
    tested = DeviceCounts()

    def published(found: Snapshot) -> tuple[Resource, Snapshot]:
        return resource, found

    well = Snapshot({"a": HostDevice("a", ())})
    waiting = Snapshot(skipped=(Skipped("/dev/x", f"{DEFERRED} a second"),))
    for found, missing in (
        (well, 0),
        (waiting, 0),
        (Snapshot(error="not readable"), 0),
        (Snapshot(), 1),
    ):
        tested.changed(A, partial(published, found))
        await asyncio.sleep(0.01)
        assert tested.of(A).missing == missing
