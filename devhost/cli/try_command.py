"""``devhost try``."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devhost.cli import options, output
from devhost.cli.run_command import load_config, serve
from devhost.daemon.process import raise_descriptor_limit

if TYPE_CHECKING:
    from devhost.fake_kubelet.trial import Trial
    from devhost.node.answers import CodeResource


@click.command("try", epilog="Exit status: 0 success, 1 failure, 2 usage error.")
@options.config_argument
@click.option("--once", is_flag=True, help="Print the registered resources as JSON and exit.")
@options.host_options
def command(config: str, **flags: Any) -> None:
    """Serve the resources to a stand-in kubelet in a temporary directory, also those of DRA.

    Prints a line per resource when it changes. In a terminal, there is a prompt to allocate
    devices and to restart kubelet. Follows the configuration, until Ctrl-C.
    A device that `run` would refuse with the same flags is unhealthy, with the reason.

    Example: `devhost try first.yaml`
    """
    run(config, **flags)


def run(
    config: str | None, plugins: "Sequence[CodeResource]" = (), *, once: bool = False, **flags: Any
) -> None:
    """Serve the resources of a configuration, if any, and of plugins to a stand-in kubelet.

    The flags are those of `options.host_options`; others are ignored.
    """
    from devhost.backends.deviceplugin.plugin_sockets import path_length_problem
    from devhost.fake_kubelet.trial import Trial
    from devhost.hostfs.files import HostFiles
    from devhost.node.node import Settings
    from devhost.observe import logs

    logs.set_up("error" if once else flags["log_level"], flags["log_format"])
    output.print_warnings(flags["policy"].warnings)
    policy = replace(flags["policy"], adds_values=True)
    source, first = load_config(config, policy)
    raise_descriptor_limit(len(first.resources) + len(plugins))
    with tempfile.TemporaryDirectory(prefix="devhost-try-") as directory:
        temporary = Path(directory)
        if problem := path_length_problem(temporary):
            logs.exit_with_error(f"TMPDIR: {problem}")
        judging = replace(source.policy if source else policy, enforced=True)
        settings = Settings(
            flags["node_name"],
            HostFiles(flags["root"], judging.shown_paths, flags["cdi_dirs"]),
            judging,
            state_dir=temporary / "state",
            cdi_dir=temporary / "cdi",
        )
        trial = Trial(first, settings, temporary, source, plugins)
        if once:
            shown = asyncio.run(trial.once())
            output.print_json(shown)
            sys.exit(0 if all(resource["registered"] for resource in shown["resources"]) else 1)
        if not trial.names:
            output.print_nothing(settings.node_name, listed=bool(first.resources or plugins))
        serve(trial.host, lambda: _live(trial, config), source, flags, output.note)


async def _live(trial: "Trial", config: str | None) -> None:
    """Show what happens until cancelled; signals are handled by now."""
    if config != "-" and _is_interactive():
        from devhost.cli.playground import Playground

        await Playground(trial).run()
    else:
        await trial.live(output.echo)


def _is_interactive() -> bool:
    """Whether there are terminals, a cursor, and readline, which the image is without."""
    terminals = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return terminals and output.moves_cursor() and find_spec("readline") is not None
