"""Fixtures of the tests of plugins in code."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.library.scripted import Hang
from tests.library.serving import Serving


@pytest.fixture
async def serving(directory: Path) -> AsyncIterator[Serving]:
    serving = Serving(directory)
    yield serving
    await serving.close()


@pytest.fixture
def nodes(directory: Path) -> Path:
    """A directory with names of device nodes that every machine has."""
    place = directory / "nodes"
    place.mkdir()
    for name, node in (("a", "null"), ("b", "zero"), ("c", "full")):
        (place / name).symlink_to(f"/dev/{node}")
    return place


@pytest.fixture
def hang() -> Iterator[Hang]:
    """A function that hangs until the end of the test, or until it is released."""
    hang = Hang()
    yield hang
    hang.release.set()
