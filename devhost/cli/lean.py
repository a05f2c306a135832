"""What the commands do not load: they speak no TLS, compress nothing, and need no plugins.

OpenSSL alone is a tenth of the memory of a small `devhost run`. Programs that use devhost as a
library may need it, so this is for the command line alone.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Import what is used, and not what that would import for uses that we do not have."""
    # Else pydantic reads the metadata of every package, for plugins; it imports the reader anyway.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.modules.setdefault(_Metadata.NAME, _Metadata(_Metadata.NAME))
    # As in a Python that was built without these libraries: what uses them does without.
    with _without("ssl", "_hashlib", "bz2", "lzma"):
        for module in ("hashlib", "hmac", "shutil"):  # what is imported later needs them
            importlib.import_module(module)
        yield


@contextlib.contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let imports of modules fail that are not there yet; later ones find them."""
    left_out = [name for name in names if name not in sys.modules]
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules.update(dict.fromkeys(left_out))
    try:
        yield
    finally:
        for name in left_out:
            del modules[name]


class _Metadata(ModuleType):
    """Stands for `importlib.metadata` until something of it is used."""

    NAME: Final = "importlib.metadata"

    def entry_points(self, **parameters: str) -> object:
        """Do what the module's function does; pydantic imports it and does not call it."""
        return self._module.entry_points(**parameters)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks
            raise AttributeError(name)
        return getattr(self._module, name)

    @property
    def _module(self) -> Any:
        if sys.modules.get(self.NAME) is self:
            del sys.modules[self.NAME]
        return importlib.import_module(self.NAME)
