"""Options that several commands share, with their environment variables."""

import functools
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from devhost.model.names import CDI_DIRS, driver_name_problem
from devhost.observe.address import Address

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]


class _PathName(click.Path):
    """A path that the shell completes. It is not accessed: a hung filesystem would block."""

    def __init__(self, name: str, made: Callable[[str], Any] = str) -> None:
        super().__init__(file_okay=name != "directory")
        self.name, self._made = name, made  # the name stands for the path in the help

    def convert(self, value: Any, *_: object) -> Any:
        return self._made(value)


class _Root(click.Path):
    """A directory, or an archive, which is unpacked until the command ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if ctx is None or path.is_dir():
            return str(path)
        from devhost.drafts.capture import unpack

        temporary = Path(tempfile.mkdtemp(prefix="devhost-")).resolve()
        remove = functools.partial(shutil.rmtree, temporary, ignore_errors=True)
        ctx.call_on_close(remove)
        try:
            unpack(path, temporary / "root")
        except ValueError as error:
            remove()  # the context of a usage error is not closed
            self.fail(str(error), param, ctx)
        ctx.meta[ARCHIVE] = value
        return f"{temporary}/root"


FILE: Final = _PathName("file")
ARCHIVE: Final = "devhost.archive"  # in a context: the archive that --root named
_DIRECTORY: Final = _PathName("directory", Path)
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


def together(*options: _Decorator[Any]) -> _Decorator[Any]:
    """Return a decorator that adds options in this order."""

    def add(command: _Command) -> _Command:
        for decorate in reversed(options):
            command = decorate(command)
        return command

    return add


class _Option(click.Option):
    """An option that a variable sets, too, as its help says, but for a `ServeCommand`."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if isinstance(ctx.command, ServeCommand):
            extra.pop("envvars", None)
        return extra

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.name not in _ALLOW or isinstance(ctx.command, ServeCommand):
            return super().get_help_record(ctx)
        line = ("--allow-…", "What the configuration may use, as of `devhost run`.")
        return line if self.name == "allow_paths" else None


class ServeCommand(click.Command):
    """`run`, or a program with the library: its help explains all options, variables at the end.

    Of --allow-…, the help of other commands has one line.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(epilog=_SERVE_EPILOG, **settings)


def option(flag: str, text: str, *names: str, **settings: Any) -> _Decorator[Any]:
    """Return an option that a variable sets, too: ``--log-level`` and ``DEVHOST_LOG_LEVEL``."""
    variable = f"DEVHOST_{flag.removeprefix('--').upper().replace('-', '_')}"
    default = settings.get("default")
    settings["show_default"] = isinstance(default, str) and default != ""
    settings |= {"envvar": variable, "show_envvar": True}
    return click.option(flag, *names, cls=_Option, help=text, **settings)


def refuses(find_problem: Callable[[str], str | None]) -> Callable[..., Any]:
    """Return a callback that refuses values with a problem, of an option with one or several."""

    def check(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        values = value if isinstance(value, tuple) else (value,)
        for problem in filter(None, map(find_problem, values)):
            raise click.BadParameter(problem)
        return value

    return check


def _file_name_problem(name: str) -> str | None:
    is_plain = name not in ("", ".", "..") and "/" not in name
    return None if is_plain else f"{name!r} is not a plain file name"


def address_option(flag: str, text: str, default: str = "") -> _Decorator[Any]:
    """Return an option for an address; empty means the default, or none."""
    return option(flag, text, default=default, metavar="ADDRESS", callback=_address)


def _address(_context: click.Context, parameter: click.Parameter, text: str) -> Address | None:
    text = text or str(parameter.default or "")
    try:
        return Address.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


DEFAULT_CONFIG: Final = "/etc/devhost/config.yaml"
config_argument = click.argument(
    "config", envvar="DEVHOST_CONFIG", default=DEFAULT_CONFIG, metavar="[CONFIG]", type=FILE
)
ROOT: Final = _Root(exists=True, resolve_path=True)
root_option = option(
    "--root",
    "Directory where the host's files are mounted, or what `devhost capture` has written. Paths in "
    "the configuration are the host's, without it.",
    default="/",
    type=ROOT,
)
host_files_option = together(
    root_option,
    option(
        "--cdi-dirs",
        "Directory where container runtimes look for the CDI specs of vendors; can be repeated, a "
        "later one has precedence. Default: /etc/cdi, /var/run/cdi.",
        multiple=True,
        default=CDI_DIRS,
        metavar="DIRECTORY",
    ),
)
node_name_option = option(
    "--node-name", "Name of the node. Default: the host name.", default=socket.gethostname
)


def output_option(
    *formats: str, text: str = "Output format; the JSON format is stable."
) -> Callable[[_Command], _Command]:
    """Return ``-o``; the first format is the default."""
    kind = click.Choice(formats)
    return click.option(
        "-o", "--output", type=kind, default=formats[0], show_default=True, help=text
    )


table_output_option: _Decorator[Any] = output_option(
    *("text", "wide", "json", "yaml"),
    text="Output format: wide has all columns. The shape of json and yaml is stable.",
)


# ── what a configuration may use ──

# By field of `Policy`: what a value is, and the help.
_ALLOW: Final = {
    "allow_paths": (
        "GLOB",
        "Allow mounts, and what not every user may read. No pod may be able to write there.",
    ),
    "allow_devices": (
        "WHAT",
        "Allow nodes by class, by what a device is, or by path. No pod may be able to write there.",
    ),
    "allow_resources": ("NAME", "Allow resources that other plugins serve, too."),
    "allow_cdi": ("GLOB", "Allow CDI devices, and variables that add devices."),
    "allow_annotations": ("GLOB", "Allow annotation keys."),
    "allow_exec": ("", "Allow commands, and to change the modes of nodes."),
    "dra": ("", "Allow Dynamic Resource Allocation (`backend: dra`); needs --state-dir."),
}


def _allow_problem(field: str, value: str) -> str | None:
    """Return why a value of a field of `Policy` allows nothing, or ``None``."""
    from devhost.allocation.policy import VALUE_PROBLEMS

    return VALUE_PROBLEMS[field](value) if field in VALUE_PROBLEMS else None


def trust_options(command: _Command) -> _Command:
    """Add the options ``--allow-…``; the command gets them as ``policy``."""

    @functools.wraps(command)
    def with_policy(*arguments: Any, **chosen: Any) -> Any:
        from devhost.allocation.policy import Policy

        policy = Policy(**{field: chosen.pop(field) for field in _ALLOW})
        return command(*arguments, policy=policy, **chosen)

    flags = []
    for field, (value, text) in _ALLOW.items():
        flag = f"--{field.removesuffix('s').replace('_', '-')}"
        check = refuses(functools.partial(_allow_problem, field))
        listed = {"multiple": True, "metavar": value, "callback": check}
        settings = listed if value else {"is_flag": True}
        flags.append(option(flag, text, field, **settings))
    return cast("_Command", together(*flags)(with_policy))


dra_driver_option = option(
    "--dra-driver",
    "With `backend: dra`: the name of the driver, which no other on the node has.",
    default="devhost",
    metavar="NAME",
    callback=refuses(driver_name_problem),
)


# ── what `run`, `try` and programs with the library share ──

_SERVE_EPILOG: Final = (
    "Each option has a variable, such as DEVHOST_LOG_LEVEL; of --allow-…, which can be repeated, "
    "its values are split at spaces.\n\nExit status: 0 on SIGTERM, 1 on failure, 2 usage error."
)
kubelet_options = together(
    option(
        "--plugin-dir",
        "Kubelet's device plugin directory.",
        default="/var/lib/kubelet/device-plugins",
        type=_DIRECTORY,
    ),
    option(
        "--state-dir",
        "Directory for what outlives a restart: which devices pods were given and which were "
        "prepared, for all instances on the node, and the last good configuration.",
        type=_DIRECTORY,
    ),
    option(
        "--last-good",
        "File in --state-dir for the last good configuration, of this instance alone.",
        default="last-good.yaml",
        metavar="NAME",
        callback=refuses(_file_name_problem),
    ),
    option(
        "--pod-resources",
        "Kubelet's pod-resources socket, to know which pods have devices.",
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        type=_PathName("socket", Path),
    ),
    option(
        "--cdi-dir",
        "Directory where container runtimes look for CDI specs.",
        default="/var/run/cdi",
        type=_DIRECTORY,
    ),
    option(
        "--kubelet-dir",
        "With --dra: kubelet's directory, with plugins and plugins_registry.",
        default="/var/lib/kubelet",
        type=_DIRECTORY,
    ),
    dra_driver_option,
    option(
        "--api-server",
        "With --dra: URL of the API server. Default: that of the pod's cluster.",
        metavar="URL",
    ),
    option(
        "--api-ca",
        "With --dra: file with the certificates that the API server is checked by.",
        default=f"{_SERVICE_ACCOUNT}/ca.crt",
        type=_PathName("file", Path),
    ),
    option(
        "--api-token",
        "With --dra: file with the token for the API server.",
        default=f"{_SERVICE_ACCOUNT}/token",
        type=_PathName("file", Path),
    ),
)
host_options = together(
    host_files_option,
    node_name_option,
    trust_options,
    address_option(
        "--listen",
        "Serve metrics and probes over HTTP on HOST:PORT, or :PORT for all addresses. Off by "
        "default.",
    ),
    address_option(
        "--status-listen",
        "Serve the status page, and the data for `devhost status`, over HTTP. Who can connect can "
        "read it: prefer 127.0.0.1:PORT. Off by default.",
    ),
    option(
        "--metrics-devices",
        "Add a metric series for each device that a pod has, with the pod's name.",
        is_flag=True,
    ),
    option(
        "--log-format",
        "Log format. Default: text if stderr is a terminal, otherwise json.",
        type=click.Choice(["json", "text"]),
    ),
    option(
        "--log-level",
        "Minimum level of log messages.",
        default="info",
        type=click.Choice(["debug", "info", "warning", "error"]),
    ),
)
