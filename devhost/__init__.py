"""devhost: a configuration-driven Kubernetes device plugin host, and a library.

The names in ``__all__`` are the library, described in docs/library.md. They are imported on first
use, so that ``import devhost`` alone is cheap.
"""

TYPE_CHECKING = False  # `typing` is large, and until it is imported no signal is handled

if TYPE_CHECKING:
    from devhost.library.plugin import Device, DevicePlugin
    from devhost.library.serve import serve
    from devhost.model.allocation import Allocation, DeviceSpec, MountSpec

__version__ = "0.1.0"
__all__ = ["Allocation", "Device", "DevicePlugin", "DeviceSpec", "MountSpec", "serve"]

_HOMES = {
    "Allocation": "devhost.model.allocation",
    "Device": "devhost.library.plugin",
    "DevicePlugin": "devhost.library.plugin",
    "DeviceSpec": "devhost.model.allocation",
    "MountSpec": "devhost.model.allocation",
    "serve": "devhost.library.serve",
}

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'devhost' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 (as above)

        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
