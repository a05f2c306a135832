"""Devices that a vendor describes in a CDI spec, which changes while pods have them."""

from pathlib import Path
from typing import Any, Final

import yaml

from devhost.testing import HostTree
from tests.support.hosting import Hosting, Kubelet, contract

GPU, SECOND, NODES = "nvidia.com/gpu", "example.com/second", "example.com/nodes"
CONFIG: Final = f"""
version: v1
resources:
  - {{name: {GPU}, sources: [cdi: nvidia.com/gpu]}}
  - {{name: {SECOND}, sources: [cdi: {{kind: nvidia.com/gpu, name: "*"}}]}}
  - {{name: {NODES}, sources: [dev: "nvidia[0-9]+"]}}
"""


def spec(*indexes: int) -> str:
    """Return the content of a file that lists each GPU by its index and by its UUID, and all."""

    def entry(name: object, *nodes: int) -> dict[str, Any]:
        paths = [{"path": f"/dev/nvidia{node}"} for node in nodes]
        return {"name": f"{name}", "containerEdits": {"deviceNodes": paths}}

    devices = [entry(name, index) for index in indexes for name in (index, f"GPU-{index}")]
    devices.append(entry("all", *indexes))
    return yaml.safe_dump({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})


@contract
async def test_spec_that_comes_and_changes_while_a_pod_has_a_device(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """The directory comes later, the file is written in place, and one resource has a node."""
    tree = HostTree(directory / "host")
    for index in range(3):
        tree.char(f"/dev/nvidia{index}", 195, index)
    hosting.start(CONFIG, root=tree.root)
    await started.wait(GPU, 0, 0)
    await started.wait(NODES, 3, 3)
    hosting.reload(CONFIG.replace("nvidia[0-9]+", "nvidia2"))
    await started.wait(NODES, 1, 1)
    file = "/var/run/cdi/nvidia.yaml"
    tree.file(file, spec(0))
    await started.wait(GPU, 1, 1)
    for indexes in ((0, 1), (1,), (0, 1), (0,), (0, 1, 2)):  # in place; `NODES` has the last one
        tree.file(file, spec(*indexes))
        await started.wait(GPU, 2, min(len(indexes), 2))
    answer = (await started.admit("first", {"app": {GPU: 1}}))["app"]
    (name,) = answer["cdiDevices"]
    assert not answer["devices"]
    held = int(name.removeprefix("nvidia.com/gpu=GPU-"))
    tree.file(file, spec(1 - held))
    await started.wait(GPU, 2, 1)
    tree.file("/var/run/cdi/new", spec(0, 1))
    tree.at("/var/run/cdi/new").rename(tree.at(file))
    await started.wait(GPU, 2, 2)
    answer = (await started.admit("second", {"app": {GPU: 1}}))["app"]
    assert answer["cdiDevices"] == [f"nvidia.com/gpu=GPU-{1 - held}"]
    await started.wait(SECOND, 0, 0)
