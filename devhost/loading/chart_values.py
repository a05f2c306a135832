"""What the chart's values allow a configuration to use: the flags that the chart makes of them."""

from collections.abc import Callable
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


def allowed(tree: Tree, base: Path, profile: Path = ()) -> Policy:
    """Return what the values at a place allow, or what one of their profiles does.

    Raises:
        TreeError: The chart would not take them.
    """
    found = _given(tree, base)
    if profile:  # replaces what it has
        found |= _given(tree, profile, in_profile=True)
    return Policy(**{f"allow_{key}": value for key, value in found.items()})


def _given(tree: Tree, place: Path, *, in_profile: bool = False) -> dict[str, Any]:
    values = tree.value(place)
    if "allow" not in values:
        return {}
    path: Path = (*place, "allow")
    tree.refuse_duplicates(path)
    if not isinstance(values["allow"], dict):
        raise _error(tree, path, "should be a mapping")
    found = {}
    for key, value in values["allow"].items():
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"; known keys: {', '.join(_KEYS)}"
            raise _error(tree, (*path, key), f"unknown key '{key}'{hint}", on_key=True)
        tree.refuse_duplicates((*path, key))
        if value is not None or in_profile:  # elsewhere, Helm removes what is null
            found[key] = _checked(tree, (*path, key), key, value)
    return found


def _checked(tree: Tree, path: Path, key: str, value: Any) -> Any:
    if key == "exec":
        if not isinstance(value, bool):
            raise _error(tree, path, "should be true or false")
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _error(tree, path, "should be a list of strings")
    for index, glob in enumerate(value):
        problem = _GLOBS[key](glob)
        if not glob or any(map(str.isspace, glob)):  # the flag's variable is split there
            problem = f"{glob!r} is empty or contains a space; '?' matches one"
        if problem is not None:
            raise _error(tree, (*path, index), problem)
    return tuple(value)


def _error(tree: Tree, path: Path, message: str, *, on_key: bool = False) -> TreeError:
    at = tree.position(path)
    message = f"{shown(path)}: {message}"
    return TreeError(message, *(at.key if on_key else (at.line, at.column)))
