"""Log lines for kubelet's calls: what a container received, and what was refused."""

import logging
from collections import ChainMap
from collections.abc import Sequence
from typing import Final

from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.names import printable

_SHOWN_MAX: Final = 16  # IDs, paths and so on; a container may get thousands
_LENGTH_MAX: Final = 200  # of each
_REASON_MAX: Final = 1000
_LOG: Final = logging.getLogger(__name__)

Fields = dict[str, object]


def log_allocated(resource: str, answers: Sequence[Allocation], seconds: float) -> None:
    """Log what an Allocate handed out: the names of variables, not their values.

    One line for a call, also where a client asks for several containers, which kubelet does not.
    """
    specs = [spec for one in answers for spec in (*one.specs, *one.in_cdi_spec)]
    devices = [spec for spec in specs if isinstance(spec, DeviceSpec)]
    numbers = ChainMap(*(dict(one.numbers) for one in answers))
    received = {
        "env": [name for one in answers for name in one.envs],
        "annotations": [key for one in answers for key in one.annotations],
        "devices": [f"{it.host_path}:{it.container_path}:{it.permissions}" for it in devices],
        "numbers": [numbers.get(it.host_path, "") for it in devices],
        "mounts": [
            f"{it.host_path}:{it.container_path}:{'ro' if it.read_only else 'rw'}"
            for it in specs
            if isinstance(it, MountSpec)
        ],
        "cdi": [name for one in answers for name in one.cdi_devices],
    }
    ids = [device_id for one in answers for device_id in one.device_ids]
    fields: Fields = {"resource": resource, "ids": _some(ids)}
    fields |= {key: _some(texts) for key, texts in received.items() if texts}
    if len(answers) != 1:
        fields["containers"] = len(answers)
    _LOG.info("allocated", extra={"fields": {**fields, "seconds": round(seconds, 4)}})


def log_failed(what: str, resource: str, ids: Sequence[str], reason: str, **more: str) -> None:
    """Log an Allocate, or a container that must not start."""
    fields = {"resource": resource, "ids": _some(ids), **more}
    fields["reason"] = _short(reason, _REASON_MAX)
    _LOG.warning("%s failed", what, extra={"fields": fields})


def log_prepared(resource: str, ids: Sequence[str], seconds: float) -> None:
    """Log a container that may start."""
    fields = {"resource": resource, "ids": _some(ids), "seconds": round(seconds, 4)}
    _LOG.info("devices prepared for a container", extra={"fields": fields})


def _some(texts: Sequence[str]) -> list[str]:
    shown = [_short(text, _LENGTH_MAX) for text in texts[:_SHOWN_MAX]]
    if len(texts) > _SHOWN_MAX:
        shown.append(f"and {len(texts) - _SHOWN_MAX} more")
    return shown


def _short(text: str, length: int) -> str:
    return printable(text[:length])[:length]
