"""``devhost status``."""

import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.cli.listen_options import address
from devhost.model.names import without_share
from devhost.observe.address import Address

_DEFAULT: Final = "127.0.0.1:9111"
_PATIENCE_S: Final = 10.0
_NOT_RUNNING: Final = 3

_Json = dict[str, Any]


@click.command(
    "status",
    epilog="Exit status: 0 no problems, 1 problems, 2 usage error, 3 no devhost is running.",
)
@click.option(
    "--status-listen",
    default=_DEFAULT,
    envvar="DEVHOST_STATUS_LISTEN",
    show_envvar=True,
    show_default=True,
    metavar="ADDRESS",
    callback=lambda context, option, text: address(context, option, text or _DEFAULT),
    help="Address of the status of the running devhost.",
)
@options.output_option
def command(status_listen: Address, output: str) -> None:
    """Show the state of a running devhost: resources, devices, and the pods that have them.

    devhost must run with --status-listen.
    """
    shown = _request(status_listen)
    if output == "json":
        printer.print_json(shown)
    else:
        _print(shown)
    sys.exit(1 if shown["troubles"] else 0)


def _request(address: Address) -> _Json:
    """Return the status, or exit."""
    near = address.near
    connection = http.client.HTTPConnection(near.host, near.port, timeout=_PATIENCE_S)
    try:
        # Whatever name leads there: it is not a browser that asks.
        connection.request("GET", "/status", headers={"Host": "localhost"})
        answer = connection.getresponse()
        shown: _Json = json.loads(answer.read())
        known = answer.status == http.HTTPStatus.OK and "resources" in shown
    except OSError as error:
        _not_running(near, error.strerror or str(error))
    except (http.client.HTTPException, ValueError, TypeError):
        known = False
    finally:
        connection.close()
    if not known:
        _not_running(near, "the response is not from devhost")
    return shown


def _not_running(address: Address, reason: str) -> NoReturn:
    text = f"cannot reach devhost at {address}: {reason} (is it running with --status-listen?)"
    printer.note(f"devhost: {text}")
    sys.exit(_NOT_RUNNING)


# ── text output ──


def _print(shown: _Json) -> None:
    ready = "ready" if shown["ready"] else "not ready"
    printer.echo(
        f"devhost {shown['version']} on {shown['nodeName']}, since {shown['startedAt']}: {ready}"
    )
    if config := shown["config"]:
        printer.echo(
            f"configuration {config['file']}, applied {config['appliedAt']} "
            f"({config['reloads']} reloaded, {config['failures']} rejected)"
        )
        for one in config["problems"]:
            where = f"{one['file']}:{one['line']}:{one['column']}: {one['severity']}: "
            place = f"{one['path']}: " if one["path"] else ""
            printer.echo(f"  {where}{place}{one['message']}")
    if (holders := shown["kubelet"]["podResources"]) != "known":
        printer.echo(f"pod-resources unavailable: {holders}")
    for resource in shown["resources"]:
        printer.echo()
        _print_resource(resource)
    if shown["troubles"]:
        printer.echo()
        printer.echo("problems:")
        for trouble in shown["troubles"]:
            printer.echo(f"  {trouble}")


def _print_resource(resource: _Json) -> None:
    counts = f"{resource['allocatable']} of {resource['capacity']} allocatable"
    if resource["missing"]:
        counts += f", {resource['missing']} missing"
    printer.echo(f"{resource['name']}: {resource['state']} since {resource['since']}, {counts}")
    for heading in ("reason", "error"):
        if resource[heading]:
            printer.echo(f"  {heading}: {resource[heading]}")
    for warning in resource["warnings"]:
        printer.echo(f"  warning: {warning}")
    if resource["devices"]:
        _print_devices(resource["devices"], resource["holders"])
    for skipped in resource["skipped"]:
        printer.echo(f"  skipped {skipped['candidate']}: {skipped['reason']}")


def _print_devices(devices: Sequence[_Json], holders: Mapping[str, Sequence[str]]) -> None:
    columns = {
        "DEVICE": [device["id"] for device in devices],
        "HEALTH": [device["health"] for device in devices],
        "CHECKED": [(device.get("checked") or {}).get("at", "") for device in devices],
        "HELD BY": [", ".join(_pods(device["id"], holders)) for device in devices],
        "PATHS": [", ".join(device["paths"]) or "-" for device in devices],
        "REASON": [device["reason"] or _last_check(device.get("checked")) for device in devices],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    rows = zip(*kept.values(), strict=True)
    printer.print_table(list(kept), list(rows))


def _last_check(checked: _Json | None) -> str:
    """Return the result of the last checks of a device that is healthy all the same."""
    if checked is None:
        return ""
    if checked["unknown"]:
        return f"not checked: {checked['unknown']}"
    return f"last check failed: {checked['failure']}" if checked["failure"] else ""


def _pods(device_id: str, holders: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the pods that have a device or a share of it."""
    return sorted(
        {
            pod
            for advertised, pods in holders.items()
            if device_id in (advertised, without_share(advertised))
            for pod in pods
        }
    )
