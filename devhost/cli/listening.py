"""``--listen``: over HTTP or not at all."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devhost.observe import logs
from devhost.observe.address import Address
from devhost.observe.recorder import Recorder

if TYPE_CHECKING:
    from devhost.host.endpoint import Endpoint
    from devhost.host.supervisor import Host

Command = TypeVar("Command", bound=Callable[..., Any])


class Silent:
    """In the place of an `Endpoint` where nothing is served."""

    recorder = Recorder()

    async def serve_while(self, _host: "Host", work: Coroutine[Any, Any, None]) -> None:
        """Do only that."""
        await work


def address(_context: click.Context, _option: click.Parameter, text: str) -> Address | None:
    """Read an address; an empty one is none.

    Raises:
        BadParameter: It cannot be read.
    """
    try:
        return Address.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def listen_options(command: Command) -> Command:
    """Add ``--listen`` and ``--metrics-devices``."""
    listen = click.option(
        "--listen",
        default="",
        envvar="DEVHOST_LISTEN",
        show_envvar=True,
        metavar="ADDRESS",
        callback=address,
        help="Serve metrics, probes and a status page over HTTP: HOST:PORT, or :PORT on all "
        "addresses; not at all unless told.",
    )
    devices = click.option(
        "--metrics-devices",
        is_flag=True,
        envvar="DEVHOST_METRICS_DEVICES",
        show_envvar=True,
        help="Let the metrics tell which pod holds which device: a series for each.",
    )
    return listen(devices(command))


def endpoint(listen: Address | None, *, devices: bool) -> "Endpoint | Silent":
    """Listen, if that is wanted; log why and exit 1 where it cannot be."""
    if listen is None:
        return Silent()
    from devhost.host.endpoint import Endpoint  # brings prometheus-client

    try:
        return Endpoint(listen, devices=devices)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # Python repeats the address
        logs.fail(f"--listen: {listen}: {reason}")
