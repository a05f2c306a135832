"""Keeps modules that the commands do not use out of memory: TLS, compression, package metadata.

OpenSSL alone is a tenth of the memory of a small `devhost run`. Programs that use devhost as a
library may need these modules, so only the command line does this.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Import modules without those of their dependencies that devhost does not use."""
    # Otherwise pydantic reads the metadata of every installed package to look for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.modules.setdefault(_LazyMetadata.NAME, _LazyMetadata(_LazyMetadata.NAME))
    # As if Python had been built without these libraries.
    with _unavailable("ssl", "_hashlib", "bz2", "lzma"):
        for module in ("hashlib", "hmac", "shutil"):  # modules that are imported later need them
            importlib.import_module(module)
        yield


@contextlib.contextmanager
def _unavailable(*names: str) -> Iterator[None]:
    """Make imports of modules fail if they are not loaded yet; afterwards they work again."""
    left_out = [name for name in names if name not in sys.modules]
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules.update(dict.fromkeys(left_out))
    try:
        yield
    finally:
        for name in left_out:
            del modules[name]


class _LazyMetadata(ModuleType):
    """Replaces `importlib.metadata` until one of its names is used."""

    NAME: Final = "importlib.metadata"

    def entry_points(self, **parameters: str) -> object:
        """Call the real function; pydantic imports it without calling it."""
        return self._module.entry_points(**parameters)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by the import system
            raise AttributeError(name)
        return getattr(self._module, name)

    @property
    def _module(self) -> Any:
        if sys.modules.get(self.NAME) is self:
            del sys.modules[self.NAME]
        return importlib.import_module(self.NAME)
