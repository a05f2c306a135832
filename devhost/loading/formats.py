"""Whole files in another program's format: one error that says what it is."""

from typing import Any, Final

from devhost.loading.yamltree import Path, Tree

_BEGIN: Final = "begin with 'version: v1' and 'resources:'"
_CONVERT: Final = "'devhost convert FILE' translates it"
# What a file has that is in one of these formats: some of the keys of the mapping, of the items of
# a list, or of its devices.
_FORMATS: Final = (
    ({"devicematch"}, f"smarter-device-manager, not of devhost; {_CONVERT}"),
    ({"groups"}, f"generic-device-plugin, not of devhost; {_CONVERT}"),
    ({"domain", "devices"}, f"generic-device-plugin, not of devhost; {_CONVERT}"),
    ({"resourceList"}, f"the SR-IOV network device plugin, not of devhost: {_BEGIN}"),
    ({"sharing"}, f"NVIDIA's device plugin, not of devhost: {_BEGIN}"),
    ({"flags"}, f"NVIDIA's device plugin, not of devhost: {_BEGIN}"),
    ({"services"}, f"docker compose, not of devhost: {_BEGIN}"),
    ({"cdiVersion"}, f"the Container Device Interface, not of devhost: {_BEGIN}"),
)
_OWN: Final = frozenset({"version", "resources"})

Mistake = tuple[Path, str, tuple[int, int]]


def format_mistake(tree: Tree) -> Mistake | None:
    """Return the error for a file that is no configuration at all."""
    data, at = tree.data, tree.position(())
    here = (at.line, at.column)
    if not isinstance(data, dict | list):
        found = repr(data) if isinstance(data, str) and len(data) < 40 else "a single value"
        message = f"should be a mapping with 'version: v1' and 'resources:', not {found}"
        return (), message if data is not None else _needs("the file is empty"), (1, 1)
    if isinstance(data, dict) and isinstance(data.get("resources"), list):
        return None
    keys = _keys(data)
    for telling, program in _FORMATS:
        if telling <= keys:
            return (), f"this is the format of {program}", here
    if isinstance(data, dict):
        return None if _OWN & keys else _below(data, tree)
    message = "a list of resources: write it below 'resources:', after 'version: v1'"
    return ((), message, here) if "sources" in keys else None


def _below(data: dict[str, Any], tree: Tree) -> Mistake | None:
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


def _keys(data: dict[str, Any] | list[Any]) -> set[str]:
    """Return the keys of a mapping, or of the items of a list, and of `devices`."""
    keys = set[str](data) if isinstance(data, dict) else set[str]()
    items = data.get("devices") if isinstance(data, dict) else data
    for one in items if isinstance(items, list) else []:
        if isinstance(one, dict):
            keys |= one.keys()
        elif isinstance(one, str) and "groups:" in one:
            keys.add("groups")
    return keys


def _needs(what: str) -> str:
    return f"{what}; needs 'version: v1' and 'resources:'"
