"""The choice among the free devices for a container: what a resource prefers, as the kubelet asks."""

from collections import Counter

import pytest

from devhost.backends.share_ids import offered_id
from devhost.fake_kubelet.kubelet import AdmissionError, Answer
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet

SLOT = "example.com/slot"


def device_of(advertised_id: str) -> str:
    return offered_id(advertised_id).device


def config(devices: str, options: str) -> str:
    return f"version: v1\nresources: [{{name: {SLOT}, sources: [static: {devices}], {options}}}]\n"


async def given(kubelet: Kubelet, pod: str, count: int = 1) -> list[str]:
    return ids(await kubelet.admit(pod, {"app": {SLOT: count}}))


def ids(answers: dict[str, Answer], container: str = "app") -> list[str]:
    return answers[container]["deviceIds"][SLOT]


async def one_by_one(kubelet: Kubelet, pods: int, name: str = "pod") -> list[str]:
    """Admit pods that want one device each; return the devices, in that order."""
    answers = [await given(kubelet, f"{name}-{number}") for number in range(pods)]
    return [offered_id(answer).device for (answer,) in answers]


@contract
async def test_prefer_packed_keeps_devices_whole(started: Kubelet, hosting: Hosting) -> None:
    hosting.start(config("[a, b, c]", "replicas: 3, prefer: packed"))
    await started.wait(SLOT, 9, 9)
    assert await one_by_one(started, 4) == ["a", "a", "a", "b"]
    await started.free("pod-0")
    await started.free("pod-1")  # of a one share is used, and of b one
    assert await one_by_one(started, 3, "new") == ["a", "a", "b"]


@contract
async def test_prefer_changes_without_a_registration(started: Kubelet, hosting: Hosting) -> None:
    """`none` answers nothing, so that another preference needs no new registration."""
    hosting.start(config("4", "prefer: none"))
    await started.wait(SLOT, 4, 4)
    (first,) = await given(started, "one")
    before = set(hosting.plugins.glob("devhost-*.sock"))
    hosting.reload(config("4", "prefer: packed"))
    (second,) = await given(started, "two")
    assert second == min({"0", "1", "2", "3"} - {first})
    assert before == set(hosting.plugins.glob("devhost-*.sock"))


@contract
async def test_max_per_container_limits_shares(started: Kubelet, hosting: Hosting) -> None:
    hosting.start(config("[a, b]", "replicas: 4, maxPerContainer: 2"))
    await started.wait(SLOT, 8, 8)
    with pytest.raises(AdmissionError, match=r"3 shares of device a, but maxPerContainer is 2"):
        await given(started, "greedy", 5)
    for pod in ("one", "two"):
        shares = Counter(map(device_of, await given(started, pod, 4)))
        assert shares == {"a": 2, "b": 2}


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
async def test_prefer_keeps_init_devices_for_app(started: RealKubelet, hosting: Hosting) -> None:
    """The kubelet settles on it; the rest is chosen to go with that."""
    hosting.start(config("[a, b]", "replicas: 2, prefer: spread"))
    await started.wait(SLOT, 4, 4)
    answers = await started.admit("pod", {"setup": {SLOT: 1}, "app": {SLOT: 2}}, init=("setup",))
    assert ids(answers, "setup") == ["a::0"]
    assert ids(answers) == ["a::0", "b::0"]
