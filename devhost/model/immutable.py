"""Immutable values that are quick to create.

A frozen `dataclasses.dataclass` takes five times as long to create as one that is not, and a scan
creates a dozen values for each device. It also compiles all its methods in each process; here only
``__init__`` is, which takes a sixth off the imports of `devhost run`.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots, compared and hashed by its attributes."""
    made: Any = dataclass(slots=True, init=False, eq=False, repr=False)(cls)
    names = [attribute.name for attribute in fields(made) if attribute.compare]
    values: Callable[[object], object] = attrgetter(*names) if names else lambda _: ()

    def equal(self: T, value: object) -> bool:
        return values(self) == values(value) if type(value) is type(self) else NotImplemented

    made.__init__, made.__repr__ = _init(made), _represent
    made.__eq__, made.__hash__ = equal, lambda self: hash(values(self))
    made.__setattr__ = made.__delattr__ = _refuse
    arguments = [attribute.name for attribute in fields(made) if attribute.init]
    made.__reduce__ = lambda self: (made, tuple(getattr(self, name) for name in arguments))
    return made  # type: ignore[no-any-return]


def _init(made: Any) -> Callable[..., None]:
    """Return an ``__init__`` that writes into the slots, past ``__setattr__``."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = ["self"], list[str]()
    for attribute in fields(made):
        name = attribute.name
        if not attribute.init:
            continue
        scope[f"set_{name}"] = getattr(made, name).__set__
        value = name
        if attribute.default is not MISSING:
            scope[f"default_{name}"] = attribute.default
            parameters.append(f"{name}=default_{name}")
        elif attribute.default_factory is not MISSING:
            scope[f"make_{name}"] = attribute.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"make_{name}() if {name} is MISSING else {name}"
        else:
            parameters.append(name)
        body.append(f"set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    source = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    exec(source, scope)  # noqa: S102 (the names of attributes)
    init: Callable[..., None] = scope["__init__"]
    return init


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__qualname__}.{name} cannot be set")


def _represent(self: Any) -> str:
    names = (attribute.name for attribute in fields(self))
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__qualname__}({values})"
