"""``--listen``, ``--status-listen`` and ``--metrics-devices``: the HTTP servers."""

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devhost.observe import logs
from devhost.observe.address import Address

if TYPE_CHECKING:
    from devhost.host.endpoint import Endpoint
    from devhost.host.supervisor import Host

_Command = TypeVar("_Command", bound=Callable[..., Any])


class NoEndpoint:
    """Replaces an `Endpoint` if HTTP is off."""

    urls: Mapping[str, str] = MappingProxyType({})

    async def serve_during(self, _host: "Host", work: Coroutine[Any, Any, None]) -> None:
        """Run without serving."""
        await work


def address(_context: click.Context, _option: click.Parameter, text: str) -> Address | None:
    """Parse an address; empty means none.

    Raises:
        BadParameter: The address is invalid.
    """
    try:
        return Address.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def listen_options(command: _Command) -> _Command:
    """Add ``--listen``, ``--status-listen`` and ``--metrics-devices``."""
    listen = click.option(
        "--listen",
        default="",
        envvar="DEVHOST_LISTEN",
        show_envvar=True,
        metavar="ADDRESS",
        callback=address,
        help="Serve metrics and probes over HTTP on HOST:PORT, or :PORT for all addresses. Off by "
        "default.",
    )
    status_listen = click.option(
        "--status-listen",
        default="",
        envvar="DEVHOST_STATUS_LISTEN",
        show_envvar=True,
        metavar="ADDRESS",
        callback=address,
        help="Serve the status page, and the data for `devhost status`, over HTTP. Who can connect "
        "can read it: prefer 127.0.0.1:PORT. Off by default.",
    )
    devices = click.option(
        "--metrics-devices",
        is_flag=True,
        envvar="DEVHOST_METRICS_DEVICES",
        show_envvar=True,
        help="Add a metric series for each device that a pod has, with the pod's name.",
    )
    return listen(status_listen(devices(command)))


def endpoint(
    listen: Address | None, status_listen: Address | None, *, devices: bool
) -> "Endpoint | NoEndpoint":
    """Listen if an address is given; on failure log the error and exit with status 1."""
    if listen is None and status_listen is None:
        return NoEndpoint()
    from devhost.host.endpoint import Endpoint, ListenError  # heavy; only needed here

    try:
        return Endpoint(listen, status_listen, devices=devices)
    except ListenError as error:
        logs.fail(str(error))
