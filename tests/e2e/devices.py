"""The devices of the node: files and device nodes."""

import os
import shutil
import stat
from typing import Final

from tests.e2e.cluster import Cluster
from tests.e2e.release import DEVICES, STEPS

FILES: Final = (
    *(f"{DEVICES}/colas/{name}" for name in ("cherry", "classic", "vanilla")),
    *(f"{DEVICES}/books/{name}" for name in ("dune", "emma")),
    *(f"{DEVICES}/disks/{name}" for name in ("left", "right")),
)
# random, urandom, zero and full: harmless to open.
NODES: Final = {"dice0": (1, 8), "dice1": (1, 9), "coin0": (1, 5), "coin1": (1, 7)}
# The same, for a release that offers only these.
SERIALS: Final = {f"ttyFAKE{port}": number for port, number in enumerate(NODES.values())}


def plug_all(cluster: Cluster) -> None:
    """Create what is missing, and reset the record of steps."""
    for path in FILES:
        if not (file := cluster.host(path)).exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{file.name}\n")
    for name, number in (NODES | SERIALS).items():
        if not (node := cluster.host(f"/dev/{name}")).exists():
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(*number))
    steps = cluster.host(STEPS)
    shutil.rmtree(steps, ignore_errors=True)
    steps.mkdir()


def steps_run(cluster: Cluster) -> dict[str, int]:
    """Return how often the steps of each disk have run."""
    return {path.name: len(path.read_text()) for path in cluster.host(STEPS).iterdir()}
