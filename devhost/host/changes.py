"""Logs what changed between two snapshots of a resource."""

import logging
from typing import Final

from devhost.discovery.candidates import DEFERRED
from devhost.host.health import UNCHECKED
from devhost.model.device import Snapshot

_LINES_MAX: Final = 5  # of one change; 10,000 devices are no 10,000 lines
_LOG: Final = logging.getLogger(__name__)


def log_changes(resource: str, before: Snapshot, after: Snapshot) -> None:
    """Log devices that came, changed their health or go, what is skipped, and failures.

    What containers cannot be given is a warning.
    """

    def fields(**more: object) -> dict[str, object]:
        return {"fields": {"resource": resource, **{k: v for k, v in more.items() if v}}}

    devices = list(_device_lines(before, after))
    known = set(before.skipped)
    new = [one for one in after.skipped if one not in known] if known else after.skipped
    # What is held back is offered soon, or skipped for another reason.
    skipped = [one for one in new if not one.reason.startswith(DEFERRED)]
    # Those with a reason first: of many lines, only the first are logged.
    lines = [line for line in devices if _is_bad(line[1])]
    lines += [
        ("skipped", {"candidate": one.candidate, "reason": one.reason})
        for one in skipped[: _LINES_MAX + 1]
    ]
    lines += [line for line in devices if not _is_bad(line[1])]
    for message, more in lines[:_LINES_MAX]:
        level = logging.WARNING if _is_bad(more) else logging.INFO
        _LOG.log(level, message, extra=fields(**more))
    rest = len(devices) + len(skipped) - _LINES_MAX
    if rest > 0:
        level = logging.WARNING if _is_bad(lines[_LINES_MAX][1]) else logging.INFO
        _LOG.log(level, "and more", extra=fields(changes=rest))
    for note in set(after.notes) - set(before.notes):
        _LOG.info("host path missing", extra=fields(reason=note))
    for reason in after.why_none() if before.why_none is tuple else ():
        _LOG.info("no devices", extra=fields(reason=reason))
    if after.error is not None and after.error != before.error:
        _LOG.warning("source failed", extra=fields(reason=after.error))


def _is_bad(fields: dict[str, object]) -> bool:
    return fields.get("reason") not in (None, UNCHECKED)


def _device_lines(before: Snapshot, after: Snapshot) -> list[tuple[str, dict[str, object]]]:
    was = {device.id: device.reason for device in before.devices.values()}
    now = {device.id: device.reason for device in after.devices.values()}
    lines: list[tuple[str, dict[str, object]]] = []
    for device_id, reason in now.items():
        if device_id not in was:
            lines.append(("device found", {"device": device_id, "reason": reason}))
        elif was[device_id] != reason:
            again = " again" if was[device_id] != UNCHECKED else ""
            health = f"device is healthy{again}" if reason is None else "device is unhealthy"
            lines.append((health, {"device": device_id, "reason": reason}))
    lines += [("device leaves", {"device": gone}) for gone in was.keys() - now.keys()]
    return lines
