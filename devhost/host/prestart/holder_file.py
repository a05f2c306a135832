"""The file of one resource's holder records: what stands in it, read and written."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic_core import from_json

from devhost.immutable import immutable


@immutable
class Fresh:
    """Handed out by an Allocate; no container has started with it since.

    Attributes:
        mark: Tells this Allocate from every other.
    """

    mark: str


@immutable
class Holder:
    """Prepared for a pod.

    Attributes:
        pod: ``namespace/name``.
        mark: Of the Allocate that handed it to the pod.
    """

    pod: str
    mark: str


Record = Fresh | Holder
Records = Mapping[str, Record]


def load(path: Path, resource: str) -> tuple[dict[str, Record] | None, str | None]:
    """Return the file's records, ``None`` where it is missing; and what is wrong with it."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None, None
    try:
        content = from_json(raw)  # bounds how deep the values lie; see cdi_files
        of = content["resource"]
        records = {one: _record(entry) for one, entry in content["devices"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return {}, f"{path} is not used: {error}"
    return (records, None) if of == resource else ({}, f"{path} is not used: it is of {of}")


def _record(entry: dict[str, object]) -> Record:
    mark = entry.get("mark", "")
    if isinstance(mark, str):
        if entry.get("fresh") is True and "holder" not in entry:
            return Fresh(mark)
        if isinstance(pod := entry.get("holder"), str) and "fresh" not in entry:
            return Holder(pod, mark)
    raise ValueError(f"{entry!r} is no record")


def dumped(resource: str, records: Records) -> bytes:
    """Return the content of the file."""
    devices: dict[str, dict[str, object]] = {
        one: {"fresh": True, "mark": record.mark}
        if isinstance(record, Fresh)
        else {"holder": record.pod, "mark": record.mark}
        for one, record in sorted(records.items())
    }
    return (json.dumps({"resource": resource, "devices": devices}, indent=1) + "\n").encode()
