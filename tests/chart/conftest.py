import pytest

from tests.chart.helm import Helm
from tools.helm import PACKAGES, binary


def _helm(major: int) -> Helm:
    if not binary(major).exists():
        pytest.skip("Helm is not built: python -m tools.helm")
    return Helm(major)


@pytest.fixture(params=PACKAGES, ids=[f"helm{major}" for major in PACKAGES])
def each_helm(request: pytest.FixtureRequest) -> Helm:
    """Both Helms, one after the other."""
    return _helm(request.param)


@pytest.fixture
def helms() -> tuple[Helm, ...]:
    return tuple(_helm(major) for major in PACKAGES)


@pytest.fixture
def helm() -> Helm:
    """The newer Helm, for what does not differ; that it does not is tested."""
    return _helm(max(PACKAGES))
