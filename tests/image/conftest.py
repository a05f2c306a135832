"""The image is built once, by the first who asks; the others wait for it."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.image.build import Image, build
from tests.image.container import Containers
from tests.image.machine import SECONDS, Unavailable
from tests.support import timeouts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give those that may have to build the image the time that it takes."""
    timeouts.allow(items, Path(__file__).parent, SECONDS)


@pytest.fixture(scope="session")
def image() -> Image:
    try:
        return build()
    except Unavailable as reason:
        pytest.skip(f"cannot build the image here: {reason}")


@pytest.fixture(scope="session")
def can_run(image: Image, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        Containers(image, tmp_path_factory.mktemp("runc")).check()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
async def containers(image: Image, can_run: None) -> AsyncIterator[Containers]:
    directory = Path(tempfile.mkdtemp(prefix="dhrunc"))
    containers = Containers(image, directory)
    yield containers
    await containers.close()
    shutil.rmtree(directory)
