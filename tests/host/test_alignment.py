"""NUMA nodes: what the kubelet's hints say of our devices."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.hosting import Hosting
from tests.support.realkubelet import REAL_KUBELETS, Hint, RealKubelet
from tests.support.root import needs_root
from tests.support.waiting import until_said

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
    """A root with device nodes, and the sysfs that tells their NUMA nodes."""
    root = directory / "root"
    (root / "dev" / "fake").mkdir(parents=True)
    (root / "sys" / "dev" / "char").mkdir(parents=True)
    for minor, (name, numa) in enumerate(MACHINE.items()):
        function = root / "sys" / "devices" / "pci0000:00" / f"0000:00:{minor:02x}.0"
        (function / "fake" / name).mkdir(parents=True)
        (function / "numa_node").write_text(f"{numa}\n")
        link = root / "sys" / "dev" / "char" / f"240:{minor}"
        link.symlink_to(Path("../../devices/pci0000:00") / function.name / "fake" / name)
        os.mknod(root / "dev" / "fake" / name, 0o600 | stat.S_IFCHR, os.makedev(240, minor))
    return root


def config(options: str = "", name: str = SLOT) -> str:
    return f"version: v1\nresources: [{{name: {name}, sources: [/dev/fake/*]{options}}}]\n"


async def nodes_are(kubelet: RealKubelet, wanted: dict[str, list[int]]) -> None:
    """Wait until the kubelet knows the devices with these NUMA nodes."""
    await until_said(lambda: kubelet.healthy_devices(SLOT), lambda nodes: nodes == wanted)


async def hints(kubelet: RealKubelet, count: int) -> set[Hint] | None:
    """Return the hints for a container without wider sets of nodes, which depend on the version."""
    answer = (await kubelet.hints("asking", {"app": {SLOT: count}}))["app"][SLOT]
    if answer is None:
        return None
    return {hint for hint in answer if not any({*h.nodes} < {*hint.nodes} for h in answer)}


async def test_hints_have_the_nodes_of_sysfs_or_the_file(
    started: RealKubelet, hosting: Hosting, root: Path
) -> None:
    hosting.start(config(), root=root)
    await nodes_are(started, PLACED)
    either = {Hint(ZERO, True), Hint(ONE, True)}
    assert await hints(started, 1) == either
    assert await hints(started, 2) == either
    assert await hints(started, 3) == {Hint(ONE, True)}
    assert await hints(started, 5) == {Hint(BOTH, True)}
    hosting.reload(config(", topology: 0"))
    await nodes_are(started, {name: [0] for name in MACHINE})
    assert await hints(started, 5) == {Hint(ZERO, True)}
