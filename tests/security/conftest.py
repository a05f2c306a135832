"""The node that is attacked."""

from pathlib import Path

import pytest

from tests.security.attack import Victim


@pytest.fixture
def node(short_path: Path) -> Victim:
    """A node's files below a root of their own."""
    return Victim(short_path)
