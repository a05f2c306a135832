"""``devhost run``, and how it and ``devhost try`` start."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from devhost import __version__
from devhost.cli import options, output
from devhost.host.process import exit_on_signals, raise_descriptor_limit, until_signal
from devhost.model.config import Config
from devhost.observe import logs

_LOG: Final = logging.getLogger(__name__)

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy
    from devhost.host.config_source import ConfigSource
    from devhost.host.shared import CodeResource
    from devhost.observe.address import Address


@click.command("run", epilog="Exit status: 0 on SIGTERM, 1 on failure, 2 usage error.")
@options.config_argument
@options.kubelet_options
@options.host_options
def command(config: str, **chosen: Any) -> None:
    """Serve the resources of a configuration to kubelet until SIGTERM.

    The file is reloaded when it changes and on SIGHUP; an invalid one is rejected.
    """
    run(config, **chosen)


def run(
    config: str | None,
    *,
    plugin_dir: Path,
    state_dir: Path | None,
    last_good: str,
    pod_resources: Path | None,
    assume_free: bool,
    cdi_dir: Path,
    root: str,
    node_name: str,
    policy: "Policy",
    listen: "Address | None",
    status_listen: "Address | None",
    metrics_devices: bool,
    log_format: str | None,
    log_level: str,
    plugins: "Sequence[CodeResource]" = (),
) -> None:
    """Serve the resources of a configuration, if any, and of plugins until SIGTERM."""
    flags = dict(locals())
    exit_on_signals()  # also for programs that use the library
    logs.set_up(log_level, log_format)
    _log_start(flags)
    policy = replace(policy, enforced=True)
    from devhost.errors import KubeletError
    from devhost.host.config_source import ConfigSource
    from devhost.host.endpoint import Endpoint, ListenError
    from devhost.host.host import Host, Settings
    from devhost.host.state_files import LastGood
    from devhost.hostfs.files import HostFiles

    copy = LastGood(state_dir, last_good) if state_dir else None
    source = None if config is None else ConfigSource(config, policy, copy)
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    first = first_config(source, log=log_format == "json" or not on_terminal)
    raise_descriptor_limit(len(first.resources) + len(plugins))
    files = HostFiles(root, policy.shown_paths)
    settings = Settings(
        _usable(plugin_dir),
        node_name,
        files,
        policy,
        state_dir=state_dir,
        pod_resources=pod_resources,
        assume_free=assume_free,
        cdi_dir=cdi_dir,
    )
    host = Host(first, settings, source, plugins)
    try:
        http = Endpoint(listen, status_listen, devices=metrics_devices)
        work = http.serve_during(host, host.run())
        asyncio.run(until_signal(work, source.reload_asked if source else None))
    except (KubeletError, ListenError) as error:
        logs.fail(str(error))


def first_config(source: "ConfigSource | None", *, log: bool) -> Config:
    """Return the file's configuration, or the last good one; exit with status 1 without any.

    Its problems are logged, or else printed.
    """
    if source is None:
        return Config(version="v1", resources=())
    loaded, copy = source.first()
    problems = loaded.problems + (copy.problems if copy else ())
    if log:
        from devhost.host.config_source import log_problems

        log_problems(problems)
    else:
        output.print_problems(problems)
    used = loaded.config or (copy.config if copy else None)
    if used is None:
        sys.exit(1)
    if loaded.config is None:
        fields = {"file": source.file, "used": source.status.file}
        what = "unreadable" if source.status.unreadable else "invalid"
        _LOG.error(
            "%s configuration, starting with the last good one", what, extra={"fields": fields}
        )
    return used


def _log_start(flags: Mapping[str, Any]) -> None:
    """Log the version and the flags: the arguments of `run`."""
    plugins = [one.resource.name for one in flags["plugins"]]
    policy = asdict(flags["policy"])
    fields = {"version": __version__, "pid": os.getpid(), **flags, **policy, "plugins": plugins}
    for key in ("policy", "enforced", "trusted"):
        del fields[key]
    _LOG.info("starting devhost", extra={"fields": fields})
    for text in flags["policy"].warnings:
        _LOG.warning(text)


def _usable(plugin_dir: Path) -> Path:
    """Return the absolute path of the plugin directory, with links as they are, or exit."""
    from devhost.kubelet.resource_lock import path_length_problem

    if not options.within_time("--plugin-dir", plugin_dir.is_dir):
        hint = "; kubelet makes it; without a kubelet, use `devhost try`"
        logs.fail(f"--plugin-dir: {plugin_dir} is not a directory{hint}")
    if problem := path_length_problem(plugin_dir.absolute()):
        logs.fail(f"--plugin-dir: {problem}")
    return plugin_dir.absolute()
