"""``devhost.serve``: a process that serves plugins, with the options of ``devhost run``."""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Unpack, overload

import click

from devhost.cli import options as cli
from devhost.cli import run_command, try_command
from devhost.library.plugin import Device, DevicePlugin, Options
from devhost.library.served import ServedPlugin, served

_HELP: Final = """Serve the device plugins of this program to kubelet until SIGTERM.

With CONFIG, also the resources of that file, like `devhost run`. If both have a resource of the
same name, the program's is served.
"""


@overload
def serve(
    plugin: str,
    get_devices: Callable[[], Iterable[Device | str]],
    /,
    *,
    argv: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> NoReturn: ...


@overload
def serve(
    plugin: DevicePlugin, /, *plugins: DevicePlugin, argv: Sequence[str] | None = None
) -> NoReturn: ...


def serve(
    plugin: DevicePlugin | str, /, *rest: Any, argv: Sequence[str] | None = None, **options: Any
) -> NoReturn:
    """Serve plugins to kubelet until SIGTERM or SIGINT, then exit.

    Either ``serve("example.com/port", get_devices, **options)``, with a function that returns
    the devices and the options of `DevicePlugin`, or ``serve(MyPlugin(), *more_plugins)``.

    Must be called in the main thread. The exit status is 0 after a signal, 1 after a failure,
    2 after a usage error.

    ``argv`` is the command line without the program name, by default that of `sys.argv`. Raises
    `TypeError` for an argument of the wrong type or an unknown option, `ValueError` for an invalid
    value or a name that is used twice.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("serve() must be called in the main thread")
    if isinstance(plugin, str):
        if len(rest) != 1 or not callable(rest[0]):
            raise TypeError("serve(name, get_devices): get_devices must be a function")
        plugins = [DevicePlugin(plugin, **options)]
        plugins[0].devices = rest[0]  # type: ignore[method-assign]
    elif options:
        names = ", ".join(options)
        raise TypeError(f"serve(plugin): unexpected {names}; pass options to the plugin")
    else:
        plugins = [plugin, *rest]
    arguments = sys.argv[1:] if argv is None else list(argv)
    _command(served(plugins)).main(arguments, prog_name=Path(sys.argv[0]).name)
    raise AssertionError("the command exits")


def _command(plugins: Sequence[ServedPlugin]) -> click.Command:
    @click.command(cls=cli.ServeCommand, help=_HELP)
    @click.argument("config", required=False, envvar="DEVHOST_CONFIG", metavar="[CONFIG]")
    @click.option(
        "--try", "tried", is_flag=True, help="Serve an embedded stand-in kubelet, without a node."
    )
    @click.option("--once", is_flag=True, help="With --try: print the resources as JSON and exit.")
    @cli.kubelet_options
    @cli.host_options
    def command(config: str | None, tried: bool, once: bool, **flags: Any) -> None:
        if tried:  # the stand-in kubelet has a plugin directory, sockets and state of its own
            try_command.run(config, plugins, once=once, **flags)
        elif once:
            raise click.UsageError("--once is for --try")
        else:
            run_command.run(config, plugins, **flags)

    return command
