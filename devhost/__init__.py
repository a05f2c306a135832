"""devhost: a configuration-driven Kubernetes device plugin host, and a library.

The names below are the library; docs/library.md shows how a plugin is written with them.
They are imported when they are used, so that ``import devhost`` itself costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from devhost.library.device import Device
    from devhost.library.plugin import DevicePlugin
    from devhost.library.process import serve
    from devhost.model.allocation import Allocation, DeviceSpec, MountSpec

__version__ = "0.1.0"
__all__ = ["Allocation", "Device", "DevicePlugin", "DeviceSpec", "MountSpec", "serve"]

_HOMES: Final = {
    "Allocation": "devhost.model.allocation",
    "Device": "devhost.library.device",
    "DevicePlugin": "devhost.library.plugin",
    "DeviceSpec": "devhost.model.allocation",
    "MountSpec": "devhost.model.allocation",
    "serve": "devhost.library.process",
}

if not TYPE_CHECKING:  # else a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'devhost' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
