"""Makes the values of valid mappings of the file by the marks of their classes, without pydantic.

To import pydantic and to have it build its validators takes more than half of the time of a small
file's load, and 15 MiB. So it is only asked about what is refused here (`devhost.loading.shapes`).
What is accepted here, it accepts too, and makes the same of it.
"""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from devhost.model.mapping import Before, Limits, Parsed, WordOrMapping, key_of

T = TypeVar("T")
Make = Callable[[Any], Any]


def valid(kind: type[T], value: object) -> T:
    """Return a mapping of the file as a value of a class of the model.

    Raises:
        ValueError: It is not valid, or its type is not known here.
    """
    found: T = _maker(kind)(value)  # type: ignore[arg-type]
    return found


@functools.cache
def _maker(kind: Any) -> Make:
    """Return what makes values of a type, or refuses them."""
    parts = get_args(kind)
    match get_origin(kind):
        case None if isinstance(kind, type) and is_dataclass(kind):
            return _mapping(kind)
        case None:
            return lambda value: value if kind is Any else _of(kind, value)
        case origin if origin is Annotated:
            return functools.reduce(_marked, parts[1:], _later(parts[0]))
        case origin if origin in (Union, UnionType):
            word, mapping = map(_later, parts)
            if parts[1] is NoneType:
                return lambda value: None if value is None else word(value)
            return lambda value: (mapping if isinstance(value, dict) else word)(value)
        case origin if origin is Literal:
            return lambda value: value if _of(str, value) in parts else _refuse()
        case origin if origin is tuple:
            item = _later(parts[0])
            return lambda value: tuple(map(item, _of(list, value)))
        case origin if origin is dict:
            name, inner = map(_later, parts)
            return lambda value: {name(key): inner(one) for key, one in _of(dict, value).items()}
    return _refuse


def _later(kind: Any) -> Make:
    """Return what makes values of a type, without building it before there are any."""
    return lambda value: _maker(kind)(value)  # noqa: PLW0108 (that builds it)


def _of(kind: type[T], value: object) -> T:
    """Return a value that is of a type and of none of its subclasses: True is an int."""
    return value if type(value) is kind else _refuse()


def _refuse(_value: object = None) -> Any:
    raise ValueError("is for pydantic to judge")


def _mapping(kind: type[Any]) -> Make:
    """Return what makes values of a class: of all keys that it needs and none that it lacks."""
    known = {key_of(one.name): (one.name, _later(one.type)) for one in fields(kind)}
    needed = {
        key_of(one.name)
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }

    def make(value: object) -> Any:
        given = _of(dict, value)
        if not needed <= given.keys() <= known.keys():
            _refuse()
        found = ((*known[key], one) for key, one in given.items())
        return kind(**{name: item(one) for name, item, one in found})

    return make


def _marked(make: Make, mark: object) -> Make:
    """Return what makes values of a type with one more mark."""
    match mark:
        case Before():
            return lambda value: make(mark.change(value))
        case Parsed():
            return mark.parse
        case WordOrMapping():
            return make
        case Limits():
            return lambda value: _limited(make(value), **mark.limits)
    return _refuse


def _limited(
    value: Any,
    *,
    ge: float = -math.inf,
    le: float = math.inf,
    min_length: int = 0,
    pattern: str | None = None,
    strict: bool = False,  # noqa: ARG001 (only of what is strict already, or a list here)
) -> Any:
    """Return a value that is within limits."""
    inside = (
        ge <= value <= le
        if type(value) is int
        else len(value) >= min_length and (pattern is None or re.fullmatch(pattern, value))
    )
    return value if inside else _refuse()
