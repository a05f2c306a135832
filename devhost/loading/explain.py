"""Messages for values of the wrong shape: what is wrong and what would be right."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Path, Position, Tree
from devhost.model import allocate, config, hardware, sources
from devhost.model.mapping import key_of
from devhost.model.names import printable
from devhost.model.template import TemplateError

Found = tuple[Path, str, tuple[int, int]]

# The time for a hint grows with both.
_HINT_LENGTH_MAX: Final = 100
_HINT_WORDS_MAX: Final = 100
_KEY_MAX: Final = 400  # longer than any valid key

# The model of the mapping below a key.
_BELOW: Final[dict[str, type]] = {
    "sources": sources.Source,
    "directory": sources.Directory,
    "glob": sources.Glob,
    "dev": sources.Dev,
    "static": sources.Static,
    "usb": hardware.Usb,
    "pci": hardware.Pci,
    "sysfs": hardware.Sysfs,
    "node": hardware.NodeChoice,
    "parent": hardware.ParentSelector,
    "allocate": allocate.Allocate,
    "env": allocate.Text,
    "annotations": allocate.Text,
    "devices": allocate.DeviceNode,
    "mounts": allocate.Mount,
    "health": config.HealthChecks,
    "exec": sources.Exec,
    "checks": config.Probe,
    "file": config.FileCheck,
    "preStart": config.Step,
    "resources": config.Resource,
}
# The keys whose values may be templates.
_TEMPLATES: Final = (
    *("id", "group", "value", "hostPath", "containerPath", "devices", "mounts", "cdi"),
    *("run", "exec", "waitFor"),
)
# What Kubernetes and other device plugins call an option: the keys of this language for it.
_SYNONYMS: Final = {
    "count": ("replicas",),
    "limit": ("maxDevices",),
    "mountPath": ("containerPath",),
    "nodeSelector": ("nodeNames",),
    "path": ("sources", "glob"),
    "periodSeconds": ("interval",),
    "readOnly": ("permissions",),
    "resource": ("name",),
    "resourceName": ("name",),
}
# Mappings whose keys nobody means elsewhere.
_OWN: Final = frozenset({"usb", "pci", "sysfs", "node", "parent"})
_HARDWARE: Final = (hardware.Usb, hardware.Pci, hardware.Sysfs, hardware.ParentSelector)
_LIMITS: Final = {"greater_than_equal": "at least", "less_than_equal": "at most"}
_BOOLEANS: Final = ("true", "false", "yes", "no", "on", "off")
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "int_type": "an integer",
    # A mode: the other patterns have messages of their own.
    "string_pattern_mismatch": 'three or four octal digits, such as "0660"',
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


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest word, or an empty string."""
    words = list(words)
    if len(word) > _HINT_LENGTH_MAX or len(words) > _HINT_WORDS_MAX:
        return ""
    import difflib  # noqa: PLC0415 (only needed for a file with errors)

    words = [other for other in words if len(other) <= _HINT_LENGTH_MAX]
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def tree_problems(tree: Tree) -> Iterator[Found]:
    """Yield duplicate keys, keys that are not strings, and keys without a value."""
    for duplicate in tree.duplicates:
        message = f"duplicate key (first defined on line {duplicate.first_line})"
        yield duplicate.path, message, (duplicate.line, duplicate.column)
    for path, text, line, column in tree.non_string_keys:
        if text == "?":
            message = (
                "keys must be strings; write \"${name}\" for a template ('{{ }}' is Helm's syntax)"
            )
        else:
            message = f'key {text} is not a string in YAML; quote it: "{text}"'
        yield path, message, (line, column)
    yield from _nulls(tree.data, (), tree)


def _nulls(value: Any, path: Path, tree: Tree) -> Iterator[Found]:
    if len(path) == 1 and str(path[0]).startswith("x-"):
        return
    if name := _bare_name(path, tree):
        position = tree.position(path)
        yield (
            path,
            f"missing '$' before a template; write \"${{{name}}}\"",
            (position.line, position.column),
        )
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
        yield path, message, tree.position(path).key


def manifest_problem(tree: Tree) -> TreeError | None:
    """Return the error for a file that is a Kubernetes manifest."""
    if not isinstance(tree.data, dict) or not {"apiVersion", "kind"} <= tree.data.keys():
        return None
    message = (
        "this is a Kubernetes manifest, not a devhost configuration; of a ConfigMap, use the "
        "value below `data` as the file (it begins with 'version: v1')"
    )
    return TreeError(message, *tree.position(("apiVersion",)).key)


def _bare_name(path: Path, tree: Tree) -> str:
    """Return the name in ``{name}`` where a template is allowed: its ``$`` is missing."""
    value, keys = tree.value(path), [part for part in path if isinstance(part, str)]
    if not isinstance(value, dict) or [*value.values()] != [None] or not keys:
        return ""
    (name,), position = value, tree.position(path)
    in_braces = (position.line, position.column) != tree.position((*path, name)).key
    template = keys[-1] in _TEMPLATES or keys[-2:-1] in (["env"], ["annotations"])
    named = name.isidentifier() and name not in _keys(_model_at((*path, name)))
    return name if in_braces and template and named else ""


def shape_problems(
    error: ValidationError, base: Path, tree: Tree, reported: set[Path], around: set[Path]
) -> Iterator[Found]:
    """Yield the errors of a failed validation.

    Args:
        error: The validation error.
        base: The path of the validated value.
        tree: The document.
        reported: Paths that already have an error, and get no other.
        around: The parents of these paths, which are not reported either.
    """
    for details in error.errors(include_url=False):
        path = known((*base, *details["loc"]), tree)
        if details["type"] == "unexpected_keyword_argument":
            yield from _unknown_key((*base, *details["loc"]), tree, reported)
        elif details["type"] == "too_short" and details["input"]:
            continue  # its items have errors of their own
        elif path not in reported and path not in around:
            position = tree.position(path)
            column = position.column + _template_offset(details, position)
            yield path, shape_message(details, path, position), (position.line, column)


def known(path: Path, tree: Tree) -> Path:
    """Drop the parts of a path that are not in the file: shorthands' options and union tags."""
    kept: Path = ()
    for part in path:
        if (*kept, part) in tree.positions:
            kept = (*kept, part)
    return kept


def _unknown_key(full: Path, tree: Tree, reported: set[Path]) -> Iterator[Found]:
    """Explain an unknown key; ``full`` is its path with shorthands expanded."""
    key, path = str(full[-1]), known(full, tree)
    if (path in reported and ":" in key) or _bare_name(path[:-1], tree):
        return
    model, present = _model_at(full), tree.value(path[:-1])
    keys = _keys(model)
    absent = [other for other in keys if other not in present]
    if model in _HARDWARE and (hint := _hardware_key(model, key, present)):
        pass
    elif synonym := next((one for one in _SYNONYMS.get(key, ()) if one in absent), None):
        hint = f"; did you mean '{synonym}'?"
    else:
        near = [*filter(present.__contains__, keys)]  # `present` may be huge
        near += (one for one in keys if one not in _OWN)
        hint = (
            _belongs(key, near)
            or did_you_mean(key, absent)
            or _belongs(
                key, [other for other in _BELOW if other not in {*full, *_OWN, "file", "checks"}]
            )
            or f"; known keys: {', '.join(keys)}"
        )
    yield path, f"unknown key '{key}'{hint}", tree.position(path).key


def _model_at(path: Path) -> type:
    # "mapping" is a tag of the union of health checks.
    parents = [part for part in path[:-1] if isinstance(part, str) and part != "mapping"]
    if not parents:
        return config.Config
    if len(parents) > 1 and parents[-2] in ("env", "annotations"):
        return allocate.Text
    return _BELOW.get(parents[-1], config.Config)


def _keys(model: type) -> list[str]:
    return [key_of(field.name) for field in fields(model)]


def _hardware_key(model: type, key: str, present: Any) -> str:
    """Return what to write instead of a key that other tools have for devices in sysfs."""
    if key in ("vendor", "idVendor", "vendorId"):
        numbers = (str(present.get(one, "")) for one in (key, "product", "productId", "idProduct"))
        digits = [one for one in numbers if len(one) == 4]
        return f"; write device: {':'.join(digits) if len(digits) == 2 else '0403:6001'}"
    if model in (hardware.ParentSelector, hardware.Sysfs) and key not in ("name", "class"):
        return f"; did you mean attr: {{{key}: …}}?"
    return ""


def _belongs(key: str, parents: Iterable[str]) -> str:
    for parent in parents:
        if parent in _BELOW and key in _keys(_BELOW[parent]):
            return f"; it belongs below '{parent}'"
    return ""


def _template_offset(details: ErrorDetails, position: Position) -> int:
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, TemplateError) or not position.verbatim:
        return 0
    return error.offset + (0 if position.plain else 1)


def shape_message(details: ErrorDetails, path: Path, position: Position) -> str:
    """Return what is wrong with a value, and what would be right."""
    kind, given = details["type"], details["input"]
    message = details["msg"].removeprefix("Value error, ")
    if kind == "missing":
        key = details["loc"][-1]
        return f"needs '{key}: v1'" if key == "version" else f"needs '{key}'"
    if kind == "literal_error":
        expected = details["ctx"]["expected"]
        options = expected.replace("'", "").replace(" or ", ", ").split(", ")
        if not isinstance(given, str):
            return f"should be {expected}{_instead(given, position)}"
        return f"'{given}' should be {expected}{did_you_mean(given, options)}"
    if kind in _LIMITS:
        (limit,) = details["ctx"].values()
        return f"should be {_LIMITS[kind]} {limit}, not {given}"
    if kind in _EXPECTED:
        message = f"should be {_EXPECTED[kind]}"
        if instead := _what_to_write(kind, given, path):
            return message + instead
    if kind == "too_short":
        return "needs at least one item"
    if message == "should be a string" or kind == "string_type":
        return message + _read_as(given, position)
    if message.startswith("should be"):
        return message + _instead(given, position)
    return message[0].lower() + message[1:] if kind != "value_error" else message


def _what_to_write(kind: str, given: Any, path: Path) -> str:
    """Return what to write instead of a value of the wrong type, where that is known."""
    match kind, given:
        case "int_type", str() if given.isdecimal():
            return f"; remove the quotes of '{given}'"
        case "bool_type", str() if given in _BOOLEANS:
            return f"; remove the quotes of '{given}'"
        case "tuple_type", str():
            return f", not a string; write {_as_list(path, given)}"
        case "tuple_type", dict():
            return ", not a mapping; begin each item with '- '"
        case _, list() if not path:
            return " with 'version: v1' and 'resources:', not a list"
        case _, list() if path[-1:] in (("env",), ("annotations",)):
            return f", not a list; write {_first_name(given)}: …"
    return ""


def _as_list(path: Path, text: str) -> str:
    """Return a string as the list to write instead; a command is split into its arguments."""
    command = path[-1:] in (("run",), ("exec",), ("command",))
    return f"[{', '.join(text.split()) if command else text}]"


def _first_name(items: list[Any]) -> str:
    """Return the name in a list in the form that Kubernetes uses: ``- name: A``."""
    name = items[0].get("name") if items and isinstance(items[0], dict) else None
    return name if isinstance(name, str) else "NAME"


def _instead(given: Any, position: Position) -> str:
    if isinstance(given, dict):
        return ", not a mapping"
    if isinstance(given, list):
        return ", not a list"
    return f", not '{given if position.text is None else position.text}'"


def _read_as(given: Any, position: Position) -> str:
    """Explain what YAML reads an unquoted string as, and how to write it as a string."""
    if isinstance(given, dict | list) or position.text is None or not position.plain:
        return _instead(given, position)
    what = {"bool": "boolean", "int": "number", "float": "number"}.get(type(given).__name__, "date")
    value = str(given).lower() if isinstance(given, bool) else given
    if isinstance(given, float) and given.is_integer():
        value = int(given)
    read = f"a {what}" if str(value) == position.text else f"the {what} {value}"
    return f': YAML reads {position.text} as {read}; quote it: "{position.text}"'
