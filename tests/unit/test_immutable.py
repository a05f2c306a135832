"""Values are equal by what is in them, and the type checker refuses to change them."""

from dataclasses import field, replace

import pytest

from devhost.model.immutable import immutable


@immutable
class Point:
    """One value."""

    x: int
    names: tuple[str, ...] = field(default_factory=tuple)


def test_equal_values_are_one_key() -> None:
    assert Point(1, ("a",)) == Point(1, ("a",))
    assert {Point(1): "found"}[Point(1)] == "found"
    assert Point(1) != Point(2)
    assert replace(Point(1, ("a",)), x=2) == Point(2, ("a",))


def test_there_is_room_for_nothing_else() -> None:
    with pytest.raises(AttributeError):
        Point(1).y = 2  # type: ignore[attr-defined]


def test_the_type_checker_refuses_changes() -> None:
    """It warns of an ignore that it does not need (``warn_unused_ignores``)."""
    point = Point(1)
    point.x = 2  # type: ignore[misc]
    Point("1")  # type: ignore[arg-type]
