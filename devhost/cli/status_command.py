"""``devhost status``."""

import contextlib
import http.client
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.errors import Problem
from devhost.observe.address import Address

_NOT_RUNNING: Final = 3
_TIMEOUT_S: Final = 10.0

StatusJson = dict[str, Any]


@click.command(
    "status",
    epilog="Exit status: 0 no problems, 1 problems, 2 usage error, 3 no devhost is running.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.address_option(
    "--status-listen", "Address of the status of the running devhost.", "127.0.0.1:9111"
)
@options.table_output_option
def command(names: tuple[str, ...], status_listen: Address, output: str) -> None:
    """Show the state of a running devhost: resources, devices, and the pods that have them.

    With NAME: only these resources. devhost must run with --status-listen.

    Example: `devhost status example.com/serial -o wide`
    """
    for name in names:
        if ":" in name:
            raise click.UsageError(f"{name} is not a resource; write --status-listen {name}")
    shown = _fetch(status_listen.local)
    printer.check_names(names, [resource["name"] for resource in shown["resources"]])
    if names:
        shown = _with_only(names, shown)
    if output in ("json", "yaml"):
        printer.print_value(shown, output)
    else:
        _print(shown, wide=output == "wide")
    sys.exit(1 if shown["troubles"] else 0)


def _fetch(address: Address) -> StatusJson:
    """Return the status of the devhost at an address; exit with status 3 if there is none."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    reason = "the response is not from devhost"
    try:
        # It refuses other hosts, since a browser may have been led there.
        connection.request("GET", "/status", headers={"Host": "localhost"})
        with contextlib.closing(connection), connection.getresponse() as answer:
            shown: StatusJson = json.load(answer)
        if answer.status == http.HTTPStatus.OK and "resources" in shown:
            return shown
    except OSError as error:
        reason = error.strerror or str(error)
    except (http.client.HTTPException, ValueError, TypeError):
        pass
    hint = "is it running with --status-listen?"
    printer.note(f"devhost: cannot reach devhost at {address}: {reason} ({hint})")
    sys.exit(_NOT_RUNNING)


def _with_only(names: Sequence[str], status: StatusJson) -> StatusJson:
    """Return a status without the other resources and their problems, which come last."""
    resources = [resource for resource in status["resources"] if resource["name"] in names]
    count = sum(len(resource["troubles"]) for resource in status["resources"])
    troubles = status["troubles"][: len(status["troubles"]) - count]
    for resource in resources:
        troubles += [f"{resource['name']}: {trouble}" for trouble in resource["troubles"]]
    return status | {"troubles": troubles, "resources": resources}


def _print(shown: StatusJson, *, wide: bool) -> None:
    """Print a status, with the problems at the end."""
    printer.echo(*_head(shown))
    if not shown["resources"]:
        printer.print_nothing(shown["nodeName"], listed=True)
    for resource in shown["resources"]:
        printer.echo("")
        printer.print_resource(resource, printer.pods_by_device(resource["holders"]), wide=wide)
    if shown["troubles"]:
        printer.echo("", "problems:", *(f"  {text}" for text in shown["troubles"]))


def _head(shown: StatusJson) -> Iterator[str]:
    ready = "ready" if shown["ready"] else "not ready"
    yield f"devhost {shown['version']} on {shown['nodeName']}, since {shown['startedAt']}: {ready}"
    if config := shown["config"]:
        counts = f"({config['reloads']} reloaded, {config['failures']} rejected)"
        yield f"configuration {config['file']}, applied {config['appliedAt']} {counts}"
        yield from (f"  {Problem(**problem)}" for problem in config["problems"])
    if (holders := shown["kubelet"]["podResources"]) != "known":
        yield f"pod-resources unavailable: {holders}"
