"""A machine below a root: device nodes, and the sysfs that tells their NUMA nodes."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_MAJOR = 240  # for experiments


def numa_machine(root: Path, nodes: Mapping[str, int]) -> Path:
    """Make a root with /dev/fake/<name> for each name, on its NUMA node; -1 is none."""
    (root / "dev" / "fake").mkdir(parents=True)
    (root / "sys" / "dev" / "char").mkdir(parents=True)
    for name, node in nodes.items():
        plug(root, name, node)
    return root


def plug(root: Path, name: str, node: int) -> None:
    """Add a device as Linux does: it is in sysfs before udev makes its node."""
    minor = len(list((root / "sys" / "dev" / "char").iterdir()))
    function = root / "sys" / "devices" / "pci0000:00" / f"0000:00:{minor:02x}.0"
    (function / "fake" / name).mkdir(parents=True)
    (function / "numa_node").write_text(f"{node}\n")
    link = root / "sys" / "dev" / "char" / f"{_MAJOR}:{minor}"
    link.symlink_to(Path("../../devices/pci0000:00") / function.name / "fake" / name)
    path = root / "dev" / "fake" / name
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(_MAJOR, minor))
