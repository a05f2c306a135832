"""``devhost.serve``: the process around plugins, with the options of ``devhost run``."""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Unpack, overload

import click

from devhost.cli import options as cli
from devhost.cli import run_command, try_command
from devhost.library.device import Device
from devhost.library.options import Options
from devhost.library.plugin import INTERVAL_S, DevicePlugin, FunctionPlugin
from devhost.library.served import ServedPlugin, served

_REPLACED: Final = (
    "plugin_dir",
    "state_dir",
    "last_good",
    "pod_resources",
    "assume_free",
    "cdi_dir",
)
_HELP: Final = """Serve the device plugins of this program to the kubelet, until SIGTERM.

With CONFIG, also the resources of that file, as `devhost run` does: it is read again when it
changes. Where both declare a resource, the program's counts.
"""


@overload
def serve(
    plugin: str,
    get_devices: Callable[[], Iterable[Device | str]],
    /,
    *,
    argv: Sequence[str] | None = None,
    interval: float = INTERVAL_S,
    **options: Unpack[Options],
) -> NoReturn: ...


@overload
def serve(
    plugin: DevicePlugin, /, *more: DevicePlugin, argv: Sequence[str] | None = None
) -> NoReturn: ...


def serve(
    plugin: DevicePlugin | str, /, *more: Any, argv: Sequence[str] | None = None, **options: Any
) -> NoReturn:
    """Serve plugins to the kubelet until SIGTERM or SIGINT, then end the process.

    Either ``serve("example.com/port", get_devices, **options)``, with a function that returns
    the devices and options as of `DevicePlugin`, or ``serve(MyPlugin(), *more_plugins)``.

    Must be called in the main thread. The exit status is 0 after a signal, 1 after a failure,
    2 for a wrong command line.

    Args:
        plugin: A resource's name, or a plugin.
        more: The function, or more plugins.
        argv: The command line, without the program; `sys.argv` unless given.
        options: Of the resource, where the first is its name.

    Raises:
        TypeError: An argument is of the wrong type, or there is no such option.
        ValueError: A name or an option's value is wrong, or stands twice.
        RuntimeError: This is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("serve() takes the process over: call it in the main thread")
    if isinstance(plugin, str):
        if len(more) != 1 or not callable(more[0]):
            raise TypeError("serve(name, get_devices): give it a function after the name")
        plugins = served([FunctionPlugin(plugin, more[0], **options)])
    elif options:
        raise TypeError(f"serve(plugin): {', '.join(options)}: options are the plugin's own")
    else:
        plugins = served([plugin, *more])
    program = Path(sys.argv[0]).name
    arguments = sys.argv[1:] if argv is None else list(argv)
    _command(plugins).main(arguments, prog_name=program)
    raise AssertionError("the command ends the process")


def _command(plugins: Sequence[ServedPlugin]) -> click.Command:
    @click.command(help=_HELP, epilog="Exit status: 0 on SIGTERM, 1 on failure, 2 usage.")
    @click.argument("config", required=False, envvar="DEVHOST_CONFIG", metavar="[CONFIG]")
    @click.option(
        "--try", "tried", is_flag=True, help="Serve a stand-in kubelet: a dry run, without a node."
    )
    @cli.kubelet_options
    @cli.host_options
    def command(config: str | None, tried: bool, **chosen: Any) -> None:
        if tried:  # it brings a plugin directory and so on of its own
            kept = {key: value for key, value in chosen.items() if key not in _REPLACED}
            try_command.run(config, once=False, plugins=plugins, **kept)
        else:
            run_command.run(config, plugins=plugins, **chosen)

    return command
