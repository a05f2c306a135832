"""Pydantic's errors, and what YAML alone gets wrong, in words and with positions in the file."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

from pydantic_core import ErrorDetails

from devhost.loading.syntax import odd_character
from devhost.loading.yamltree import Path, Position, Tree
from devhost.model.base import ConfigModel, key_of
from devhost.model.config import Config, Resource
from devhost.model.hardware import PciSelector, UsbSelector
from devhost.model.names import printable
from devhost.model.sources import Source
from devhost.model.spelling import did_you_mean, nearest
from devhost.model.template import TemplateError

Found = tuple[Path, str, tuple[int, int]]

_KEY_MAX: Final = 400  # longer than any valid key
# The keys whose values may be templates.
_TEMPLATES: Final = (
    *("id", "group", "value", "hostPath", "containerPath", "devices", "mounts", "cdi"),
    *("run", "exec", "waitFor"),
)
# What Kubernetes, docker and other device plugins call an option.
_SYNONYMS: Final = {
    "apiVersion": "version",
    "resource": "name",
    "resourceName": "name",
    "device": "sources",
    "devices": "sources",
    "groups": "sources",
    "path": "sources",
    "source": "sources",
    "count": "replicas",
    "limit": "maxDevices",
    "nodeSelector": "nodeNames",
    "environment": "env",
    "volumes": "mounts",
    "host": "hostPath",
    "mountPath": "containerPath",
    "target": "containerPath",
    "readOnly": "permissions",
    "command": "run",
    "periodSeconds": "interval",
    "failureThreshold": "failures",
}
_EXPECTED: Final = {
    "bool_type": "should be true or false",
    "dict_type": "should be a mapping",
    "int_type": "should be an integer",
    "model_type": "should be a mapping",
    # A mode: the other patterns have messages of their own.
    "string_pattern_mismatch": 'should be three or four octal digits, such as "0660"',
    "string_type": "should be a string",
    "too_short": "needs at least one item",
    "tuple_type": "should be a list",
}
_LIMITS: Final = {"greater_than_equal": "at least", "less_than_equal": "at most"}


def shown(path: Path) -> str:
    """Return a path as people write it: ``resources[0].allocate.env``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        key = part if len(part) <= _KEY_MAX else f"{part[:_KEY_MAX]}…"
        text += f".{key}" if text else key
    return printable(text)


def tree_problems(tree: Tree) -> Iterator[Found]:
    """Yield duplicate keys, keys that are not strings, and keys without a value."""
    for duplicate in tree.duplicates:
        yield duplicate.path, duplicate.message, (duplicate.line, duplicate.column)
    for path, text, line, column in tree.non_string_keys:
        if _ignored(path):
            continue
        message = f'key {text} is not a string in YAML; quote it: "{text}"'
        if text == "?":
            message = (
                "keys must be strings; write \"${name}\" for a template ('{{ }}' is Helm's syntax)"
            )
        yield path, message, (line, column)
    yield from _nulls(tree.data, (), tree)


def _ignored(path: Path) -> bool:
    return bool(path) and str(path[0]).startswith("x-")


def _nulls(value: Any, path: Path, tree: Tree) -> Iterator[Found]:
    if _ignored(path):
        return
    if name := _bare_name(path, tree):
        at = tree.position(path)
        message = f"missing '$' before a template; write \"${{{name}}}\""
        yield path, message, (at.line, at.column)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, (*path, key), tree)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nulls(inner, (*path, index), tree)
    elif value is None and path:
        key = str(path[-1])
        message = "has no value; set one or remove the key"
        if ":" in key:
            message = f"has no value; missing space after '{key.partition(':')[0]}:'"
        elif " " in key:
            message = f"has no value; missing ':' after '{key.partition(' ')[0]}'"
        yield path, message, tree.position(path).key


def _bare_name(path: Path, tree: Tree) -> str:
    """Return the name in ``{name}`` where a template is allowed: its ``$`` is missing."""
    value, keys = tree.value(path), [part for part in path if isinstance(part, str)]
    if not isinstance(value, dict) or [*value.values()] != [None] or not keys:
        return ""
    (name,), at = value, tree.position(path)
    in_braces = (at.line, at.column) != tree.position((*path, name)).key
    template = keys[-1] in _TEMPLATES or keys[-2:-1] in (["env"], ["annotations"])
    model = _model_at(path)
    is_option = model is not Resource and name in keys_of(model)
    return name if in_braces and template and not is_option else ""


def shape_problems(
    found: Sequence[ErrorDetails],
    base: Path,
    tree: Tree,
    reported: set[Path],
    around: set[Path],
) -> Iterator[Found]:
    """Yield the errors of a failed validation.

    Args:
        found: The errors.
        base: The path of the validated value.
        tree: The document.
        reported: Paths that already have an error, and get no other.
        around: The parents of these paths, which are not reported either.
    """
    meant: set[Path] = set()  # required keys that have another name
    for details in found:
        full = (*base, *details["loc"])
        path = tree.known(full)
        if details["type"] == "extra_forbidden" and not {path, path[:-1]} & reported:
            hint, key = _unknown_key(full, tree)
            meant.add((*full[:-1], key))
            yield path, f"unknown key '{full[-1]}'{hint}", tree.position(path).key
    for details in found:
        full = (*base, *details["loc"])
        path = tree.known(full)
        if details["type"] == "extra_forbidden" or {full, full[:-1]} & meant:
            continue
        if details["type"] == "too_short" and details["input"]:
            continue  # its items have errors of their own
        if path not in reported and path not in around:
            at = tree.position(path)
            error, offset = details.get("ctx", {}).get("error"), 0
            if isinstance(error, TemplateError) and at.verbatim:
                offset = error.offset + (0 if at.plain else 1)
            yield path, shape_message(details, at), (at.line, at.column + offset)


def shape_message(details: ErrorDetails, at: Position) -> str:
    """Return what is wrong with a value, and what would be right."""
    kind, given = details["type"], details["input"]
    message = _EXPECTED.get(kind) or details["msg"].removeprefix("Value error, ")
    if odd := odd_character(at.text or ""):
        return odd[1]
    if kind == "missing":
        key = details["loc"][-1]
        return f"needs '{key}: v1'" if key == "version" else f"needs '{key}'"
    if kind == "literal_error":
        expected = details["ctx"]["expected"]
        options = expected.replace("'", "").replace(" or ", ", ").split(", ")
        hint = did_you_mean(given, options) if isinstance(given, str) else ""
        return f"should be {expected}{_instead(given, at)}{hint}"
    if kind in _LIMITS:
        (limit,) = details["ctx"].values()
        return f"should be {_LIMITS[kind]} {limit}, not {given}"
    if not message.startswith("should be"):
        return message
    if message == "should be a string" and at.plain and not isinstance(given, str):
        what = {"bool": "boolean", "int": "number", "float": "number"}.get(type(given).__name__)
        return f'{message}: YAML reads {at.text} as a {what or "date"}; quote it: "{at.text}"'
    unquoted = {"int_type": str(given).isdecimal(), "bool_type": given in ("true", "false")}
    if unquoted.get(kind) and isinstance(given, str) and not at.plain:
        return f"{message}; remove the quotes of '{given}'"
    if kind == "tuple_type":
        return message + _instead_of_list(details["loc"], given, at)
    hint = "; write key: value" if "mapping" in message and isinstance(given, str) else ""
    return message + _instead(given, at) + hint


def _instead_of_list(path: Path, given: Any, at: Position) -> str:
    if isinstance(given, dict) or (isinstance(given, str) and given.startswith("-")):
        return f"{_instead(given, at)}; begin each item with '- '"
    if isinstance(given, str) and not set(given) & set("[]{},\"'") and path[-1:] != ("preStart",):
        return f", not a string; write [{', '.join(given.split())}]"
    return _instead(given, at)


def _instead(given: Any, at: Position) -> str:
    if isinstance(given, dict):
        return ", not a mapping"
    if isinstance(given, list):
        return ", not a list"
    return f", not '{given if at.text is None else at.text}'"


def _unknown_key(full: Path, tree: Tree) -> tuple[str, str]:
    """Explain an unknown key; ``full`` is its path with shorthands expanded.

    Returns:
        What to write instead, and the key that it means, if known.
    """
    key, path = str(full[-1]), tree.known(full)
    model, present, text = _model_at(full[:-1]), tree.value(path[:-1]), tree.position(path).text
    absent = [one for one in keys_of(model) if one not in present]
    if model is Source and text and text.startswith("/") and not nearest(key, absent):
        return f"; write the path itself: - {text}", ""
    if issubclass(model, UsbSelector | PciSelector) and "vendor" in key.lower():
        other = tree.position((*path[:-1], "product")).text if "product" in present else None
        return f'; write device: "{text}:{other or "*"}"', "product"
    if (meant := _SYNONYMS.get(key, "")) in absent:
        return f"; did you mean '{meant}'?", meant
    below = [name for name, one in _fields(model).items() if key in keys_of(one)]
    if owners := [one for one in below if one in present or model is not Source]:
        return f"; it belongs below '{owners[0]}'", ""
    if meant := nearest(key, absent):
        return f"; did you mean '{meant}'?", meant
    if owner := _owners().get(key):
        return f"; it belongs below '{owner}'", ""
    return f"; known keys: {', '.join(keys_of(model))}", ""


def _model_at(path: Path) -> type[ConfigModel]:
    """Return the model of the mapping at a path; names of variables and indexes have none."""
    model: type[ConfigModel] = Config
    for part in path:
        model = _fields(model).get(str(part), model)
    return model


@functools.cache
def keys_of(model: type[ConfigModel]) -> tuple[str, ...]:
    """Return the keys of a mapping."""
    return tuple(key_of(model, name) for name in model.model_fields)


@functools.cache
def _fields(model: type[ConfigModel]) -> dict[str, type[ConfigModel]]:
    """Return the models of a mapping's values, or of what is in these, by key."""
    return {
        key_of(model, name): one
        for name, field in model.model_fields.items()
        for one in _models(field.annotation)
    }


def _models(annotation: Any) -> Iterator[type[ConfigModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models(one)


@functools.cache
def _owners() -> dict[str, str]:
    """Return below which key each key is, of those that are below one alone."""
    owners: dict[str, set[str]] = {}
    left: list[type[ConfigModel]] = [Config]
    seen: set[type[ConfigModel]] = set()
    while left:
        for name, model in _fields(left.pop()).items():
            for key in keys_of(model):
                owners.setdefault(key, set()).add(name)
            if model not in seen:
                seen.add(model)
                left.append(model)
    return {key: names.pop() for key, names in owners.items() if len(names) == 1}
