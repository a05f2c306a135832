"""``devhost run``, and how it and ``devhost try`` start."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from devhost import __version__
from devhost.cli import options, output
from devhost.daemon.process import (
    allocate_from_one_arena,
    can_start_threads,
    collect_garbage_rarely,
    raise_descriptor_limit,
    wait_for_signal,
)
from devhost.daemon.signals import exit_on_signals
from devhost.model.config import Config
from devhost.observe import logs

_THREADS: Final = 32  # gRPC's, for up to 16 cores, and those of `devhost.watch.threads`
_LOG: Final = logging.getLogger(__name__)

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy
    from devhost.backends.deviceplugin.registration import DevicePluginBackend
    from devhost.backends.dra.dra_backend import DraBackend
    from devhost.node.answers import CodeResource
    from devhost.node.config_file import ConfigFile, LastGoodConfig
    from devhost.node.node import Host


@click.command("run", cls=options.ServeCommand)
@options.config_argument
@options.kubelet_options
@options.host_options
def command(config: str, **flags: Any) -> None:
    """Serve the resources of a configuration to kubelet until SIGTERM.

    The file is reloaded when it changes and on SIGHUP; an invalid one is rejected.

    Example: `devhost run first.yaml --status-listen 127.0.0.1:9111`
    """
    if options.ARCHIVE in click.get_current_context().meta:
        raise click.UsageError("--root: an archive has no devices to serve; `devhost try` shows it")
    run(config, **flags)


def run(config: str | None, plugins: "Sequence[CodeResource]" = (), **flags: Any) -> None:
    """Serve the resources of a configuration, if any, and of plugins until SIGTERM.

    The flags are those of `options.kubelet_options` and `options.host_options`.
    """
    exit_on_signals()  # also for programs that use the library
    allocate_from_one_arena()
    collect_garbage_rarely()
    if not can_start_threads(_THREADS):
        output.fail(f"no {_THREADS} threads can be started: raise pids.max or RLIMIT_NPROC")
    logs.set_up(flags["log_level"], flags["log_format"])
    _log_start(config, plugins, flags)
    from devhost.backends.deviceplugin.registration import DevicePluginBackend
    from devhost.hostfs.files import HostFiles
    from devhost.node.config_file import LastGoodConfig
    from devhost.node.node import Host, Settings

    file_policy = replace(flags["policy"], node_name=flags["node_name"])
    policy = replace(file_policy, enforced=True)
    state_dir = flags["state_dir"]
    copy = LastGoodConfig(state_dir, flags["last_good"]) if state_dir else None
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    to_log = flags["log_format"] == "json" or not on_terminal
    source, first = load_config(config, file_policy, copy, to_log=to_log)
    raise_descriptor_limit(len(first.resources) + len(plugins))
    settings = Settings(
        flags["node_name"],
        HostFiles(flags["root"], policy.shown_paths, flags["cdi_dirs"]),
        policy,
        state_dir=state_dir,
        cdi_dir=flags["cdi_dir"],
    )
    plugin_backend = DevicePluginBackend(
        _check_plugin_dir(flags["plugin_dir"]), flags["pod_resources"]
    )
    if not policy.dra:
        host = Host(first, settings, plugin_backend, source, plugins)
    else:
        backend = _dra_backend(plugin_backend, flags)
        host = Host(first, settings, backend, source, plugins)
        for metric in backend.metrics():
            host.parts.metrics.registry.register(metric)
    serve(host, host.run, source, flags)


def _dra_backend(plugin_backend: "DevicePluginBackend", flags: Mapping[str, Any]) -> "DraBackend":
    """Return the backend of Dynamic Resource Allocation, or exit if the flags do not do."""
    from devhost.backends.dra.api_client import ApiClient
    from devhost.backends.dra.dra_backend import DraBackend

    if flags["state_dir"] is None:
        logs.exit_with_error("--dra needs --state-dir, for what claims were given")
    source = click.get_current_context().get_parameter_source("node_name")
    if source is ParameterSource.DEFAULT:  # the host's name, which a pod's may be
        logs.exit_with_error("--dra needs --node-name")
    url, ca, token = flags["api_server"], flags["api_ca"], flags["api_token"]
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not url and not host:
        logs.exit_with_error("--dra needs --api-server outside of a pod")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = url or f"https://{f'[{host}]' if ':' in host else host}:{port}"
    is_tls = url.lower().startswith("https://")
    api = ApiClient(url, ca, token) if is_tls else ApiClient(url)
    driver, node_name, kubelet_dir = flags["dra_driver"], flags["node_name"], flags["kubelet_dir"]
    backend = DraBackend(driver, node_name, kubelet_dir.absolute(), api, plugin_backend)
    if problem := backend.registrar.sockets.length_problem:
        logs.exit_with_error(f"--kubelet-dir, --dra-driver: {problem}")
    return backend


def load_config(
    config: str | None,
    policy: "Policy",
    copy: "LastGoodConfig | None" = None,
    *,
    to_log: bool = False,
) -> "tuple[ConfigFile | None, Config]":
    """Return the file, if any, and its configuration, or the last good one; exit without any.

    Its problems are printed, or logged.
    """
    if config is None:
        return None, Config(version="v1", resources=())
    from devhost.node.config_file import ConfigFile, log_problems

    source = ConfigFile(config, policy, copy)
    file, good = source.load_first()
    problems = file.problems + (good.problems if good else ())
    (log_problems if to_log else output.print_problems)(problems)
    used = file.config or (good.config if good else None)
    if used is None:
        output.exit_without_config("" if to_log else config)
    if file.config is None:
        fields = {"file": source.file, "used": source.status.file}
        state = "unreadable" if source.status.unreadable else "invalid"
        message = "%s configuration, starting with the last good one"
        _LOG.error(message, state, extra={"fields": fields})
    return source, used


def serve(
    host: "Host",
    work: Callable[[], Coroutine[Any, Any, None]],
    source: "ConfigFile | None",
    flags: Mapping[str, Any],
    show: Callable[[str], None] = lambda _url: None,
) -> None:
    """Do the work of a host until a signal, with HTTP where the flags say; exit if that fails."""
    from devhost.daemon.http_endpoint import Endpoint, ListenError
    from devhost.errors import KubeletError

    try:
        http = Endpoint(flags["listen"], flags["status_listen"], devices=flags["metrics_devices"])
        for name, url in http.urls.items():
            show(f"devhost: {name}: {url}")
        reload_requested = source.reload_requested if source else None
        asyncio.run(wait_for_signal(http.serve_while(host, work()), reload_requested))
    except (KubeletError, ListenError) as error:
        logs.exit_with_error(str(error))


def _log_start(
    config: str | None, plugins: "Sequence[CodeResource]", flags: Mapping[str, Any]
) -> None:
    """Log the version and the flags."""
    shown = {**asdict(flags["policy"]), **dict(sorted(flags.items()))}
    for key in ("policy", "enforced", "adds_values", "by_values", "trusted", "executes"):
        del shown[key]
    names = [plugin.resource.name for plugin in plugins]
    fields = {"version": __version__, "pid": os.getpid(), "config": config, "plugins": names}
    _LOG.info("starting devhost", extra={"fields": {**fields, **shown}})
    for text in flags["policy"].warnings:
        _LOG.warning(text)


def _check_plugin_dir(plugin_dir: Path) -> Path:
    """Return the absolute path of the plugin directory, with links as they are, or exit."""
    from devhost.backends.deviceplugin.plugin_sockets import path_length_problem

    if not os.path.isdir(plugin_dir):  # as `Path.is_dir`, but of any error
        hint = "; kubelet makes it; without a kubelet, use `devhost try`"
        logs.exit_with_error(f"--plugin-dir: {plugin_dir} is not a directory{hint}")
    if problem := path_length_problem(plugin_dir.absolute()):
        logs.exit_with_error(f"--plugin-dir: {problem}")
    return plugin_dir.absolute()
