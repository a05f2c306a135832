"""The real host in the test process, with the stand-in kubelet."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.plugin_sockets import path_length_problem
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.config.loader import load, loads
from devhost.devices.dry_run import ResourceReport
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.fake_kubelet.trial import running
from devhost.hostfs.files import HostFiles
from devhost.library.plugin import DevicePlugin
from devhost.library.served import served
from devhost.model.config import Config
from devhost.node.config_file import log_problems
from devhost.node.node import Host, Settings

# Short: the stand-in kubelet processes a list immediately.
_LEAVE_AFTER_S: Final = 0.3


class Served:
    """The resources of a running host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def report(self, resource: str) -> dict[str, Any]:
        """Return the last scan of a resource, including what kubelet does not get.

        It has the shape of a resource of ``devhost plan -o json``: ``devices`` with their
        reasons, paths and NUMA nodes, what was ``skipped``, and the ``error`` of a source.
        """
        served = {served.name: served for served in self._host.resources}[resource]
        return ResourceReport(served.scanner.resource, served.devices.offered).as_json()


@contextlib.asynccontextmanager
async def serving(
    *resources: str | Path | DevicePlugin,
    kubelet: SimulatedKubelet,
    root: str | Path = "/",
    node_name: str = "node",
    allow_paths: Iterable[str] = (),
    allow_devices: Iterable[str] = (),
    allow_exec: bool = False,
) -> AsyncIterator[Served]:
    """Serve plugins, a configuration or both to a stand-in kubelet until the block ends.

    The same as `devhost.serve` and ``devhost run``, in this process and event loop. The kubelet
    need not be running yet. The host registers in the background: wait with
    ``kubelet.wait``. A vanished device leaves the list after 0.3 s instead of 10 s. State and
    CDI specs are kept in the plugin directory.

    At most one of the ``resources`` is a configuration: its text, or the path of its file, which is
    read once. The other arguments are as the flags of ``devhost run``; the ``allow_…`` restrict the
    configuration, not plugins: devices that need more are unhealthy. Raises `ConfigError` for an
    invalid configuration.
    """
    if problem := path_length_problem(kubelet.plugin_dir):
        raise ValueError(problem)
    policy = Policy(
        tuple(allow_paths), allow_exec, enforced=True, allow_devices=tuple(allow_devices)
    )
    configs = [config for config in resources if isinstance(config, str | Path)]
    plugins = served(plugin for plugin in resources if not isinstance(plugin, str | Path))
    if len(configs) > 1:
        raise TypeError("serving() takes at most one configuration")
    config = Config(version="v1", resources=())
    if configs:
        (text,) = configs
        file_policy = replace(policy, enforced=False)
        read = (
            loads(text, policy=file_policy)
            if isinstance(text, str)
            else load(str(text), file_policy)
        )
        config = read.require()
        log_problems(read.problems)  # only warnings: errors are raised
    backend = DevicePluginBackend(kubelet.plugin_dir, kubelet.pod_resources, _LEAVE_AFTER_S)
    settings = Settings(
        node_name,
        HostFiles(os.path.realpath(root), policy.shown_paths),  # noqa: ASYNC240 (of a test)
        policy,
        settle_s=0.0,
        state_dir=kubelet.plugin_dir / "state",
        cdi_dir=kubelet.plugin_dir / "cdi",
    )
    host = Host(config, settings, backend, None, plugins)
    async with running(host):
        yield Served(host)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Create a temporary directory for a plugin directory, and remove it at the end.

    A socket's path is at most 107 bytes, so pytest's ``tmp_path`` or ``TMPDIR`` may be too long.
    """
    with tempfile.TemporaryDirectory(prefix="devhost-", dir="/tmp") as directory:
        yield Path(directory)
