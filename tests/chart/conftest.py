import pytest

from tests.chart.helm import Helm
from tools.helm import PACKAGES, binary


def _helm(major: int) -> Helm:
    if not binary(major).exists():
        pytest.skip("Helm is not built: python -m tools.helm")
    return Helm(major)


@pytest.fixture
def helm() -> Helm:
    """The newer Helm, for what does not differ."""
    return _helm(max(PACKAGES))


@pytest.fixture
def older_helm() -> Helm:
    return _helm(min(PACKAGES))
