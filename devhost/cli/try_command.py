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
from devhost.cli.run_command import first_config

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy
    from devhost.host.shared import CodeResource
    from devhost.observe.address import Address
    from devhost.standin.trial import Trial


@click.command("try", epilog="Exit status: 0 success, 1 failure, 2 usage error.")
@options.config_argument
@click.option("--once", is_flag=True, help="Print the registered resources as JSON and exit.")
@options.as_if_allowed_option
@options.host_options
def command(config: str, once: bool, **chosen: Any) -> None:
    """Serve the resources to an embedded stand-in kubelet in a temporary directory.

    Prints a line per resource when it changes. In a terminal, there is a prompt to allocate
    devices, to restart kubelet and to edit the configuration. Follows the configuration, until
    Ctrl-C.
    A device that `run` would refuse with the same flags is unhealthy, with the reason.
    """
    run(config, once=once, **chosen)


def run(
    config: str | None,
    *,
    once: bool,
    root: str,
    node_name: str,
    policy: "Policy",
    as_if_allowed: bool = False,
    listen: "Address | None",
    status_listen: "Address | None",
    metrics_devices: bool,
    log_format: str | None,
    log_level: str,
    plugins: "Sequence[CodeResource]" = (),
) -> None:
    """Serve the resources of a configuration, if any, and of plugins to a stand-in kubelet."""
    from devhost.discovery.identity import HOLD_S
    from devhost.host.config_source import ConfigSource
    from devhost.host.endpoint import Endpoint, ListenError
    from devhost.host.host import Settings
    from devhost.host.process import raise_descriptor_limit, until_signal
    from devhost.hostfs.files import HostFiles
    from devhost.kubelet.resource_lock import path_length_problem
    from devhost.observe import logs
    from devhost.standin.trial import Trial

    logs.set_up("error" if once else log_level, log_format)
    output.print_warnings(policy.warnings)
    source = ConfigSource(config, policy) if config is not None else None
    first = first_config(source, log=False)
    raise_descriptor_limit(len(first.resources) + len(plugins))
    with tempfile.TemporaryDirectory(prefix="devhost-try-") as directory:
        temporary = Path(directory)
        if problem := path_length_problem(temporary):
            logs.fail(f"TMPDIR: {problem}")
        judging = replace(policy, enforced=not as_if_allowed)
        files = HostFiles(root, judging.shown_paths)
        settings = Settings(
            temporary,
            node_name,
            files,
            judging,
            state_dir=temporary / "state",
            pod_resources=temporary / "pod-resources.sock",
            cdi_dir=temporary / "cdi",
            hold_s=0.0 if once else HOLD_S,
        )
        trial = Trial(first, settings, source, plugins)
        if once:
            shown = asyncio.run(trial.once())
            output.print_json(shown)
            sys.exit(0 if all(one["registered"] for one in shown["resources"]) else 1)
        try:
            http = Endpoint(listen, status_listen, devices=metrics_devices)
        except ListenError as error:
            logs.fail(str(error))
        for what, url in http.urls.items():
            output.note(f"devhost: {what}: {url}")
        work = http.serve_during(trial.host, _live(trial, config))
        asyncio.run(until_signal(work, source.reload_asked if source else None))


async def _live(trial: "Trial", config: str | None) -> None:
    """Show what happens until cancelled; signals are handled by now."""
    if not trial.names:
        output.print_nothing(trial.host.settings.node_name)
    if config != "-" and _can_ask():
        from devhost.cli.playground import Playground

        await Playground(trial, config).run()
    else:
        await trial.live(output.echo)


def _can_ask() -> bool:
    """Whether there is a person, a cursor, and readline, which the image is without."""
    person = sys.stdin is not None and sys.stdin.isatty() and output.on_a_terminal()
    return person and output.moves_cursor() and find_spec("readline") is not None
