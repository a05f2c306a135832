"""The image is built once, by the first who asks; the others wait for it."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deploy.build import Image, build
from tests.deploy.container import Containers
from tests.deploy.helm import Helm
from tests.deploy.machine import SECONDS, Unavailable
from tests.support import timeouts
from tools.helm import PACKAGES


@pytest.fixture
def helm() -> Helm:
    """The newer Helm, for what does not differ."""
    return Helm(max(PACKAGES))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give those that may have to build the image the time that it takes; say which need Helm."""
    timeouts.allow(items, Path(__file__).parent, SECONDS)
    for item in items:
        if isinstance(item, pytest.Function) and "helm" in item.fixturenames:
            item.add_marker(pytest.mark.program("helm"))


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
