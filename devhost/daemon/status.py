"""The status of a running host, for people and probes. Reads, and changes nothing."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from devhost import __version__
from devhost.custody.holders import Holders
from devhost.custody.record_store import file_of
from devhost.devices.dry_run import ResourceReport, mistakes
from devhost.model.device import Cause, Snapshot
from devhost.model.resource_state import State
from devhost.node.config_file import ConfigFile
from devhost.node.node import Host
from devhost.node.reconciler import POLL_S
from devhost.node.resource import ServedResource, is_registered
from devhost.observe import logs

Json = dict[str, Any]


def status(host: Host) -> Json:
    """Return the shape of ``/status`` and ``devhost status -o json``, which is a contract."""
    holders, (dropped, is_dropping) = host.parts.holders, logs.dropped_lines()
    shown: Json = {
        "version": __version__,
        "nodeName": host.settings.node_name,
        "startedAt": _time(host.created),
        "ready": readiness(host)["ready"],
        "troubles": [],
        "config": _config(host.source) if host.source else None,
        "kubelet": {
            "podResources": holders.unavailable_reason or "known",
            "restarts": host.parts.backend.restarts,
        },
        "log": {"dropped": dropped, "dropping": is_dropping},
        "resources": [_resource(served, holders) for served in host.resources],
    }
    shown["troubles"] += _troubles(host, shown)
    return shown


def readiness(host: Host) -> Json:
    """Return the shape of ``/readyz``: ready once each resource was registered or awaits something.

    A host that starts from a last good copy is not ready: it may serve resources that were removed.
    A kubelet that restarts, or has not started yet, does not make a host unready: a rollout would
    wait for something that it cannot influence.
    """
    resources = {served.name: _readiness(served) for served in host.resources}
    ready = host.configured and all(resource["ready"] for resource in resources.values())
    return {"ready": ready, "configured": host.configured, "resources": resources}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _config(file: ConfigFile) -> Json:
    config = file.status
    return {
        "file": config.file,
        "appliedAt": _time(config.applied),
        "hash": config.hash,
        "reloads": config.reloads,
        "failures": config.failures,
        "problems": [problem.as_json() for problem in config.problems],
        "unreadable": config.unreadable,
        "unsaved": file.last_good.problem if file.last_good else None,
    }


def _resource(served: ServedResource, holders: Holders) -> Json:
    state, pods = served.status, holders.pods_by_id(served.name)
    count, published = served.devices.count, served.publication.status
    snapshot = served.devices.offered
    if (health := served.devices.health) is not None:
        snapshot = health.judge(snapshot)  # most rounds of checks publish nothing
    return {
        **resource_report(served, snapshot).as_json(),
        "state": state.state.value,
        "reason": state.reason,
        "since": _time(state.since),
        "registered": is_registered(served),
        "streams": published.streams,
        "expected": count.expected,
        "missing": count.missing,
        "unhealthy": sum(not device.healthy for device in served.devices.offered.present_devices),
        "holders": {offered.id: sorted(pods[offered]) for offered in sorted(pods)},
        **({"dra": asdict(published.dra)} if published.dra is not None else {}),
    }


def resource_report(served: ServedResource, snapshot: Snapshot) -> ResourceReport:
    """Return the report of a resource, by what kubelet's list has."""
    published = served.publication.status
    warnings = (
        *snapshot.notes,
        *snapshot.explain_empty(),
        *mistakes(served.scanner.resource, snapshot),
        *published.warnings,
        *(
            f"{reader.place}: {reason}: read every {POLL_S:.0f} s"
            for reader in served.scan.readers
            if (reason := reader.polling_reason)
        ),
    )
    listed = published.listed, published.healthy
    return ResourceReport(served.scanner.resource, snapshot, warnings, listed=listed)


def _readiness(served: ServedResource) -> Json:
    state = served.status
    waiting = state.state is State.WAITING
    return {
        "ready": served.resource_status.registered_once or served.draining or waiting,
        "state": state.state.value,
        "reason": state.reason,
    }


# ── problems, as sentences ──


def _troubles(host: Host, shown: Json) -> Iterator[str]:
    config, holders, records = shown["config"], host.parts.holders, host.parts.records
    if holders.unavailable_reason:
        yield f"pod-resources unavailable: {holders.unavailable_reason}"
    if records.problem:
        yield f"cannot save allocated devices: {records.problem}"
    if records.damage is not None:
        yield records.damage
    yield from _dra_troubles(host)
    if config is not None:
        if config["problems"]:
            problem = config["unreadable"] or "invalid"
            yield f"configuration file {problem}; still serving the last good one"
        if config["unsaved"]:
            yield f"cannot save the last good configuration: {config['unsaved']}"
    if shown["log"]["dropping"]:
        yield "the log is not read fast enough: lines are being dropped"
    for served, resource in zip(host.resources, shown["resources"], strict=True):
        resource["troubles"] = [*_resource_troubles(served, resource)]
        yield from (f"{served.name}: {trouble}" for trouble in resource["troubles"])


def _dra_troubles(host: Host) -> Iterator[str]:
    records = host.parts.records.table.claims.values()
    for record in records if not host.settings.policy.dra else ():
        path = Path(host.settings.state_dir or "", file_of(record.key))
        end = f"does not end without --dra; if no pod has it, this ends it: rm {path}"
        yield f"{', '.join(sorted(record.resources))}: claim {record.shown} has devices, and {end}"


def _resource_troubles(served: ServedResource, resource: Json) -> Iterator[str]:
    if resource["state"] not in (State.REGISTERED, State.DRAINING):
        reason = f": {resource['reason']}" if resource["reason"] else ""
        yield f"{resource['state']}{reason}"
    if resource["error"]:
        yield f"a source failed: {resource['error']}"
    devices = served.devices.offered.devices.values()
    if unhealthy := resource["unhealthy"]:
        causes = (Cause.WITHHELD, Cause.REFUSED)
        listed = [device for device in devices if device.verdict and device.verdict.cause in causes]
        example = f"; {listed[0].id}: {listed[0].reason}" if listed else ""
        rest = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
        yield f"{unhealthy} of {len(devices)} devices unhealthy{example}{rest}"
    if resource["missing"]:
        present = resource["expected"] - resource["missing"]
        yield (
            f"{resource['missing']} of {resource['expected']} devices missing "
            f"(set minDevices: {present} to accept)"
        )
