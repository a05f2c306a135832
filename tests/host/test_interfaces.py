"""Network interfaces, which have a name and no file: a pod has the port, whatever it is called."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import until
from tests.support.hardware import HostTree, Kernel
from tests.support.hosting import Hosting, Kubelet
from tests.support.root import needs_root

NAME: Final = "example.com/net"
HARDWARE: Final = """
pci 0000:00:03.0 8086:10fb class=020000 driver=ixgbe
  net eth0 ifindex=2 dev_port=0
  net eth1 ifindex=3 dev_port=1
dir virtual
  net vcan0 ifindex=4 dev_port=0
  net vcan1 ifindex=5 dev_port=0
"""
CARD: Final = "pci: {device: '8086:10fb', node: net, split: true}"
VIRTUAL: Final = "sysfs: {subsystem: net, name: vcan*}"

pytestmark = needs_root


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 0.05)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel(monkeypatch)
    yield kernel
    kernel.close()


def swap(tree: HostTree) -> None:
    for kind in ("eth", "vcan"):
        tree.rename_interface(f"{kind}0", "rename0")
        tree.rename_interface(f"{kind}1", f"{kind}0")
        tree.rename_interface("rename0", f"{kind}1")


def bring_back(tree: HostTree) -> None:
    """Bring it back from the pod's network namespace, with the name and the number of there."""
    tree.hardware(HARDWARE.replace("eth0 ifindex=2", "pod0 ifindex=7"))


@pytest.mark.parametrize(
    ("source", "change", "held"),
    [
        (CARD, lambda tree: tree.rename_interface("eth0", "lan0"), "lan0"),
        (CARD, swap, "eth1"),
        (CARD, bring_back, "pod0"),
        (VIRTUAL, swap, "vcan1"),
    ],
)
async def test_interface_that_a_pod_has_is_offered_under_another_name_after_the_pod(
    tmp_path: Path,
    kernel: Kernel,
    hosting: Hosting,
    started: Kubelet,
    source: str,
    change: Callable[[HostTree], None],
    held: str,
) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(HARDWARE)
    declared = f"name: {NAME}, sources: [{source}], id: '${{name}}', prefer: packed"
    text = f"version: v1\nresources: [{{{declared}}}]\n"
    hosting.start(text, root=tree.root, pod_resources=hosting.pod_resources)
    await started.wait(NAME, 2, 2)
    await started.admit("pod", {"app": {NAME: 1}})  # the first in natural order
    if change is bring_back:
        tree.unplug("eth0")
        kernel.send("remove", "net")
        await started.wait(NAME, 2, 1)
    former = hosting.device(NAME, held)
    change(tree)
    kernel.send("move", "net")
    await until(lambda: hosting.device(NAME, held) not in (None, former), f"{held} is scanned")
    device = hosting.device(NAME, held)
    assert device is not None
    assert device.is_withheld
    await started.free("pod")
    await started.wait(NAME, 2, 2)
