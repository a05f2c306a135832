"""Statuses to look at on the page: an ordinary one, a large one, and one with much that is wrong."""

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_ORDINARY = Path(__file__).with_name("golden") / "status.json"
_SINCE = "2026-11-21T11:25:57+00:00"


def example() -> Json:
    """Return the ordinary one, with names that are meant to harm."""
    status: Json = json.loads(_ORDINARY.read_text())
    device = status["resources"][0]["devices"][0]
    status["resources"][0]["devices"].append(
        device | {"id": "<img src=x onerror=alert(1)>", "reason": "</script><b>bold</b>"}
    )
    return status


def many() -> Json:
    """Return 30 resources and 500 devices, of which few are unwell."""
    resources = [resource(number, 30 if number % 3 == 0 else 8) for number in range(29)]
    resources.append(resource(29, 500 - sum(len(entry["devices"]) for entry in resources)))
    _break(resources[3], 25, "check failed: readable: Input/output error")
    _break(resources[17], 2, "check failed: writable: No such device")
    del resources[17]["devices"][7]
    resources[17] |= {"missing": 1, "expected": 9}
    return whole(resources)


def wrong() -> Json:
    backing, failing, waiting, withheld, draining = (resource(number, 4) for number in range(5))
    backing |= {"state": "BackingOff", "reason": "cannot register: " + "connection refused; " * 8}
    failing |= {"devices": [], "capacity": 0, "allocatable": 0, "missing": 4, "expected": 4}
    failing |= {"error": "/dev/serial/by-id: Permission denied", "warnings": ["w" * 300]}
    failing["skipped"] = [{"candidate": f"/dev/s{n}", "reason": "dangling link"} for n in range(30)]
    waiting |= {"state": "Waiting", "reason": "no kubelet: kubelet.sock is not there"}
    for number in range(4):
        reason = "withheld: it was offered as example.com/old-name, which pod default/web-0 has"
        _break(withheld, number, reason)
    draining |= {"state": "Draining", "reason": "removed from the configuration"}
    draining["devices"][0]["id"] = "x" * 63
    status = whole([backing, failing, waiting, withheld, draining])
    where = {"severity": "error", "file": "/etc/devhost/config.yaml", "column": 7}
    text = "unknown key 'statics'; did you mean 'static'?"
    status["config"] |= {
        "failures": 3,
        "unsaved": "/var/lib/devhost: No space left on device",
        "problems": [
            where | {"line": line, "path": "resources[1].sources[0]", "message": text}
            for line in range(14)
        ],
    }
    status |= {"ready": False}
    status["kubelet"] = {"podResources": "connection refused", "restarts": 3}
    first = "configuration file invalid; still serving the last good one"
    status["troubles"] = [first, *status["troubles"]]
    return status


def whole(resources: list[Json]) -> Json:
    for entry in resources:
        troubles, reason = entry["troubles"], entry["reason"]
        if reason and entry["state"] != "Draining":
            troubles.append(f"{entry['state']}: {reason}")
        if bad := entry["unhealthy"]:
            troubles.append(f"{bad} of {len(entry['devices'])} devices unhealthy")
        if lost := entry["missing"]:
            troubles.append(f"{lost} of {entry['expected']} devices missing")
    troubles = [f"{entry['name']}: {text}" for entry in resources for text in entry["troubles"]]
    status = example() | {"resources": resources, "troubles": troubles}
    status["config"] |= {"problems": [], "failures": 0}
    return status


def resource(number: int, count: int) -> Json:
    kind = ("serial", "render", "sound", "scratch-disk", "token")[number % 5]
    name = f"example.com/{kind}-{number}"
    form = "usb-FTDI_FT232R_USB_UART_A50285B{:02}-if00-port0" if kind == "serial" else f"{kind}{{}}"
    ids = [form.format(index) for index in range(count)]
    devices: list[Json] = [
        {
            "id": device_id,
            "health": "Healthy",
            "reason": None,
            "numaNodes": [index % 2] if kind == "render" else [],
            "paths": [] if kind == "token" else [f"/dev/{kind}/by-id/{device_id}"],
        }
        for index, device_id in enumerate(ids)
    ]
    for device in devices if kind == "serial" else ():
        device["checked"] = {"at": _SINCE, "failure": None, "unknown": None}
    return {
        "name": name, "capacity": count, "allocatable": count, "error": None, "warnings": [],
        "devices": devices, "skipped": [], "state": "Registered", "reason": None, "since": _SINCE,
        "registered": True, "streams": 1, "expected": count, "missing": 0, "unhealthy": 0,
        "troubles": [],
        "holders": {device_id: [f"default/web-{n}"] for n, device_id in enumerate(ids[: count // 3])},
    }  # fmt: skip


def _break(resource: Json, index: int, reason: str) -> None:
    resource["devices"][index] |= {"health": "Unhealthy", "reason": reason}
    resource["allocatable"] -= 1
    resource["unhealthy"] += reason != "not found any more"
