"""Values are equal by their attributes, and cannot be changed."""

import copy
import dataclasses
from dataclasses import field, replace

import pytest

from devhost.model.immutable import immutable


@immutable
class Point:
    """One value."""

    x: int
    names: tuple[str, ...] = field(default_factory=tuple)


def test_immutable_equal_values_are_one_key() -> None:
    assert Point(1, ("a",)) == Point(1, ("a",))
    assert {Point(1): "found"}[Point(1)] == "found"
    assert Point(1) != Point(2)
    assert replace(Point(1, ("a",)), x=2) == Point(2, ("a",))


def test_immutable_other_attribute_is_refused() -> None:
    with pytest.raises(AttributeError):
        Point(1).y = 2  # type: ignore[attr-defined]


def test_immutable_change_is_refused() -> None:
    """By types as well, which warn of an ignore that is not needed (``warn_unused_ignores``)."""
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Point\.x cannot be set"):
        point.x = 2  # type: ignore[misc]
    assert copy.deepcopy(point) == point == Point(1)
    Point("1")  # type: ignore[arg-type]
