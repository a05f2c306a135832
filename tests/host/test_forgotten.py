"""A real kubelet forgets a resource five minutes after its plugin's end."""

import pytest

from tests.support.hosting import Hosting
from tests.support.realkubelet import REAL_KUBELETS, KubeletError, RealKubelet

SLOT = "example.com/slot"
CONFIG = f"version: v1\nresources: [{{name: {SLOT}, sources: [static: 1]}}]"

pytestmark = pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)


async def test_registration_of_a_resource_that_kubelet_forgot(
    started: RealKubelet, hosting: Hosting
) -> None:
    """A host that was away for longer than that registers as if for the first time."""
    hosting.start(CONFIG)
    await started.wait(SLOT, 1, 1)
    with pytest.raises(KubeletError, match="has not ended"):
        await started.expire(SLOT)
    await hosting.stop()
    await started.wait(SLOT, 1, 0)
    await started.expire(SLOT)
    await started.wait(SLOT, None, None)
    with pytest.raises(KubeletError, match="knows no resource"):
        await started.expire(SLOT)
    hosting.start(CONFIG)
    await started.wait(SLOT, 1, 1)
