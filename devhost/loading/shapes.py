"""Checks the shape of the file's values: pydantic makes the classes of `devhost.model` of them."""

import functools
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what checks values of a class; it takes long to make."""
    return TypeAdapter(kind)


def shaped(kind: type[T], value: Any) -> T:
    """Return a mapping of the file as a value of a class of the model.

    Raises:
        ValidationError: It has another shape.
    """
    found: T = adapter(kind).validate_python(value)  # type: ignore[arg-type]
    return found
