"""How the configuration's mappings are declared: dataclasses, with marks for what is accepted.

`devhost.loading.valid` makes values of a file by them, and `devhost.loading.shapes` has pydantic
say what is wrong with it. A running host does not import pydantic, which takes 10 MiB.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, dataclass_transform, get_args

from devhost.immutable import compared

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

T = TypeVar("T")

_KEYS: Final = {"class_": "class", "role": "as"}  # the keys that are reserved words of Python


def key_of(attribute: str) -> str:
    """Return the key of an attribute in the file."""
    first, *others = attribute.split("_")
    return _KEYS.get(attribute) or first + "".join(map(str.title, others))


def options_of(value: Any) -> dict[str, Any]:
    """Return the options of a mapping that are not their defaults, by key."""
    found: dict[str, Any] = {}
    for one in fields(value):
        given, factory = getattr(value, one.name), one.default_factory
        if given != (factory() if callable(factory) else one.default):
            found[key_of(one.name)] = given
    return found


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def mapping(cls: type[T]) -> type[T]:
    """Make a class a mapping of the file: with camelCase keys, and without unknown keys.

    Its instances are immutable for the type checker. The docstrings of the fields are read by
    `devhost.loading.schema`.
    """
    config = {"extra": "forbid", "strict": True, "alias_generator": key_of}
    cls.__pydantic_config__ = config  # type: ignore[attr-defined]
    cls.__get_pydantic_core_schema__ = classmethod(_from_mapping)  # type: ignore[attr-defined]
    return compared(dataclass(slots=True, eq=False, repr=False, kw_only=True)(cls))


def _from_mapping(_cls: type, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
    schema = handler(source)
    # Its values are strict; but if it were so itself, it could only be what it is to become.
    handler.resolve_ref_schema(schema)["strict"] = False  # type: ignore[index]
    return schema


class Limits:
    """Limits what a type accepts, by the names that pydantic has for it: ``ge``, ``min_length``."""

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        return {**handler(source), **self.limits}


class Before:
    """Changes a value before it is checked.

    Args:
        change: Returns the value to check. A `ValueError` is a problem of the file.
        accepts: What the JSON Schema accepts; default: as without the change.
    """

    def __init__(self, change: Callable[[Any], object], accepts: Any = None) -> None:
        self.change, self._accepts = change, accepts

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 (see above)

        accepted = None if self._accepts is None else handler.generate_schema(self._accepts)
        return core_schema.no_info_before_validator_function(
            self.change, handler(source), json_schema_input_schema=accepted
        )


class Parsed:
    """Has a function return the value of a scalar.

    Args:
        parse: Returns the value. A `ValueError` is a problem of the file.
        schema: The JSON Schema of what it takes.
    """

    def __init__(self, parse: Callable[[Any], object], schema: dict[str, Any]) -> None:
        self.parse, self._schema = parse, schema

    def __get_pydantic_core_schema__(self, _source: Any, _handler: object) -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 (see above)

        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        return dict(self._schema)


class WordOrMapping:
    """Tells the two types of a union apart, so that errors are of the right one."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 (see above)

        choices = dict(zip(("word", "mapping"), get_args(source), strict=True))
        return core_schema.tagged_union_schema(
            {tag: handler.generate_schema(kind) for tag, kind in choices.items()},
            lambda value: "mapping" if isinstance(value, dict) else "word",
        )
