"""Options that several commands share, with their environment variables."""

import functools
import os
import socket
from collections.abc import Callable, Iterable
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
    help="Output format: wide has all columns, and one line per row also on a terminal. The shape "
    "of json and yaml is stable.",
)


def _paths(
    _context: click.Context, _option: click.Parameter, globs: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse globs that match no absolute path."""
    if globs:
        from devhost.allocation.policy import path_glob_problem

        _refuse(map(path_glob_problem, globs))
    return globs


def _devices(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse what is neither the name of a class nor a glob on absolute paths."""
    if texts:
        from devhost.allocation.policy import device_glob_problem

        _refuse(map(device_glob_problem, texts))
    return texts


def _refuse(problems: Iterable[str | None]) -> None:
    for problem in filter(None, problems):
        raise click.BadParameter(problem)


def _file_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Refuse everything but a plain file name."""
    if not name or "/" in name or name in (".", ".."):
        raise click.BadParameter(f"{name!r} is not a plain file name")
    return name


def _globs(option: str, text: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """Return an option ``--allow-…`` that can be repeated."""
    return click.option(
        f"--allow-{option}",
        multiple=True,
        envvar=f"DEVHOST_ALLOW_{option.upper()}",
        show_envvar=True,
        help=text,
        **{"metavar": "GLOB", **attributes},
    )


_TRUST_OPTIONS: Final = (
    _globs(
        "path",
        "Host paths that containers may get: mounts, block devices, other devices below /dev. "
        "Repeatable; the variable is split at spaces (use '?' for a space in a path).",
        callback=_paths,
    ),
    _globs(
        "device",
        "Classes of devices (docs/devices.md), and paths of device nodes, also outside of /dev, "
        "that containers may get. Repeatable.",
        metavar="CLASS|GLOB",
        callback=_devices,
    ),
    _globs(
        "resource",
        "Names that resources may have. Default: all but those that vendors' own device plugins "
        "usually serve. Repeatable.",
    ),
    _globs("cdi", "CDI devices that containers may get by `allocate.cdi`. Repeatable."),
    _globs(
        "annotation",
        "Annotation keys that containers may get, in addition to those in the resource's own "
        "domain. Repeatable.",
    ),
    _globs(
        "env",
        "Environment variables that containers may get, although they steer a loader, a proxy, a "
        "runtime or the like. Repeatable.",
    ),
    click.option(
        "--allow-exec",
        is_flag=True,
        envvar="DEVHOST_ALLOW_EXEC",
        show_envvar=True,
        help="Allow the configuration to run commands.",
    ),
)


def trust_options(command: _Command) -> _Command:
    """Add the options ``--allow-…``; the command gets them as ``policy``."""

    @functools.wraps(command)
    def with_policy(
        *arguments: Any,
        allow_path: tuple[str, ...],
        allow_device: tuple[str, ...],
        allow_resource: tuple[str, ...],
        allow_cdi: tuple[str, ...],
        allow_annotation: tuple[str, ...],
        allow_env: tuple[str, ...],
        allow_exec: bool,
        **chosen: Any,
    ) -> Any:
        from devhost.allocation.policy import Policy

        policy = Policy(
            allow_paths=allow_path,
            allow_devices=allow_device,
            allow_resources=allow_resource,
            allow_cdi=allow_cdi,
            allow_annotations=allow_annotation,
            allow_env=allow_env,
            allow_exec=allow_exec,
        )
        return command(*arguments, policy=policy, **chosen)

    decorated: Any = with_policy
    for option in reversed(_TRUST_OPTIONS):
        decorated = option(decorated)
    return cast("_Command", decorated)


profile_option = click.option(
    "--profile",
    default="",
    metavar="NAME",
    help="Which configuration of the chart's values: that of this profile, or `default`, the one "
    "outside of profiles.",
)
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
                help="Directory for state that is kept across restarts: the resource names and IDs "
                "of devices, the pods that devices were prepared for (both shared by all instances "
                "on the node), and the last good configuration, for a start with an invalid one.",
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
