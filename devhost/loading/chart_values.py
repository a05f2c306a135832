"""What the chart's values allow a configuration to use: the flags that the chart makes of them."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from devhost.allocation.policy import Policy, device_glob_problem, path_glob_problem
from devhost.loading.spelling import did_you_mean
from devhost.loading.syntax_error import TreeError
from devhost.loading.wrong_shapes import shown
from devhost.loading.yamltree import Path, Tree

_GLOBS: Final[dict[str, Callable[[str], str | None]]] = {
    "paths": path_glob_problem,
    "devices": device_glob_problem,
    **dict.fromkeys(("resources", "cdi", "annotations", "env"), lambda _: None),
}
_KEYS: Final = (*_GLOBS, "exec")


def allowed(tree: Tree, places: Iterable[Path]) -> Policy:
    """Return what the values at some places allow; each replaces keys of those before it.

    Raises:
        TreeError: The chart would not take them.
    """
    found: dict[str, Any] = {}
    for place in places:
        values = tree.value(place).get("allow")
        path: Path = (*place, "allow")
        if values is None:
            continue
        if not isinstance(values, dict):
            raise _error(tree, path, "should be a mapping")
        for key, value in values.items():
            if value is None:  # Helm removes the key
                found.pop(f"allow_{key}", None)
            else:
                found[f"allow_{key}"] = _checked(tree, (*path, key), key, value)
    return Policy(**found)


def _checked(tree: Tree, path: Path, key: str, value: Any) -> Any:
    if key not in _KEYS:
        hint = did_you_mean(key, _KEYS) or f"; known keys: {', '.join(_KEYS)}"
        raise _error(tree, path, f"unknown key '{key}'{hint}", on_key=True)
    if key == "exec":
        if not isinstance(value, bool):
            raise _error(tree, path, "should be true or false")
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _error(tree, path, "should be a list of strings")
    for index, glob in enumerate(value):
        if (problem := _GLOBS[key](glob)) is not None:
            raise _error(tree, (*path, index), problem)
    return tuple(value)


def _error(tree: Tree, path: Path, message: str, *, on_key: bool = False) -> TreeError:
    at = tree.position(path)
    message = f"{shown(path)}: {message}"
    return TreeError(message, *(at.key if on_key else (at.line, at.column)))
