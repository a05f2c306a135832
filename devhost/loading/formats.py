"""Whole files in another program's format: one error that says what it is."""

from collections.abc import Mapping
from typing import Any, Final

from devhost.loading.yamltree import Path, Tree

_BEGIN: Final = "begin with 'version: v1' and 'resources:'"
_CONVERT: Final = "'devhost convert FILE' translates it"
# Keys of which one is in every file of these formats.
_KEYS: Final = {
    "resourceList": "the SR-IOV network device plugin",
    "sharing": "NVIDIA's device plugin",
    "flags": "NVIDIA's device plugin",
    "services": "docker compose",
    "cdiVersion": "the Container Device Interface",
}
_OWN: Final = frozenset({"version", "resources"})

Mistake = tuple[Path, str, tuple[int, int]]


def format_mistake(tree: Tree) -> Mistake | None:
    """Return the error for a file that is no configuration at all."""
    data = tree.data
    if isinstance(data, list):
        return _list(data, tree)
    if not isinstance(data, dict):
        found = repr(data) if isinstance(data, str) and len(data) < 40 else "a single value"
        message = f"should be a mapping with 'version: v1' and 'resources:', not {found}"
        return (), message if data is not None else _needs("the file is empty"), (1, 1)
    if isinstance(data.get("resources"), list):
        return None
    if _is_generic(data):
        return _other("generic-device-plugin", tree)
    for key, program in _KEYS.items():
        if key in data:
            message = f"this is the format of {program}, not of devhost: {_BEGIN}"
            return (key,), message, tree.position((key,)).key
    if not _OWN & data.keys():
        return _below(data, tree)
    return None


def _list(items: list[Any], tree: Tree) -> Mistake | None:
    if any(isinstance(one, dict) and "devicematch" in one for one in items):
        return _other("smarter-device-manager", tree)
    if any(isinstance(one, dict) and "groups" in one for one in items):
        return _other("generic-device-plugin", tree)
    if any(isinstance(one, dict) and "sources" in one for one in items):
        at = tree.position(())
        message = "a list of resources: write it below 'resources:', after 'version: v1'"
        return (), message, (at.line, at.column)
    return None


def _is_generic(data: Mapping[str, Any]) -> bool:
    """Whether it is the format of generic-device-plugin: a file, or one of its devices."""
    if "name" in data and "groups" in data:
        return True
    devices = data.get("devices")
    if not isinstance(devices, list):
        return False
    return "domain" in data or any(
        "groups" in one if isinstance(one, dict) else isinstance(one, str) and "groups:" in one
        for one in devices
    )


def _other(program: str, tree: Tree) -> Mistake:
    at = tree.position(())
    message = f"this is the format of {program}, not of devhost; {_CONVERT}"
    return (), message, (at.line, at.column)


def _below(data: Mapping[str, Any], tree: Tree) -> Mistake | None:
    """Explain a mapping with neither a version nor resources."""
    if "sources" in data:
        at = tree.position(())
        message = "a resource: write it as an item of 'resources:', after 'version: v1'"
        return (), message, (at.line, at.column)
    for key, value in data.items():
        if isinstance(value, dict) and value.keys() >= _OWN:
            message = f"the configuration is below '{key}'; {_BEGIN}"
            return (key,), message, tree.position((key,)).key
        if isinstance(value, str) and "resources:" in value:
            message = f"the configuration is the text of '{key}'; it is a file of its own"
            return (key,), message, tree.position((key,)).key
    if any(key.lower() in ("version", "apiversion", "resource", "resources") for key in data):
        return None  # one of them is misspelt
    return (), _needs("not a configuration"), (1, 1)


def _needs(what: str) -> str:
    return f"{what}; needs 'version: v1' and 'resources:'"
