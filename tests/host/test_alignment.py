"""NUMA nodes: what the kubelet's hints say of our devices, and what an aligned container gets."""

import asyncio
from pathlib import Path

import pytest

from tests.host.sysfs import numa_machine, plug
from tests.support.hosting import Hosting
from tests.support.realkubelet import REAL_KUBELETS, Hint, RealKubelet
from tests.support.root import needs_root

SLOT = "example.com/slot"
ZERO, ONE, BOTH = (0,), (1,), (0, 1)
MACHINE = {"a0": 0, "b0": 0, "c1": 1, "d1": 1, "e1": 1}
PLACED = {name: [node] for name, node in MACHINE.items()}

# Hints and alignment are the topology manager's, which the stand-in does not have.
pytestmark = [needs_root, pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)]


@pytest.fixture
def numa_nodes() -> int:
    return 2


@pytest.fixture
def root(directory: Path) -> Path:
    return numa_machine(directory / "root", MACHINE)


def config(more: str = "", name: str = SLOT) -> str:
    return f"version: v1\nresources: [{{name: {name}, sources: [/dev/fake/*]{more}}}]\n"


async def nodes_are(kubelet: RealKubelet, wanted: dict[str, list[int]]) -> None:
    """Wait until the kubelet knows the devices with these NUMA nodes."""
    seen: object = None
    try:
        async with asyncio.timeout(60):
            while (seen := await kubelet.healthy_devices(SLOT)) != wanted:
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{seen}, not {wanted}") from None


async def hints(kubelet: RealKubelet, count: int) -> set[Hint] | None:
    """Return the hints for a container; wider sets of nodes than these are left out.

    Not all versions look at nodes on which there is no device.
    """
    found = (await kubelet.hints("asking", {"app": {SLOT: count}}))["app"][SLOT]
    if found is None:
        return None
    return {hint for hint in found if not any(set(one.nodes) < set(hint.nodes) for one in found)}


async def given(
    kubelet: RealKubelet, pod: str, count: int, nodes: tuple[int, ...] = ()
) -> list[str]:
    """Admit a pod whose container the topology manager has put on NUMA nodes."""
    await kubelet.affinity(pod, "app", nodes)
    return (await kubelet.admit(pod, {"app": {SLOT: count}}))["app"]["deviceIds"][SLOT]


async def test_hints_have_the_numa_nodes_of_sysfs(
    started: RealKubelet, hosting: Hosting, root: Path
) -> None:
    hosting.start(config(), root=root)
    await nodes_are(started, PLACED)
    either = {Hint(ZERO, True), Hint(ONE, True)}
    assert await hints(started, 1) == either
    assert await hints(started, 2) == either
    assert await hints(started, 3) == {Hint(ONE, True)}
    assert await hints(started, 5) == {Hint(BOTH, True)}
    assert await hints(started, 6) == set()


async def test_hints_have_the_declared_numa_node(
    started: RealKubelet, hosting: Hosting, root: Path
) -> None:
    hosting.start(config(", topology: 1"), root=root)
    await nodes_are(started, {name: [1] for name in MACHINE})
    assert await hints(started, 5) == {Hint(ONE, True)}
    hosting.reload(config(", topology: 0"))
    await nodes_are(started, {name: [0] for name in MACHINE})
    assert await hints(started, 1) == {Hint(ZERO, True)}


async def test_hints_are_none_with_a_device_without_a_numa_node(
    started: RealKubelet, hosting: Hosting, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a node would never satisfy a hint; when it goes, the others are as before."""
    monkeypatch.setattr("devhost.discovery.identity.SWAP_S", 0.0)
    hosting.start(config(", removeMissingAfter: 0s"), root=root)
    await nodes_are(started, PLACED)
    plug(root, "f", -1)
    await nodes_are(started, {name: [] for name in (*MACHINE, "f")})
    assert await hints(started, 6) is None
    (root / "dev" / "fake" / "f").unlink()
    await nodes_are(started, PLACED)
    assert await hints(started, 5) == {Hint(BOTH, True)}


async def test_hints_stay_when_a_device_is_gone_and_comes_back(
    started: RealKubelet, hosting: Hosting, root: Path
) -> None:
    """It must not take the nodes of the others away, and is where it was when it comes back."""
    hosting.start(config(), root=root)
    await nodes_are(started, PLACED)
    (root / "dev" / "fake" / "a0").rename(root / "away")
    await nodes_are(started, {key: nodes for key, nodes in PLACED.items() if key != "a0"})
    assert await hints(started, 2) == {Hint(ONE, True)}
    (root / "away").rename(root / "dev" / "fake" / "a0")
    await nodes_are(started, PLACED)


@pytest.mark.parametrize(
    ("prefer", "first", "second"),
    [("packed", ["c1::0"], ["c1::1"]), ("spread", ["c1::0"], ["d1::0"])],
)
async def test_prefer_chooses_among_aligned_devices(
    started: RealKubelet,
    hosting: Hosting,
    root: Path,
    prefer: str,
    first: list[str],
    second: list[str],
) -> None:
    hosting.start(config(f", replicas: 2, prefer: {prefer}"), root=root)
    await started.wait(SLOT, 10, 10)
    assert await given(started, "one", 1, ONE) == first
    assert await given(started, "two", 1, ONE) == second
    assert await given(started, "three", 1, ZERO) == ["a0::0"]


@pytest.mark.parametrize("prefer", ["packed", "numa"])
async def test_prefer_fills_up_too_few_aligned_devices(
    started: RealKubelet, hosting: Hosting, root: Path, prefer: str
) -> None:
    """The aligned ones must be included; the number is exact."""
    hosting.start(config(f", prefer: {prefer}"), root=root)
    await started.wait(SLOT, 5, 5)
    assert await given(started, "pod", 3, ZERO) == ["a0", "b0", "c1"]


async def test_prefer_numa_stays_on_one_node_where_both_would_do(
    started: RealKubelet, hosting: Hosting, root: Path
) -> None:
    hosting.start(config(", prefer: numa"), root=root)
    await started.wait(SLOT, 5, 5)
    assert await given(started, "three", 3, BOTH) == ["c1", "d1", "e1"]
    assert await given(started, "two", 2) == ["a0", "b0"]
