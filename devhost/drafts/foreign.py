"""Finds the settings of other device plugins in a file, whatever the file is.

It may be the plugin's own file, a manifest that has it in a ConfigMap or as arguments of a
container, or values of a chart. The search looks only at how the settings themselves look.
"""

from collections.abc import Iterator
from typing import Any, Final

from devhost.immutable import immutable
from devhost.loading import yamltree
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Extent, Path, Tree

_TEXTS_MAX: Final = 4  # texts in texts, such as in the values of a ConfigMap of a List
_FLAG: Final = "--device"


@immutable
class GenericDevices:
    """Devices of generic-device-plugin: the mappings with ``name`` and ``groups``."""

    devices: tuple[Any, ...]
    domain: str | None = None


@immutable
class SmarterDevices:
    """Devices of smarter-device-manager: the mappings with ``devicematch``."""

    devices: tuple[dict[str, Any], ...]


Foreign = GenericDevices | SmarterDevices


def found(text: str) -> list[Foreign]:
    """Return the settings of other plugins in a text.

    Scalars stay as they are written: 0403 is no number here.

    Raises:
        TreeError: It is not YAML, or too large or too deep.
    """
    lines = map(str.strip, text.splitlines())
    if not any(line and not line.startswith("#") for line in lines):
        return []
    extent = Extent()
    documents = yamltree.parse_all(text, extent)
    return [one for tree in documents for one in _below(_written(tree), 0, extent)]


def _written(tree: Tree) -> Any:
    """Return the values of a document with scalars as they are written."""

    def written(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: written(one, (*path, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [written(one, (*path, index)) for index, one in enumerate(value)]
        return tree.position(path).text or ""

    return written(tree.data, ())


def _below(value: Any, depth: int, extent: Extent) -> Iterator[Foreign]:
    match value:
        case dict():
            for key, one in value.items():
                if key in ("devices", "device") and _all(one, "groups"):
                    yield GenericDevices(tuple(one), value.get("domain") or None)
                else:
                    yield from _below(one, depth, extent)
        case list() if _all(value, "devicematch"):
            yield SmarterDevices(tuple(value))
        case list():
            yield from _arguments([one for one in value if isinstance(one, str)])
            for one in value:
                if not isinstance(one, str):
                    yield from _below(one, depth, extent)
        case str() if "\n" in value and depth < _TEXTS_MAX:  # such as in a ConfigMap
            yield from _embedded(value, depth + 1, extent)


def _embedded(text: str, depth: int, extent: Extent) -> Iterator[Foreign]:
    if any(word in text for word in ("devicematch", "groups", _FLAG)):
        document = _parsed(text, extent)
        if not isinstance(document, str):
            yield from _below(document, depth, extent)


def _parsed(text: str, extent: Extent | None = None) -> Any:
    """Return a text's values, or the text if it is not YAML."""
    try:
        return _written(yamltree.parse(text, extent))
    except TreeError:
        return text


def _all(value: Any, key: str) -> bool:
    """Whether it is a list of mappings that have a key."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and key in one for one in value)
    )


def _arguments(words: list[str]) -> Iterator[GenericDevices]:
    """Yield the devices in the arguments of a container."""
    devices, domain, rest = [], None, iter(words)
    for word in rest:
        flag, separator, value = word.partition("=")
        if flag in (_FLAG, "--domain") and not separator:
            value = next(rest, "")
        if flag == _FLAG:
            devices.append(_device(value))
        elif flag == "--domain":
            domain = value
    if devices:
        yield GenericDevices(tuple(devices), domain)


def _device(text: str) -> Any:
    """Return a device of the command line: YAML, or of old versions NAME,PATH,PATH."""
    device = _parsed(text)
    if isinstance(device, str) and "," in device:
        name, *paths = device.split(",")
        return {"name": name, "groups": [{"paths": [{"path": path}]} for path in paths]}
    return device
