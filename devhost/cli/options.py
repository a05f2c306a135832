"""Options that several commands share, with their environment variables."""

import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from devhost.cli import completion, output
from devhost.cli.listen_options import listen_options

_Command = TypeVar("_Command", bound=Callable[..., Any])
T = TypeVar("T")


class _Root(click.Path):
    """An existing directory; a hung filesystem is an error."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        return within_time("--root", lambda: super(_Root, self).convert(value, param, ctx))


DEFAULT_CONFIG: Final = "/etc/devhost/config.yaml"
config_argument = click.argument(
    "config",
    envvar="DEVHOST_CONFIG",
    default=DEFAULT_CONFIG,
    metavar="[CONFIG]",
    shell_complete=completion.files,
)
root_option = click.option(
    "--root",
    default="/",
    envvar="DEVHOST_ROOT",
    show_envvar=True,
    show_default=True,
    type=_Root(exists=True, file_okay=False),
    help="Directory where the host's files are mounted. Paths in the configuration are the "
    "host's, without it.",
)
node_name_option = click.option(
    "--node-name",
    default=socket.gethostname,
    envvar="DEVHOST_NODE_NAME",
    show_envvar=True,
    help="Name of the node. Default: the host name.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format; the JSON format is stable.",
)
table_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Output format: wide has all columns. The shape of json and yaml is stable.",
)


def _file_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Refuse everything but a plain file name."""
    if not name or "/" in name or name in (".", ".."):
        raise click.BadParameter(f"{name!r} is not a plain file name")
    return name


class Command(click.Command):
    """A command that shows in a section of its own what flags allow a configuration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options with their help."""
        allowing: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                (allowing if str(option.name).startswith("allow_") else others).append(record)
        with formatter.section("Options"):
            formatter.write_dl(others)
        with formatter.section(_ALLOWED):
            formatter.write_dl(allowing)


_ALLOWED: Final = (
    "What the configuration may use (repeatable; or DEVHOST_ALLOW_PATH and so on, split at spaces)"
)
# By the end of a flag's name: the field of `Policy`, what a value is, the help.
_ALLOW: Final = {
    "path": (
        "allow_paths",
        "GLOB",
        "Mounts, and what not every user may read. No pod may be able to write there.",
    ),
    "device": (
        "allow_devices",
        "WHAT",
        "Nodes by class, USB vendor:product, or path. No pod may be able to write there.",
    ),
    "resource": ("allow_resources", "NAME", "Resources that other plugins serve, too."),
    "cdi": ("allow_cdi", "GLOB", "CDI devices, and variables that add devices."),
    "annotation": ("allow_annotations", "GLOB", "Annotation keys."),
    "exec": ("allow_exec", "", "Run commands, and change the modes of nodes."),
}


def _allowable(
    _context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse values that allow nothing."""
    if values:
        from devhost.allocation.policy import VALUE_PROBLEMS

        if check := VALUE_PROBLEMS.get(str(option.name)):
            for problem in filter(None, map(check, values)):
                raise click.BadParameter(problem)
    return values


def trust_options(command: _Command) -> _Command:
    """Add the options ``--allow-…``; the command gets them as ``policy``."""

    @functools.wraps(command)
    def with_policy(*arguments: Any, **chosen: Any) -> Any:
        from devhost.allocation.policy import Policy

        allowed = {key: chosen.pop(key) for key in [*chosen] if key.startswith("allow_")}
        return command(*arguments, policy=Policy(**allowed), **chosen)

    decorated: Any = with_policy
    for name, (field, value, text) in reversed(_ALLOW.items()):
        option = functools.partial(
            click.option,
            f"--allow-{name}",
            field,
            envvar=f"DEVHOST_ALLOW_{name.upper()}",
            help=text,
        )
        if value:
            decorated = option(multiple=True, metavar=value, callback=_allowable)(decorated)
        else:
            decorated = option(is_flag=True)(decorated)
    return cast("_Command", decorated)


as_if_allowed_option = click.option(
    "--as-if-allowed",
    is_flag=True,
    help="Only warn of what `run` would refuse without a flag --allow-….",
)


def _holder_options(command: _Command) -> _Command:
    """Add ``--pod-resources`` and ``--assume-free``; see `kubelet_options` on paths."""
    for option in reversed(
        (
            click.option(
                "--pod-resources",
                envvar="DEVHOST_POD_RESOURCES",
                show_envvar=True,
                type=Path,
                metavar="SOCKET",
                shell_complete=completion.files,
                help="Kubelet's pod-resources socket, to know which pods have devices: "
                "/var/lib/kubelet/pod-resources/kubelet.sock.",
            ),
            click.option(
                "--assume-free",
                is_flag=True,
                envvar="DEVHOST_ASSUME_FREE",
                show_envvar=True,
                help="Without --pod-resources: assume that no pod has a device under its former "
                "resource name or ID once that has left kubelet's list. For a drained node.",
            ),
        )
    ):
        command = option(command)
    return command


def kubelet_options(command: _Command) -> _Command:
    """Add the directories and sockets of kubelet, container runtimes and this process.

    Not as `click.Path`, which accesses the path: a hung filesystem would block the start.
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
                shell_complete=completion.directories,
                help="Kubelet's device plugin directory.",
            ),
            click.option(
                "--state-dir",
                envvar="DEVHOST_STATE_DIR",
                show_envvar=True,
                type=Path,
                metavar="DIRECTORY",
                shell_complete=completion.directories,
                help="Directory for state that is kept across restarts: under which names pods "
                "were given devices, the pods that devices were prepared for (both shared by all "
                "instances on the node), and the last good configuration, for a start with an "
                "invalid one.",
            ),
            click.option(
                "--last-good",
                envvar="DEVHOST_LAST_GOOD",
                show_envvar=True,
                metavar="NAME",
                default="last-good.yaml",
                show_default=True,
                callback=_file_name,
                help="File in --state-dir for the last good configuration. Instances that "
                "share the "
                "directory need a name each.",
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
                shell_complete=completion.directories,
                help="Directory where container runtimes look for CDI specs.",
            ),
        )
    ):
        command = option(command)
    return command


def host_options(command: _Command) -> _Command:
    """Add the options that ``run`` and ``try`` share."""
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
                help="Log format. Default: text if stderr is a terminal, otherwise json.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(["debug", "info", "warning", "error"]),
                default="info",
                envvar="DEVHOST_LOG_LEVEL",
                show_envvar=True,
                show_default=True,
                help="Minimum level of log messages.",
            ),
        )
    ):
        command = option(command)
    return command


def real_root(root: str) -> str:
    """Return a root as an absolute path with links resolved."""
    return within_time("--root", lambda: os.path.realpath(root))


def within_time(option: str, check: Callable[[], T]) -> T:
    """Return the result of a check of an option's path; exit if it fails or hangs."""
    from devhost.threads import PATIENCE_S, in_time

    try:
        return in_time(check, PATIENCE_S)
    except TimeoutError:
        output.fail(f"{option}: filesystem did not respond within {PATIENCE_S:g} s")
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        output.fail(f"{option}: {path}{error.strerror}")
