"""The time that the tests of a directory may take."""

from collections.abc import Iterable
from pathlib import Path

import pytest


def allow(items: Iterable[pytest.Item], directory: Path, seconds: float) -> None:
    """Give the tests below a directory this time each; for `pytest_collection_modifyitems`."""
    for item in items:
        if item.path.is_relative_to(directory):
            item.add_marker(pytest.mark.timeout(seconds))
