"""A plugin as the host knows it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from devhost.allocation.rules import bound, rules_of
from devhost.errors import PreStartError
from devhost.hostfs.files import HostFiles
from devhost.library.calls import CallError
from devhost.library.options import TRUSTED
from devhost.library.plugin import DevicePlugin
from devhost.library.plugin_methods import PluginMethods
from devhost.library.scanner import CodeScanner, theirs
from devhost.model import names
from devhost.model.device import HostDevice
from devhost.threads import in_own_thread

_LOG: Final = logging.getLogger(__name__)


class ServedPlugin:
    """Puts a plugin in the place of a resource of the configuration (a `CodeResource`)."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self.resource = plugin.resource
        self._plugin, self._author = plugin, PluginMethods(plugin)
        self._look_again: Callable[[], None] | None = None  # while it is served
        self._registered = False

    def scanner(self, files: HostFiles, node_name: str, hold_s: float) -> CodeScanner:
        """Compile the resource."""
        self._plugin.root = Path(files.root)
        rules = bound(rules_of(self.resource), self.resource.name, node_name)
        return CodeScanner(
            self.resource, rules, files, TRUSTED, node_name, hold_s, author=self._author
        )

    def started(self, look_again: Callable[[], None]) -> None:
        """The resource is served from now on; ``look_again`` is for this thread."""
        self._look_again, self._registered = look_again, False
        self._author.refresh_first()
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: it is served no more
                loop.call_soon_threadsafe(look_again)

        self._plugin.on_changed = changed
        for warning in self._plugin.warnings:
            _LOG.warning("%s", warning)

    def registered(self) -> None:
        """The server is registered: if not for the first time, ``refresh`` is due."""
        if self._registered and self._look_again is not None:
            self._author.refresh_first()
            self._look_again()
        self._registered = True

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Have ``pre_start`` called, if it is overridden.

        Raises:
            PreStartError: The container must not start; the text says why.
        """
        if not self._author.prepares:
            return
        by_id = {device.id: theirs(device) for device in devices}
        chosen = [by_id[one] for one in names.natural(by_id)]
        name = self.resource.name
        try:
            await in_own_thread(f"pre_start {name}", lambda: self._author.pre_start(chosen, within))
        except CallError as error:
            raise PreStartError(f"{name}: {error}") from None

    async def ended(self) -> None:
        """The server has stopped: have ``destroy`` called, if it was ever started."""
        if self._look_again is None:
            return
        self._look_again = None
        with contextlib.suppress(CallError):  # logged
            await in_own_thread(f"destroy {self.resource.name}", self._author.destroy)


def served(plugins: Iterable[DevicePlugin]) -> tuple[ServedPlugin, ...]:
    """Return plugins as a host takes them.

    Raises:
        TypeError: One is no plugin, is not set up, or has no ``devices``.
        ValueError: Two have the same name.
    """
    found: dict[str, ServedPlugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, DevicePlugin):
            raise TypeError(f"{plugin!r} is not an object of a subclass of DevicePlugin")
        if not hasattr(plugin, "resource"):
            kind = type(plugin).__name__
            raise TypeError(f"{kind}.__init__ has to call super().__init__(name)")
        if getattr(plugin.devices, "__func__", None) is DevicePlugin.devices:
            raise TypeError(f"{type(plugin).__name__} has to define devices()")
        if plugin.name in found:
            raise ValueError(f"there are two plugins of the name {plugin.name}")
        found[plugin.name] = ServedPlugin(plugin)
    return tuple(found.values())
