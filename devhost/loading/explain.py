"""What is wrong with a value's shape, in words that say what would be right."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Path, Place, Tree
from devhost.model import allocate, config, sources
from devhost.model.mapping import Model
from devhost.model.names import printable
from devhost.model.template import TemplateError

Found = tuple[Path, str, tuple[int, int]]

# A hint takes time that grows with both.
_HINT_LENGTH_MAX: Final = 100
_HINT_WORDS_MAX: Final = 100
_KEY_MAX: Final = 400  # more than any key that is right has
_MESSAGE_MAX: Final = 1000

# Which mapping stands below which key.
_BELOW: Final[dict[str, type[Model]]] = {
    "sources": sources.Source,
    "directory": sources.Directory,
    "glob": sources.Glob,
    "dev": sources.Dev,
    "static": sources.Static,
    "allocate": allocate.Allocate,
    "env": allocate.Text,
    "annotations": allocate.Text,
    "devices": allocate.DeviceNode,
    "mounts": allocate.Mount,
    "health": config.HealthChecks,
    "checks": config.Probe,
    "file": config.FileCheck,
    "preStart": config.Step,
    "resources": config.Resource,
}
# Below which keys a template may stand.
_TEMPLATES: Final = (
    *("id", "group", "value", "hostPath", "containerPath", "devices", "mounts", "cdi"),
    *("run", "exec", "waitFor"),
)
# What Kubernetes calls it.
_OTHER_WORDS: Final = {"mountPath": "containerPath"}
_PLANNED_KINDS: Final = ("usb", "pci", "sysfs", "exec")
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "model_type": "a mapping",
    "string_type": "a string",
    "tuple_type": "a list",
}


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


def brief(message: str) -> str:
    """Return a message as one line of bearable length, whatever the file's texts in it hold."""
    if len(message) > _MESSAGE_MAX:
        half = _MESSAGE_MAX // 2
        message = f"{message[:half]} … {message[-half:]}"
    return printable(message)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the word that is nearest, or nothing."""
    words = list(words)
    if len(word) > _HINT_LENGTH_MAX or len(words) > _HINT_WORDS_MAX:
        return ""
    import difflib  # noqa: PLC0415 (a file without mistakes needs no hints)

    words = [other for other in words if len(other) <= _HINT_LENGTH_MAX]
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def tree_problems(tree: Tree) -> Iterator[Found]:
    """Yield what no configuration may hold anywhere: duplicate and odd keys, missing values."""
    for duplicate in tree.duplicates:
        message = f"the key stands twice: first in line {duplicate.first_line}"
        yield duplicate.path, message, (duplicate.line, duplicate.column)
    for path, text, line, column in tree.odd_keys:
        if text == "?":
            message = "a key must be a text; '{{ }}' is Helm's, a template here is \"${name}\""
        else:
            message = f'YAML reads the key {text} as no text; quote it: "{text}"'
        yield path, message, (line, column)
    yield from _nulls(tree.data, (), tree)


def _nulls(value: Any, path: Path, tree: Tree) -> Iterator[Found]:
    if len(path) == 1 and str(path[0]).startswith("x-"):
        return
    if name := _bare_name(path, tree):
        place = tree.place(path)
        yield path, f"a template has a '$': write \"${{{name}}}\"", (place.line, place.column)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, (*path, key), tree)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nulls(inner, (*path, index), tree)
    elif value is None and path:
        key = str(path[-1])
        message = "has no value: give it one, or remove it"
        if ":" in key:
            message = f"has no value: write a space after the ':' of '{key.partition(':')[0]}:'"
        yield path, message, tree.place(path).key


def manifest_problem(tree: Tree) -> TreeError | None:
    """Return what is wrong with a file that is a manifest: nothing of what it holds counts."""
    if not isinstance(tree.data, dict) or not {"apiVersion", "kind"} <= tree.data.keys():
        return None
    message = (
        "this is a Kubernetes manifest: the configuration is what stands below the key of a "
        "ConfigMap's `data`, as a file of its own"
    )
    return TreeError(message, *tree.place(("apiVersion",)).key)


def _bare_name(path: Path, tree: Tree) -> str:
    """Return the name in ``{name}``, where a template may stand that lacks its ``$``."""
    value, keys = tree.value(path), [part for part in path if isinstance(part, str)]
    if not isinstance(value, dict) or [*value.values()] != [None] or not keys:
        return ""
    (name,), place = value, tree.place(path)
    in_braces = (place.line, place.column) != tree.place((*path, name)).key
    template = keys[-1] in _TEMPLATES or keys[-2:-1] in (["env"], ["annotations"])
    named = name.isidentifier() and name not in _keys(_model_at((*path, name)))
    return name if in_braces and template and named else ""


def shape_problems(
    error: ValidationError, base: Path, tree: Tree, said: set[Path], around: set[Path]
) -> Iterator[Found]:
    """Yield what a failed validation found.

    Args:
        error: What the validation says.
        base: Where the value stands that was validated.
        tree: The document.
        said: Paths of which something has been said already: nothing is, again.
        around: The paths that each of these is directly below: nothing is said of them, either.
    """
    for details in error.errors(include_url=False):
        path = known((*base, *details["loc"]), tree)
        if details["type"] == "extra_forbidden":
            yield from _unknown_key((*base, *details["loc"]), tree, said)
        elif details["type"] == "too_short" and details["input"]:
            continue  # what is in it failed, and is reported by itself
        elif path not in said and path not in around:
            place = tree.place(path)
            offset = _template_offset(details, place)
            yield path, _message(details, path, place), (place.line, place.column + offset)


def known(path: Path, tree: Tree) -> Path:
    """Drop what stands in no file: a shorthand's option, and tags of unions."""
    kept: Path = ()
    for part in path:
        if (*kept, part) in tree.places:
            kept = (*kept, part)
    return kept


def _unknown_key(full: Path, tree: Tree, said: set[Path]) -> Iterator[Found]:
    """Say what an unknown key may have meant; ``full`` is its path with shorthands written out."""
    key, path = str(full[-1]), known(full, tree)
    if (path in said and ":" in key) or _bare_name(path[:-1], tree):
        return
    model, present = _model_at(full), tree.value(path[:-1])
    keys = _keys(model)
    absent = [other for other in keys if other not in present]
    if model is sources.Source and key in _PLANNED_KINDS:
        hint = ": a source of this kind is not supported by this version"
    elif _OTHER_WORDS.get(key) in absent:
        hint = f"; did you mean '{_OTHER_WORDS[key]}'?"
    else:
        near = [*filter(keys.__contains__, present), *keys]
        hint = (
            _belongs(key, near)
            or did_you_mean(key, absent)
            or _belongs(key, [other for other in _BELOW if other not in {*full, "file", "checks"}])
            or f"; known are {', '.join(keys)}"
        )
    yield path, f"unknown key '{key}'{hint}", tree.place(path).key


def _model_at(path: Path) -> type[Model]:
    # "mapping" is a tag of the union of checks.
    parents = [part for part in path[:-1] if isinstance(part, str) and part != "mapping"]
    if not parents:
        return config.Config
    if len(parents) > 1 and parents[-2] in ("env", "annotations"):
        return allocate.Text
    return _BELOW.get(parents[-1], config.Config)


def _keys(model: type[Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _belongs(key: str, parents: Iterable[str]) -> str:
    for parent in parents:
        if parent in _BELOW and key in _keys(_BELOW[parent]):
            return f"; it belongs below '{parent}'"
    return ""


def _template_offset(details: ErrorDetails, place: Place) -> int:
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, TemplateError) or not place.verbatim:
        return 0
    return error.offset + (0 if place.plain else 1)


def _message(details: ErrorDetails, path: Path, place: Place) -> str:
    kind, given = details["type"], details["input"]
    message = details["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"needs '{details['loc'][-1]}'"
    if kind == "literal_error":
        expected = details["ctx"]["expected"]
        options = expected.replace("'", "").replace(" or ", ", ").split(", ")
        if not isinstance(given, str):
            return f"should be {expected}{_instead(given, place)}"
        return f"'{given}' should be {expected}{did_you_mean(given, options)}"
    if kind in _EXPECTED:
        message = f"should be {_EXPECTED[kind]}"
        if path[-1:] in (("env",), ("annotations",)) and isinstance(given, list):
            return f"{message}, not a list: write {_first_name(given)}: …"
        if kind == "int_type" and isinstance(given, str) and given.isdecimal():
            return f"{message}: remove the quotes of '{given}'"
    if kind == "too_short":
        return "needs at least one"
    if message == "should be a string" or kind == "string_type":
        return message + _read_as(given, place)
    if message.startswith("should be"):
        return message + _instead(given, place)
    return message[0].lower() + message[1:] if kind != "value_error" else message


def _first_name(items: list[Any]) -> str:
    """Return the name in Kubernetes' form of a list: ``- name: A``."""
    name = items[0].get("name") if items and isinstance(items[0], dict) else None
    return name if isinstance(name, str) else "NAME"


def _instead(given: Any, place: Place) -> str:
    if isinstance(given, dict):
        return ", not a mapping"
    if isinstance(given, list):
        return ", not a list"
    return f", not '{given if place.text is None else place.text}'"


def _read_as(given: Any, place: Place) -> str:
    """Say what YAML made of a plain text, and how to keep it a text."""
    if isinstance(given, dict | list) or place.text is None or not place.plain:
        return _instead(given, place)
    what = {"bool": "the truth value", "int": "the number", "float": "the number"}.get(
        type(given).__name__, "the date"
    )
    value = str(given).lower() if isinstance(given, bool) else given
    if isinstance(given, float) and given.is_integer():
        value = int(given)
    same = "" if str(value) == place.text else f" {value}"
    if same:
        return f': YAML reads {place.text} as {what}{same}; quote it: "{place.text}"'
    return f': {place.text} is {what} {value} to YAML; quote it: "{place.text}"'
