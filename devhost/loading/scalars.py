"""What YAML makes of a scalar: its type, and its value of that type."""

import re
from functools import lru_cache
from typing import Any, Final

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"
STRING: Final = "tag:yaml.org,2002:str"
_DEFAULT: Final = "tag:yaml.org,2002:value"

# No number or date is longer; sexagesimal numbers take quadratic time.
LENGTH_MAX: Final = 1000

_PREFIX: Final = "tag:yaml.org,2002:"
_INT: Final = f"{_PREFIX}int"
_PLAIN: Final = re.compile("[-+]?(0+|[1-9][0-9]*|0x[0-9a-fA-F]+)")
_READ: Final = frozenset(
    f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "timestamp", "binary")
)
_RESOLVER: Final = yaml.resolver.Resolver()


def tag(given: str | None, text: str, implicit: tuple[bool, bool]) -> str:
    """Return the type of a scalar: that which it bears, else what its text looks like.

    Raises:
        ValueError: It bears one that is not YAML's own.
    """
    if given == "!":
        return STRING
    if given and not given.startswith(_PREFIX):
        raise ValueError(
            f"the tag {given!r} is not supported; a text that begins with '!' must be quoted"
        )
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
    """Return what a scalar stands for.

    A whole number that YAML 1.2, and so many an editor, reads as another one or as a text (010,
    1:30, 1_000, 0b1) is a float, which is nowhere right.

    Raises:
        ValueError: The text is none of its type, or there is no such type.
    """
    if tag in (STRING, MERGE, _DEFAULT):  # the latter two, "<<" and "=", mean more as a key
        return text
    if tag in _READ and len(text) <= LENGTH_MAX:
        try:
            node = yaml.ScalarNode(tag, text)
            found = yaml.constructor.SafeConstructor().construct_object(node)
            return float(found) if tag == _INT and not _PLAIN.fullmatch(text) else found
        except (ArithmeticError, ValueError, LookupError, AttributeError, TypeError):
            pass  # a forced type (!!int b) fails in as many ways as PyYAML has constructors
        except yaml.YAMLError:
            pass
    raise ValueError(f"{text!r} cannot be read; quote it")
