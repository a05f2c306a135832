"""Checks the shape of the file's values: the classes of `devhost.model` are made of them."""

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from devhost.loading.valid import valid

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")


class ShapeError(ValueError):
    """A value has another shape.

    Attributes:
        details: What pydantic says of each of its errors.
    """

    def __init__(self, details: "list[ErrorDetails]") -> None:
        super().__init__(details)
        self.details = details


@functools.cache
def adapter(kind: Any) -> "TypeAdapter[Any]":
    """Return what checks values of a class; it takes long to make."""
    from pydantic import TypeAdapter  # noqa: PLC0415 (so does the import)

    return TypeAdapter(kind)


def shaped(kind: type[T], value: Any) -> T:
    """Return a mapping of the file as a value of a class of the model.

    Raises:
        ShapeError: It has another shape.
    """
    try:
        return valid(kind, value)
    except ValueError:
        return _explained(kind, value)


def _explained(kind: type[T], value: Any) -> T:
    checks = adapter(kind)  # type: ignore[arg-type]
    from pydantic import ValidationError  # noqa: PLC0415 (as above)

    try:
        found: T = checks.validate_python(value)
    except ValidationError as error:
        raise ShapeError(error.errors(include_url=False)) from None
    return found
