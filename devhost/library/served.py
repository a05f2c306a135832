"""A plugin as a resource of the host."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from devhost.allocation.rules import rules_of
from devhost.errors import PreStartError
from devhost.hostfs.files import HostFiles
from devhost.library.calls import CallError
from devhost.library.options import TRUSTED
from devhost.library.plugin import DevicePlugin
from devhost.library.plugin_methods import PluginMethods
from devhost.library.scanner import CodeScanner, plugin_device
from devhost.model import names
from devhost.model.device import HostDevice
from devhost.threads import in_thread

_LOG: Final = logging.getLogger(__name__)


class ServedPlugin:
    """Serves a plugin like a resource of the configuration (a `CodeResource`)."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self.resource = plugin.resource
        self._plugin, self._methods = plugin, PluginMethods(plugin)
        self._rescan: Callable[[], None] | None = None  # while it is served
        self._registered = False

    def scanner(self, files: HostFiles, node_name: str, hold_s: float) -> CodeScanner:
        """Return the scanner of the resource."""
        self._plugin.root = Path(files.root)
        rules = rules_of(self.resource)
        return CodeScanner(
            self.resource, rules, files, TRUSTED, node_name, hold_s, methods=self._methods
        )

    def started(self, look_again: Callable[[], None]) -> None:
        """Called when serving begins; ``look_again`` may only be called on this thread."""
        self._rescan, self._registered = look_again, False
        self._methods.refresh_first()
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: it is no longer served
                loop.call_soon_threadsafe(look_again)

        self._plugin.on_changed = changed
        for warning in self._plugin.warnings:
            _LOG.warning("%s", warning)

    def registered(self) -> None:
        """Called after each registration: after the first, ``refresh`` has to be called again."""
        if self._registered and self._rescan is not None:
            self._methods.refresh_first()
            self._rescan()
        self._registered = True

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Call ``pre_start`` if it is overridden.

        Raises:
            PreStartError: The container may not start; the message says why.
        """
        if not self._methods.prepares:
            return
        by_id = {device.id: plugin_device(device) for device in devices}
        chosen = [by_id[one] for one in names.natural(by_id)]
        name = self.resource.name
        try:
            await in_thread(f"pre_start {name}", lambda: self._methods.pre_start(chosen, within))
        except CallError as error:
            raise PreStartError(f"{name}: {error}") from None

    async def ended(self) -> None:
        """Called when the server has stopped: calls ``destroy`` if it was started."""
        if self._rescan is None:
            return
        self._rescan = None
        with contextlib.suppress(CallError):  # logged
            await in_thread(f"destroy {self.resource.name}", self._methods.destroy)


def served(plugins: Iterable[DevicePlugin]) -> tuple[ServedPlugin, ...]:
    """Return plugins as resources of a host.

    Raises:
        TypeError: One is not a plugin, not initialized, or has no ``devices``.
        ValueError: Two have the same name.
    """
    found: dict[str, ServedPlugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, DevicePlugin):
            raise TypeError(f"{plugin!r} is not an instance of a subclass of DevicePlugin")
        if not hasattr(plugin, "resource"):
            kind = type(plugin).__name__
            raise TypeError(f"{kind}.__init__ must call super().__init__(name)")
        if getattr(plugin.devices, "__func__", None) is DevicePlugin.devices:
            raise TypeError(f"{type(plugin).__name__} must define devices()")
        if plugin.name in found:
            raise ValueError(f"duplicate plugin {plugin.name}")
        found[plugin.name] = ServedPlugin(plugin)
    return tuple(found.values())
