"""The status of a running devhost, as text."""

from collections.abc import Iterator, Mapping, Sequence

from devhost.cli import output as printer
from devhost.cli.status_client import StatusJson
from devhost.model.names import without_share


def print_status(shown: StatusJson, *, wide: bool = False) -> None:
    """Print a status, with the problems at the end."""
    for line in _head(shown):
        printer.echo(line)
    for resource in shown["resources"]:
        printer.echo()
        printer.echo(f"{resource['name']}: {_summary(resource)}")
        for note in _notes(resource):
            printer.echo(note)
        if resource["devices"]:
            _print_devices(resource["devices"], resource["holders"], wide=wide)
        for skipped in resource["skipped"]:
            printer.echo(f"  skipped {skipped['candidate']}: {skipped['reason']}")
    if shown["troubles"]:
        printer.echo()
        printer.echo("problems:")
        for trouble in shown["troubles"]:
            printer.echo(f"  {trouble}")


def _summary(resource: StatusJson) -> str:
    """Return the state of a resource and its numbers."""
    counts = f"{resource['allocatable']} of {resource['capacity']} allocatable"
    if resource["missing"]:
        counts += f", {resource['missing']} missing"
    return f"{resource['state']} since {resource['since']}, {counts}"


def pods(holders: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the pods that have each device or a share of it."""
    found: dict[str, set[str]] = {}
    for advertised, names in holders.items():
        found.setdefault(without_share(advertised), set()).update(names)
    return {device_id: ", ".join(sorted(names)) for device_id, names in found.items()}


def _head(shown: StatusJson) -> Iterator[str]:
    ready = "ready" if shown["ready"] else "not ready"
    yield f"devhost {shown['version']} on {shown['nodeName']}, since {shown['startedAt']}: {ready}"
    if config := shown["config"]:
        counts = f"({config['reloads']} reloaded, {config['failures']} rejected)"
        yield f"configuration {config['file']}, applied {config['appliedAt']} {counts}"
        for one in config["problems"]:
            where = f"{one['file']}:{one['line']}:{one['column']}: {one['severity']}: "
            place = f"{one['path']}: " if one["path"] else ""
            yield f"  {where}{place}{one['message']}"
    if (holders := shown["kubelet"]["podResources"]) != "known":
        yield f"pod-resources unavailable: {holders}"


def _notes(resource: StatusJson) -> Iterator[str]:
    for heading in ("reason", "error"):
        if resource[heading]:
            yield f"  {heading}: {resource[heading]}"
    for warning in resource["warnings"]:
        yield f"  warning: {warning}"


def _print_devices(
    devices: Sequence[StatusJson], holders: Mapping[str, Sequence[str]], *, wide: bool
) -> None:
    held = pods(holders)
    columns = {
        "DEVICE": [device["id"] for device in devices],
        "HEALTH": [device["health"] for device in devices],
        "HELD BY": [held.get(device["id"], "") for device in devices],
        "PATHS": [", ".join(device["paths"]) for device in devices],
        "REASON": [device["reason"] or _last_check(device.get("checked")) for device in devices],
    }
    if wide:
        numa = [",".join(map(str, device["numaNodes"])) for device in devices]
        checked = [(device.get("checked") or {}).get("at", "") for device in devices]
        reason = columns.pop("REASON")
        columns |= {"NUMA": numa, "CHECKED": checked, "REASON": reason}
    else:
        columns = {heading: cells for heading, cells in columns.items() if any(cells)}
    printer.print_table(list(columns), list(zip(*columns.values(), strict=True)))


def _last_check(checked: StatusJson | None) -> str:
    """Return the result of the last checks of a device that is healthy all the same."""
    if checked is None:
        return ""
    if checked["unknown"]:
        return f"not checked: {checked['unknown']}"
    return f"last check failed: {checked['failure']}" if checked["failure"] else ""
