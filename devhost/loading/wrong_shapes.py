"""Messages for values of the wrong shape: what is wrong and what would be right."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from devhost.loading.characters import odd_character
from devhost.loading.unknown_keys import keys_of, model_at, unknown_key
from devhost.loading.yamltree import Path, Position, Tree
from devhost.model.names import printable
from devhost.model.spelling import did_you_mean
from devhost.model.template import TemplateError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Found = tuple[Path, str, tuple[int, int]]

_KEY_MAX: Final = 400  # longer than any valid key

# The keys whose values may be templates.
_TEMPLATES: Final = (
    *("id", "group", "value", "hostPath", "containerPath", "devices", "mounts", "cdi"),
    *("run", "exec", "waitFor"),
)
_SPECIAL: Final = frozenset("[]{},\"'")  # in lists between brackets
_NO_SPACE: Final = re.compile(r"[A-Za-z]\w*:(?=[^\s/])")
_EQUALS: Final = re.compile(r"([A-Za-z]\w*) *=")
_LIMITS: Final = {"greater_than_equal": "at least", "less_than_equal": "at most"}
_BOOLEANS: Final = ("true", "false", "yes", "no", "on", "off")
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "int_type": "an integer",
    "model_type": "a mapping",
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


def tree_problems(tree: Tree) -> Iterator[Found]:
    """Yield duplicate keys, keys that are not strings, and keys without a value."""
    for duplicate in tree.duplicates:
        yield duplicate.path, duplicate.message, (duplicate.line, duplicate.column)
    for path, text, line, column in tree.non_string_keys:
        if _ignored(path):
            continue
        if text == "?":
            message = (
                "keys must be strings; write \"${name}\" for a template ('{{ }}' is Helm's syntax)"
            )
        else:
            message = f'key {text} is not a string in YAML; quote it: "{text}"'
        yield path, message, (line, column)
    yield from _nulls(tree.data, (), tree)


def _ignored(path: Path) -> bool:
    return bool(path) and str(path[0]).startswith("x-")


def _nulls(value: Any, path: Path, tree: Tree) -> Iterator[Found]:
    if _ignored(path):
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
        elif " " in key:
            message = f"has no value; missing ':' after '{key.partition(' ')[0]}'"
        yield path, message, tree.position(path).key


def _bare_name(path: Path, tree: Tree) -> str:
    """Return the name in ``{name}`` where a template is allowed: its ``$`` is missing."""
    value, keys = tree.value(path), [part for part in path if isinstance(part, str)]
    if not isinstance(value, dict) or [*value.values()] != [None] or not keys:
        return ""
    (name,), position = value, tree.position(path)
    in_braces = (position.line, position.column) != tree.position((*path, name)).key
    template = keys[-1] in _TEMPLATES or keys[-2:-1] in (["env"], ["annotations"])
    named = name.isidentifier() and name not in keys_of(model_at((*path, name)))
    return name if in_braces and template and named else ""


def shape_problems(
    found: "Sequence[ErrorDetails]",
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
        if details["type"] == "unexpected_keyword_argument":
            full = (*base, *details["loc"])
            path = tree.known(full)
            if _bare_name(path[:-1], tree):
                continue
            if (unknown := unknown_key(full, tree, reported)) is not None:
                hint, key = unknown
                meant.add((*full[:-1], key))
                yield path, f"unknown key '{full[-1]}'{hint}", tree.position(path).key
    for details in found:
        full = (*base, *details["loc"])
        path = tree.known(full)
        if details["type"] == "unexpected_keyword_argument" or {full, full[:-1]} & meant:
            continue
        if details["type"] == "too_short" and details["input"]:
            continue  # its items have errors of their own
        if path not in reported and path not in around:
            position = tree.position(path)
            column = position.column + _template_offset(details, position)
            odd = odd_character(position.text or "")
            message = odd[1] if odd else shape_message(details, path, position)
            yield path, message, (position.line, column + (odd[0] if odd else 0))


def _template_offset(details: "ErrorDetails", position: Position) -> int:
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, TemplateError) or not position.verbatim:
        return 0
    return error.offset + (0 if position.plain else 1)


def shape_message(details: "ErrorDetails", path: Path, position: Position) -> str:
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
    if isinstance(given, str) and (better := _of_string(kind, given, path)):
        return better
    match kind, given:
        case "tuple_type", int() | float() if path[-1:] == ("id",):
            return f", or a string with a variable, not {given}; write ${{name}}"
        case "int_type", str() if given.isdecimal():
            return f"; remove the quotes of '{given}'"
        case "bool_type", str() if given in _BOOLEANS:
            return f"; remove the quotes of '{given}'"
        case "tuple_type", str():
            return f", not a string; write {_as_list(path, given)}"
        case "tuple_type", dict():
            return ", not a mapping; begin each item with '- '"
        case "string_type", list() if path[-3:-2] == ("sources",):
            return ", not a list; write a source for each"
        case _, list() if not path:
            return " with 'version: v1' and 'resources:', not a list"
        case _, list() if path[-1:] in (("env",), ("annotations",)):
            return f", not a list; write {_first_name(given)}: …"
    return ""


def _of_string(kind: str, given: str, path: Path) -> str:
    """Return what to write instead of a string that should be a list or mapping."""
    if "preStart" in path[-2:] and kind in ("tuple_type", "dataclass_type"):
        step = f"{{run: [{', '.join(given.split())}]}}"
        return f", not a string; write {f'[{step}]' if kind == 'tuple_type' else step}"
    if kind == "dataclass_type" and (equals := _EQUALS.match(given)):
        return f", not a string; write '{equals[1]}:', not '{equals[0]}'"
    if kind in ("dict_type", "dataclass_type") and (joined := _NO_SPACE.match(given)):
        return f", not a string; missing space after '{joined[0]}'"
    if kind == "dataclass_type" and path[-1:] == ("file",):
        return f", not a string; write {{path: {given}, matches: …}}"
    if kind == "tuple_type" and given.startswith("-"):
        return "; missing space after '-'"
    if kind == "dict_type" and path[-1:] in (("env",), ("annotations",)) and "=" in given:
        name, _, value = given.partition("=")
        return f", not a string; write {name.strip()}: {value.strip()}"
    return ""


def _as_list(path: Path, text: str) -> str:
    """Return a string as the list to write instead; a command is split into its arguments."""
    command = path[-1:] in (("run",), ("exec",), ("command",))
    if command:
        return "[COMMAND, ARGUMENT]" if set(text) & _SPECIAL else f"[{', '.join(text.split())}]"
    if text.startswith("[") and text.endswith("]"):
        return f"{text}, without quotes"
    if set(text) & (_SPECIAL - {","}):
        return f'["{text}"]'
    return f"[{', '.join(text.splitlines())}]"


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
