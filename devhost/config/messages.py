"""Messages and positions for what is wrong with a file's shape: errors of YAML and of pydantic."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic_core import ErrorDetails

from devhost.allocation.variables import BUILT_IN_VARIABLES
from devhost.config.foreign_words import explain_key, explain_template, translate_key
from devhost.config.yaml_errors import LOOKALIKE, LOOKS_ALIKE
from devhost.config.yaml_tree import CheckProblem, Path, Position, Tree, error
from devhost.model.config import Config, Resource
from devhost.model.sources import Source
from devhost.model.spelling import did_you_mean
from devhost.model.template import TemplateError
from devhost.model.values import ConfigModel, key_of, permissions_problem

_ALIKE: Final = 0.75  # how alike keys are of which one is meant by the other, from 0 to 1
_OF_SHELLS: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"})
_PLAIN: Final = re.compile(r"-*[A-Za-z/][\w./=+-]*")  # a string without quotes
# What is right, by the type of pydantic's error.
_EXPECTED: Final = {
    "bool_type": "should be true or false",
    "dict_type": "should be a mapping",
    "greater_than_equal": "should be at least {ge}",
    "int_type": "should be an integer in plain digits",
    "less_than_equal": "should be at most {le}",
    "literal_error": "should be {expected}",
    "model_type": "should be a mapping",
    "string_type": "should be a string",
    "too_short": "needs at least one item",
    "tuple_type": "should be a list",
}


def path_text(path: Path) -> str:
    """Return a path as people write it: ``resources[0].allocate.env``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        text += f".{part}" if text else part
    return text


def tree_problems(tree: Tree) -> Iterator[CheckProblem]:
    """Yield duplicate keys, keys that are not strings, and keys without a value."""
    yield from tree.problems
    yield from _nulls(tree.data, (), tree)


def _nulls(value: Any, path: Path, tree: Tree) -> Iterator[CheckProblem]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nulls(inner, (*path, key), tree)
    elif value is None:
        around, hint, at = tree.value(path[:-1]), "", tree.position(path).key
        model = _model_at(path[:-1])  # that of the resource also for a template in it
        is_option = model is not Resource and path[-1] in _keys_of(model)
        in_braces = isinstance(around, dict) and at != tree.position(path[:-1])[:2]
        if in_braces and len(around) == 1 and not is_option and not tree.position(path).text:
            hint = f"; missing '$' before a template; write \"${{{path[-1]}}}\""
        yield error(path, f"has no value{hint}", on_key=True)


def shape_problems(
    errors: Sequence[ErrorDetails],
    base: Path,
    tree: Tree,
    reported: set[Path],
    model: type[ConfigModel],
) -> Iterator[CheckProblem]:
    """Yield the errors of a failed validation of the value at a path by its model.

    Paths that are reported already, and those around them, get no other error.
    """
    around = {path[:-1] for path in reported}
    # Where a key is unknown, it may be what a missing one was meant to be.
    strange = {details["loc"][:-1] for details in errors if details["type"] == "extra_forbidden"}
    for details in errors:
        full = (*base, *details["loc"])
        path = tree.existing(full)
        if details["type"] == "extra_forbidden":
            if not {path, path[:-1]} & reported:
                message = f"unknown key '{full[-1]}'{_key_hint(full, base, tree, model)}"
                if LOOKALIKE.search(str(full[-1])):
                    message = LOOKS_ALIKE
                yield error(path, message, on_key=True)
            continue
        if details["type"] == "missing" and details["loc"][:-1] in strange:
            continue
        if details["type"] == "too_short" and details["input"]:
            continue  # its items have errors of their own
        if path in reported or path in around:
            continue
        cause, place = details.get("ctx", {}).get("error"), None
        at, on_key = tree.position(path), full[-1:] == ("[key]",)
        if isinstance(cause, TemplateError) and at.verbatim and not on_key:
            place = at.line, at.column + cause.offset + (0 if at.plain else 1)
        yield error(path, _shape_message(details, at), on_key, place)


def _shape_message(details: ErrorDetails, at: Position) -> str:
    """Return what is wrong with a value, and what would be right."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "missing":
        key = details["loc"][-1]
        return f"needs '{key}: v1'" if key == "version" else f"needs '{key}'"
    if value is None:
        return "has no value; remove the key, or set what belongs below it"
    message = details["msg"].removeprefix("Value error, ")
    if kind in _EXPECTED:
        message = _EXPECTED[kind].format(**context)
    note = explain_template(value, BUILT_IN_VARIABLES) if isinstance(value, str) else ""
    if note and "sources" not in details["loc"]:
        return f"{value!r} is not replaced; {note}"
    if at.plain and at.text and LOOKALIKE.search(at.text):
        return LOOKS_ALIKE
    if not message.startswith("should be"):
        return message
    if hint := _value_hint(details, message, at):
        return f"{message}; {hint}"
    if isinstance(value, dict | list):
        return f"{message}, not a {'mapping' if isinstance(value, dict) else 'list'}"
    return f"{message}, not '{value if at.text is None else at.text}'"


def _value_hint(details: ErrorDetails, message: str, at: Position) -> str:
    """Return what to write instead of a value of another type."""
    kind, value, path = details["type"], details["input"], details["loc"]
    if message == "should be a string" and at.plain and not isinstance(value, str):
        return _string_hint(value, path, str(at.text))
    match kind, value:
        case "int_type" | "bool_type", str() if value.isdecimal() or value in ("true", "false"):
            return f"remove the quotes of '{value}'"
        case "value_error", str() if path[-1] == "topology" and value.isdecimal():
            return f"remove the quotes of '{value}'"
        case "tuple_type", str() if path[-1] in ("run", "exec") and value.strip():
            return command_hint(value)
        case "tuple_type", str() | dict():
            return "begin each item with '- '"
        case "dict_type", list() if path[-1] in ("env", "annotations"):
            return "write NAME: value, without '- '"
        case "string_type" | "model_type", [str()] if "sources" in path:
            return "quote a string that begins with '['"
        case "model_type", str() if path[-2:-1] == ("preStart",):
            return f"for a command, below 'run' {command_hint(value)}"
    return ""


def _string_hint(value: Any, path: Path, text: str) -> str:
    """Return what to write instead of what is no string in YAML."""
    if isinstance(value, bool) and path[-1] == "group":
        return "write what its nodes share, such as ${usb.port}"
    if "dra" in path:
        return f"write backend: {'dra' if value is True else 'devicePlugin'}"
    if path[-1] == "permissions":
        return permissions_problem(text) or f'quote it: "{text}"'
    if {"pci", "device"}.issubset(path) and "." in text:
        return f'for an address, write address: "{text}"'
    return f'quote it: "{text}"'


def command_hint(text: str) -> str:
    """Return how to write a command that is one string."""
    if not _OF_SHELLS.isdisjoint(text.split()):
        return f"write [sh, -c, {json.dumps(text)}]; devhost's own image has no shell"
    words = (word if _PLAIN.fullmatch(word) else json.dumps(word) for word in text.split())
    return f"write [{', '.join(words)}]; there is no shell"


def _key_hint(full: Path, base: Path, tree: Tree, top: type[ConfigModel]) -> str:
    key, path = str(full[-1]), tree.existing(full)
    present, text = tree.value(path[:-1]), tree.position(path).text
    model = _model_at(full[len(base) : -1], top)
    if model is Source and key == "path" and text:
        return f"; write the path itself: - {text}"
    if note := explain_key(model.__name__, key):
        return f"; {note}"
    keys = _keys_of(model)
    absent = [name for name in keys if name not in present]
    if option := translate_key(key, absent):
        return f"; did you mean '{option}'?"
    owners = {place.keys: text for place in _places(model) if (text := place.explain(key))}
    any_kind = model is not Source or len(present) == len(owners) == 1
    if texts := [text for name, text in owners.items() if name in present or any_kind]:
        return texts[0]
    for depth in range(len(path) - 2, len(base) - 1, -1):
        beside, around = path[depth], _model_at(path[len(base) : depth], top)
        fits = beside in _keys_of(around) and not {beside, key}.issubset(around.one_of)
        if fits and key in _keys_of(around) and key not in tree.value(path[:depth]):
            return f"; it belongs beside '{beside}'"
    return did_you_mean(key, absent, _ALIKE) or f"; known keys: {', '.join(keys)}"


def _model_at(path: Path, root: type[ConfigModel] = Config) -> type[ConfigModel]:
    """Return the model of the mapping at a path; names of variables and indexes have none."""
    model = root
    for part in path:
        places = (place for place in _places(model) if place.keys == part)
        model = next(places, _Place("", model)).model
    return model


@functools.cache
def _keys_of(model: type[ConfigModel]) -> tuple[str, ...]:
    unexamined: tuple[str, ...] = getattr(model, "unexamined", ())
    return (*(key_of(model, name) for name in model.model_fields), *unexamined)


class _Place(NamedTuple):
    """Where mappings of a class are: at a key, in a list at it (tuple), or by name (dict)."""

    keys: str
    model: type[ConfigModel]
    container: object = None

    def explain(self, key: str) -> str:
        """Return how to write a key in such a mapping, if that may have it by itself."""
        if key not in _keys_of(self.model):
            return ""
        if self.container is None:
            return f"; it belongs below '{self.keys}'"
        choice = [key_of(self.model, name) for name in self.model.one_of]
        if choice and key not in choice:
            return ""
        required = (name for name, field in self.model.model_fields.items() if field.is_required())
        keys = dict.fromkeys([*(key_of(self.model, name) for name in required), key])
        mark = "- " if self.container is tuple else "NAME: "
        return f"; below '{self.keys}', write {mark}{{{', '.join(f'{name}: …' for name in keys)}}}"


@functools.cache
def _places(model: type[ConfigModel]) -> tuple[_Place, ...]:
    """Return where a mapping has others, of a resource also those in lists of its options."""
    places = [
        _Place(key_of(model, name), *inner)
        for name, field in model.model_fields.items()
        for inner in _models_in(field.annotation)
    ]
    for place in [place for place in places if model is Resource and place.container is None]:
        lists = (inner for inner in _places(place.model) if inner.container is tuple)
        places += [inner._replace(keys=f"{place.keys}.{inner.keys}") for inner in lists]
    return tuple(places)


def _models_in(
    annotation: Any, around: object = None
) -> Iterator[tuple[type[ConfigModel], object]]:
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        yield annotation, around
    around = origin if (origin := get_origin(annotation)) in (tuple, dict) else around
    for argument in get_args(annotation):
        yield from _models_in(argument, around)
