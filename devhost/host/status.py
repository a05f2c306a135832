"""The status of a running host, for people and probes. Reads, and changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from devhost import __version__
from devhost.discovery.explanation import mistakes
from devhost.host.config.source import ConfigStatus
from devhost.host.ownership.owners import WITHHELD
from devhost.host.resource.runner import POLL_S, Runner
from devhost.host.shared import Shared
from devhost.host.supervisor import Host
from devhost.model.device import HostDevice, Snapshot
from devhost.model.state import State
from devhost.observe import logs
from devhost.report import ResourceReport

KNOWN: Final = "known"

Json = dict[str, Any]


def status(host: Host) -> Json:
    """Return the shape of ``/status`` and ``devhost status -o json``, which is a contract."""
    holders = host.shared.holders
    shown: Json = {
        "version": __version__,
        "nodeName": host.settings.node_name,
        "startedAt": _time(host.created),
        "ready": readiness(host)["ready"],
        "troubles": [],
        "config": _config(host.source.status) if host.source else None,
        "kubelet": {
            "podResources": holders.unknown or KNOWN,
            "restarts": host.shared.directory.restarts,
        },
        "log": {
            "dropped": logs.dropped(),
            "dropping": logs.dropping(),
            "suppressed": logs.suppressed(),
        },
        "resources": [_resource(runner, host.shared) for runner in host.runners],
    }
    if holders.asked and holders.unknown:
        shown["troubles"].append(f"pod-resources unavailable: {holders.unknown}")
    if why := host.shared.owners.records.problem:
        shown["troubles"].append(f"cannot save allocated devices: {why}")
    shown["troubles"] += _troubles(shown)
    return shown


def readiness(host: Host) -> Json:
    """Return the shape of ``/readyz``: ready once each resource was registered or awaits something.

    A kubelet that restarts, or has not started yet, does not make a host unready: a rollout would
    wait for something that it cannot influence.
    """
    resources = {runner.name: _readiness(runner) for runner in host.runners}
    ready = host.configured and all(one["ready"] for one in resources.values())
    return {"ready": ready, "configured": host.configured, "resources": resources}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _config(config: ConfigStatus) -> Json:
    return {
        "file": config.file,
        "appliedAt": _time(config.applied),
        "hash": config.hash,
        "reloads": config.reloads,
        "failures": config.failures,
        "problems": [problem.as_json() for problem in config.problems],
        "unreadable": config.unreadable,
        "unsaved": config.unsaved,
    }


def _resource(runner: Runner, shared: Shared) -> Json:
    state, holders = runner.status, shared.holders.of(runner.name)
    count = shared.counts.of(runner.name)
    return {
        **reported(runner, _checked_last(runner)).as_json(),
        "state": state.state.value,
        "reason": state.reason,
        "since": _time(state.since),
        "registered": runner.registered,
        "streams": runner.device_list.stream_count,
        "expected": count.expected,
        "missing": count.missing,
        "holders": {advertised: sorted(pods) for advertised, pods in sorted(holders.items())},
    }


def reported(runner: Runner, snapshot: Snapshot) -> ResourceReport:
    """Return the report of a resource, by what kubelet's list has."""
    device_list = runner.device_list
    found_amiss = mistakes(runner.resource, snapshot)
    warnings = (*snapshot.notes, *snapshot.why_none(), *found_amiss)
    if device_list.omitted:
        warnings = (*warnings, f"{device_list.omitted} IDs left out: the kubelet takes 4 MiB")
    if device_list.paused:
        warnings = (*warnings, "its devices change too often: lists are sent with a delay")
    warnings += tuple(
        f"{root.root.base or '/'}: {root.degraded}: read every {POLL_S:.0f} s"
        for root in runner.roots
        if root.degraded
    )
    healthy = sum(entry.healthy for entry in device_list.entries.values())
    listed = len(device_list.entries), healthy
    return ResourceReport(runner.resource, snapshot, warnings, listed=listed)


def _checked_last(runner: Runner) -> Snapshot:
    """Return the snapshot with the last round of checks: most rounds publish nothing."""
    snapshot = runner.snapshot
    fresh = runner.health.with_health(snapshot).devices

    def judged(device: HostDevice) -> HostDevice:
        return replace(device, checked=fresh[device.id].checked)

    devices = {device_id: judged(device) for device_id, device in snapshot.devices.items()}
    return replace(snapshot, devices=devices)


def _readiness(runner: Runner) -> Json:
    state = runner.status
    waits = state.state is State.WAITING
    return {
        "ready": runner.resource_status.registered_once or runner.draining or waits,
        "state": state.state.value,
        "reason": state.reason,
    }


# ── problems, as sentences ──


def _troubles(shown: Json) -> Iterator[str]:
    config = shown["config"]
    if config is not None:
        if config["problems"]:
            what = config["unreadable"] or "invalid"
            yield f"configuration file {what}; still serving the version of {config['appliedAt']}"
        if config["unsaved"]:
            yield f"cannot save the last good configuration: {config['unsaved']}"
    if shown["log"]["dropping"]:
        yield "the log is not read fast enough: lines are being dropped"
    for resource in shown["resources"]:
        yield from (f"{resource['name']}: {trouble}" for trouble in _resource_troubles(resource))


def _resource_troubles(resource: Json) -> Iterator[str]:
    if resource["state"] not in (State.REGISTERED, State.DRAINING):
        reason = f": {resource['reason']}" if resource["reason"] else ""
        yield f"{resource['state']}{reason}"
    if resource["error"]:
        yield f"a source failed: {resource['error']}"
    devices = resource["devices"]
    bad = sum(device["health"] != "Healthy" for device in devices)
    if bad and resource["state"] != State.DRAINING:
        yield f"{bad} of {len(devices)} devices unhealthy"
    if resource["missing"]:
        there = resource["expected"] - resource["missing"]
        yield (
            f"{resource['missing']} of {resource['expected']} devices missing "
            f"(set minDevices: {there} to accept)"
        )
    withheld = [one for one in devices if (one["reason"] or "").startswith(WITHHELD)]
    if withheld:
        first, *more = withheld
        others = f" (and {len(more)} more)" if more else ""
        yield f"{first['id']} is {first['reason']}{others}"
