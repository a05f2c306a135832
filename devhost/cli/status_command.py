"""``devhost status``."""

import sys
from typing import Final

import click

from devhost.cli import options, status_output
from devhost.cli import output as printer
from devhost.cli.listen_options import address
from devhost.cli.status_client import NotRunningError, of_resources, request
from devhost.observe.address import Address

_DEFAULT: Final = "127.0.0.1:9111"
_NOT_RUNNING: Final = 3
_LISTS: Final = "; `devhost status` lists what there is"


@click.command(
    "status",
    epilog="Exit status: 0 no problems, 1 problems, 2 usage error, 3 no devhost is running.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
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
@options.table_output_option
def command(names: tuple[str, ...], status_listen: Address, output: str) -> None:
    """Show the state of a running devhost: resources, devices, and the pods that have them.

    With NAME: only these resources. devhost must run with --status-listen.
    """
    for name in names:
        if ":" in name:
            raise click.UsageError(f"{name} is not a resource; write --status-listen {name}")

    try:
        status = request(status_listen)
        shown = of_resources(status, names)
        known = [one["name"] for one in status["resources"]]
        if missing := {*names}.difference(known):
            hint = printer.resource_hint(min(missing), known)
            printer.fail(f"no resource {min(missing)}{hint or _LISTS}")
    except NotRunningError as error:
        printer.note(f"devhost: {error}")
        sys.exit(_NOT_RUNNING)
    if output in ("json", "yaml"):
        printer.print_value(shown, output)
    else:
        status_output.print_status(shown, wide=output == "wide")
    sys.exit(1 if shown["troubles"] else 0)
