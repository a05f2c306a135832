"""Options that several commands share, each with its environment variable."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from devhost.cli import output
from devhost.cli.listening import listen_options

_PATIENCE_S: Final = 10.0  # for a filesystem to answer

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


class _Root(click.Path):
    """A directory that exists; a filesystem that hangs is an error."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        return answer("--root", lambda: super(_Root, self).convert(value, param, ctx))


config_argument = click.argument(
    "config", envvar="DEVHOST_CONFIG", default="/etc/devhost/config.yaml", metavar="[CONFIG]"
)
root_option = click.option(
    "--root",
    default="/",
    envvar="DEVHOST_ROOT",
    show_envvar=True,
    show_default=True,
    type=_Root(exists=True, file_okay=False),
    help="Where the host's files are seen; paths in the configuration stay the host's.",
)
node_name_option = click.option(
    "--node-name",
    default=socket.gethostname,
    envvar="DEVHOST_NODE_NAME",
    show_envvar=True,
    help="The node's name; the host name unless told.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the result is printed; json is a contract.",
)


def _absolute(
    _context: click.Context, _option: click.Parameter, globs: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse what matches no absolute path."""
    for glob in globs:
        if not glob.startswith(("/", "*", "?", "[")):
            raise click.BadParameter(f"{glob!r} matches no path: begin it with '/'")
    return globs


def _file_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Refuse what is no file's name in a directory."""
    if not name or "/" in name or name in (".", ".."):
        raise click.BadParameter(f"{name!r} is not the name of a file in --state-dir")
    return name


def trust_options(command: Command) -> Command:
    """Add ``--allow-path`` and ``--allow-exec``."""
    paths = click.option(
        "--allow-path",
        "allow_paths",
        multiple=True,
        envvar="DEVHOST_ALLOW_PATH",
        show_envvar=True,
        metavar="GLOB",
        callback=_absolute,
        help="Host paths that answers may name, beside character devices below /dev. Repeat it; "
        "the variable is split at blanks ('?' in a path stands for one).",
    )
    execs = click.option(
        "--allow-exec",
        is_flag=True,
        envvar="DEVHOST_ALLOW_EXEC",
        show_envvar=True,
        help="Let the configuration run commands.",
    )
    return paths(execs(command))


def _holder_options(command: Command) -> Command:
    """Add how it is known which pods hold devices; see `kubelet_options` on paths."""
    for option in reversed(
        (
            click.option(
                "--pod-resources",
                envvar="DEVHOST_POD_RESOURCES",
                show_envvar=True,
                type=Path,
                metavar="SOCKET",
                help="The kubelet's pod-resources socket, which tells the pods that hold devices: "
                "/var/lib/kubelet/pod-resources/kubelet.sock.",
            ),
            click.option(
                "--assume-free",
                is_flag=True,
                envvar="DEVHOST_ASSUME_FREE",
                show_envvar=True,
                help="Without --pod-resources: take it that no pod holds a device under a former "
                "resource name or ID, once kubelet's list has that no more. For a drained node.",
            ),
        )
    ):
        command = option(command)
    return command


def kubelet_options(command: Command) -> Command:
    """Add where the kubelet, the runtimes and this process keep what is theirs.

    Not as `click.Path`, which looks at the path: a filesystem that hangs would hang the start.
    """
    for option in reversed(
        (
            click.option(
                "--plugin-dir",
                default="/var/lib/kubelet/device-plugins",
                envvar="DEVHOST_PLUGIN_DIR",
                show_envvar=True,
                show_default=True,
                type=Path,
                metavar="DIRECTORY",
                help="The kubelet's plugin directory.",
            ),
            click.option(
                "--state-dir",
                envvar="DEVHOST_STATE_DIR",
                show_envvar=True,
                type=Path,
                metavar="DIRECTORY",
                help="What outlives the process: under which names devices were offered, which "
                "pod a device was prepared for (both are of the node, whatever configuration it "
                "has), and the last good configuration, for a start with one that is not valid.",
            ),
            click.option(
                "--last-good",
                envvar="DEVHOST_LAST_GOOD",
                show_envvar=True,
                metavar="NAME",
                default="last-good.yaml",
                show_default=True,
                callback=_file_name,
                help="The file in --state-dir with the last good configuration. One for each "
                "configuration, where several instances share the directory.",
            ),
            _holder_options,
            click.option(
                "--cdi-dir",
                default="/var/run/cdi",
                envvar="DEVHOST_CDI_DIR",
                show_envvar=True,
                show_default=True,
                type=Path,
                metavar="DIRECTORY",
                help="Where container runtimes look for CDI specs.",
            ),
        )
    ):
        command = option(command)
    return command


def host_options(command: Command) -> Command:
    """Add what ``run`` and ``try`` share."""
    for option in reversed(
        (
            root_option,
            node_name_option,
            trust_options,
            listen_options,
            click.option(
                "--log-format",
                type=click.Choice(["json", "text"]),
                envvar="DEVHOST_LOG_FORMAT",
                show_envvar=True,
                help="text for people, json for machines; by what stderr is unless told.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(["debug", "info", "warning", "error"]),
                default="info",
                envvar="DEVHOST_LOG_LEVEL",
                show_envvar=True,
                show_default=True,
            ),
        )
    ):
        command = option(command)
    return command


def real_root(root: str) -> str:
    """Return a root as an absolute path without links."""
    return answer("--root", lambda: os.path.realpath(root))


def answer(option: str, look: Callable[[], T]) -> T:
    """Return what a look at an option's path finds; end the process if there is no answer."""
    from devhost.threads import in_time

    try:
        return in_time(look, _PATIENCE_S)
    except TimeoutError:
        output.fail(f"{option}: its filesystem did not answer in {_PATIENCE_S:g} s")
