"""The node of the cluster: a process tree with its own namespaces and cgroups.

    python -m tests.e2e.node TOOLS

prints one line when the namespaces are ready: a directory that only their processes see. Its name
is that of the cgroup for all pods. `tests/e2e/init.py` is the first process in the namespaces. All
processes end and the cgroups are removed when the standard input ends, also when the caller dies.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HIERARCHIES: Final = Path("/sys/fs/cgroup")

NAMESPACES: Final = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
PATIENCE: Final = 30.0  # seconds until the kernel lets an empty cgroup be removed


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="devhost-node-"))
    try:
        make_cgroups(directory.name)
        init = (sys.executable, "-m", "tests.e2e.init", sys.argv[1], str(directory))
        subprocess.run(["unshare", *NAMESPACES, "--propagation=private", *init], check=False)
    finally:
        remove_cgroups(directory.name)
        directory.rmdir()


def cgroups(name: str) -> Iterator[Path]:
    """Yield where a cgroup is, once for each hierarchy; cgroup v2 has one alone."""
    unified = (HIERARCHIES / "cgroup.procs").exists()
    for hierarchy in [HIERARCHIES] if unified else HIERARCHIES.iterdir():
        if (hierarchy / "cgroup.procs").exists():
            yield hierarchy / name


def make_cgroups(name: str) -> None:
    for cgroup in cgroups(name):
        cgroup.mkdir(exist_ok=True)  # some hierarchies have two names
        for setting in ("cpuset.cpus", "cpuset.mems"):
            inherited = cgroup.parent / setting
            if inherited.exists():  # cgroup v1: no process may be added while they are empty
                (cgroup / setting).write_text(inherited.read_text())


def remove_cgroups(name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    for cgroup in cgroups(name):
        for directory in [Path(path) for path, _, _ in os.walk(cgroup, topdown=False)]:
            while directory.exists():
                try:
                    directory.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


if __name__ == "__main__":
    main()
