"""Immutable values: frozen for the type checker only.

A frozen `dataclasses.dataclass` takes six times as long to create, and a scan creates a dozen
values for each device. It also compiles all its methods in each process; here only ``__init__``,
which takes a sixth off the imports of `devhost run`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, compared and hashed by its attributes."""
    made: Any = dataclass(slots=True, eq=False, repr=False)(cls)
    names = [one.name for one in fields(made) if one.compare]
    values: Callable[[object], object] = attrgetter(*names) if names else lambda _: ()

    def equal(self: T, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    made.__eq__, made.__hash__, made.__repr__ = equal, lambda self: hash(values(self)), _shown
    return made  # type: ignore[no-any-return]


def _shown(self: Any) -> str:
    values = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
    return f"{type(self).__qualname__}({values})"
