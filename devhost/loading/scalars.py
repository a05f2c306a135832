"""The type and value that YAML gives to a scalar."""

import re
from functools import lru_cache
from typing import Any, Final

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"
STRING: Final = "tag:yaml.org,2002:str"
_DEFAULT: Final = "tag:yaml.org,2002:value"

# No valid number or date is longer, and sexagesimal numbers take quadratic time.
LENGTH_MAX: Final = 1000

_PREFIX: Final = "tag:yaml.org,2002:"
_INT: Final = f"{_PREFIX}int"
_PLAIN: Final = re.compile("[-+]?(0+|[1-9][0-9]*|0x[0-9a-fA-F]+)")
_READ: Final = frozenset(
    f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "timestamp", "binary")
)
_RESOLVER: Final = yaml.resolver.Resolver()


def tag(given: str | None, text: str, implicit: tuple[bool, bool]) -> str:
    """Return the type of a scalar: its explicit tag, else the one that its text implies.

    Raises:
        ValueError: The explicit tag is not one of YAML's own.
    """
    if given == "!":
        return STRING
    if given and not given.startswith(_PREFIX):
        raise ValueError(f"unsupported tag {given!r}; quote a string that begins with '!'")
    if given or not implicit[0]:
        return given or STRING
    return _looks_like(text) if len(text) > _KEPT_LENGTH else _looks_like_kept(text)


def _looks_like(text: str) -> str:
    """Return the type of a scalar that is written without quotes."""
    return str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]


# A file has few keys, each many times.
_KEPT_LENGTH: Final = 64
_looks_like_kept: Final = lru_cache(maxsize=512)(_looks_like)


def value(tag: str, text: str) -> Any:
    """Return the value of a scalar.

    An integer that YAML 1.2 reads as another number or as a string (010, 1:30, 1_000, 0b1) becomes
    a float, which no option accepts: editors that use YAML 1.2 would show something else.

    Raises:
        ValueError: The text is not valid for the type, or there is no such type.
    """
    if tag in (STRING, MERGE, _DEFAULT):  # "<<" and "=" are special only as keys
        return text
    if tag in _READ and len(text) <= LENGTH_MAX:
        try:
            node = yaml.ScalarNode(tag, text)
            found = yaml.constructor.SafeConstructor().construct_object(node)
            return float(found) if tag == _INT and not _PLAIN.fullmatch(text) else found
        except (ArithmeticError, ValueError, LookupError, AttributeError, TypeError):
            pass  # PyYAML's constructors raise all of these for an explicit tag (!!int b)
        except yaml.YAMLError:
            pass
    name = tag.removeprefix(_PREFIX)
    if "/" in name:  # python/object
        raise ValueError(f"unsupported tag '!!{name}'")
    raise ValueError(f"{text!r} is not a valid {name}; quote it")
