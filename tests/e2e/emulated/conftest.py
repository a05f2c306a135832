"""The computer that the tests run in; elsewhere they are skipped."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.emulated.sticks import Sticks
from tests.support import timeouts

SECONDS: Final = 900  # for a test
MONITOR: Final = os.environ.get("DEVHOST_TEST_EMULATED")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    timeouts.allow(items, Path(__file__).parent, SECONDS)


@pytest.fixture(scope="session")
def ports() -> Iterator[Sticks]:
    """QEMU's port for commands, which has one user at a time."""
    if MONITOR is None:
        pytest.skip("runs in an emulated computer: make hardware")
    with contextlib.closing(Sticks(Path(MONITOR))) as sticks:
        yield sticks


@pytest.fixture
def sticks(ports: Sticks) -> Iterator[Sticks]:
    """The USB ports, all free."""
    yield ports
    ports.unplug_all()
