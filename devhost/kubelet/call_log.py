"""Log lines for kubelet's calls: what a container received, and what was refused."""

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from devhost.model.allocation import Allocation
from devhost.model.names import printable

LATE_S: Final = 2.0  # a call that takes longer is logged before it ends
_SHOWN_MAX: Final = 16  # IDs, paths and so on; a container may get thousands
_LENGTH_MAX: Final = 200  # of each
_LOG: Final = logging.getLogger(__name__)

Fields = dict[str, object]


def log_allocated(resource: str, allocations: Sequence[Allocation], seconds: float) -> None:
    """Log what containers received: the names of variables, not their values."""
    for one in allocations:
        received: dict[str, tuple[int, Iterable[str]]] = {
            "env": (len(one.envs), one.envs),
            "annotations": (len(one.annotations), one.annotations),
            "devices": (
                len(one.devices),
                (f"{it.host_path}:{it.container_path}:{it.permissions}" for it in one.devices),
            ),
            "mounts": (
                len(one.mounts),
                (
                    f"{it.host_path}:{it.container_path}:{'ro' if it.read_only else 'rw'}"
                    for it in one.mounts
                ),
            ),
            "cdi": (len(one.cdi_devices), one.cdi_devices),
        }
        fields: Fields = {"resource": resource, "ids": _some(one.device_ids)}
        fields |= {key: _shown(size, texts) for key, (size, texts) in received.items() if size}
        _LOG.info("allocated", extra={"fields": {**fields, "seconds": round(seconds, 4)}})


def log_holder(resource: str, ids: Sequence[str], pod: str) -> None:
    """Log which pod holds the devices of an Allocate."""
    fields = {"resource": resource, "ids": _some(ids), "pod": pod}
    _LOG.info("pod holds allocated devices", extra={"fields": fields})


def log_not_allocated(resource: str, ids: Sequence[str], result: str, reason: str) -> None:
    """Log an Allocate that failed."""
    fields = {"resource": resource, "ids": _some(ids), "result": result, "reason": reason}
    _LOG.warning("allocation failed", extra={"fields": fields})


def log_slow_registration(resource: str, socket: str) -> None:
    """Log a registration that kubelet has not answered yet."""
    fields = {"resource": resource, "socket": socket}
    _LOG.warning("waiting for the kubelet to answer a registration", extra={"fields": fields})


def log_slow_allocation(resource: str, ids: Sequence[str]) -> None:
    """Log an Allocate that waits for the host."""
    fields = {"resource": resource, "ids": _some(ids)}
    _LOG.warning("allocation is slow, waiting for the host", extra={"fields": fields})


def log_prepared(resource: str, ids: Sequence[str], pod: str | None, seconds: float) -> None:
    """Log a container that may start."""
    known = {"pod": pod} if pod else {}
    fields = {"resource": resource, "ids": _some(ids), **known, "seconds": round(seconds, 4)}
    _LOG.info("devices prepared for a container", extra={"fields": fields})


def log_not_prepared(resource: str, ids: Sequence[str], reason: str) -> None:
    """Log a container that must not start."""
    fields = {"resource": resource, "ids": _some(ids), "reason": reason}
    _LOG.warning("preparing devices for a container failed", extra={"fields": fields})


def _some(texts: Sequence[str]) -> list[str]:
    return _shown(len(texts), texts)


def _shown(size: int, texts: Iterable[str]) -> list[str]:
    shown = [printable(text[:_LENGTH_MAX]) for text in islice(texts, _SHOWN_MAX)]
    if size > _SHOWN_MAX:
        shown.append(f"and {size - _SHOWN_MAX} more")
    return shown
