"""The node that is attacked."""

from pathlib import Path

import pytest

from tests.security.attack import Victim


@pytest.fixture
def node(short_path: Path) -> Victim:
    return Victim(short_path)
