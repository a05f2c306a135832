"""The programs of the cluster, from Go modules and Debian packages, cached below .tools/cluster.

    python -m tests.e2e.programs

builds and downloads them and prints their folders; what is there already is left alone. The first
time takes about 9 minutes of CPU time. Nothing is installed on the machine.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy import debian, machine
from tests.deploy.machine import ROOT, Unavailable, Unfinished, hash_of
from tools import golang
from tools.golang import find

CACHE: Final = ROOT / ".tools" / "cluster"

MODULE: Final = ROOT / "tests" / "e2e" / "kubernetes"
KUBERNETES: Final = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
# Debian's containerd 1.6 ignores the names of CDI devices.
CONTAINERD: Final = "v2.4.2"
CONTAINERD_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr")

FLAGS: Final = ("-trimpath", "-buildvcs=false")

# Debian packages, each with the program that is needed of it.
PACKAGES: Final = {
    "busybox-static": "",  # a busybox on the machine need not be static
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "etcd-server": "etcd",
    "runc": "runc",
}
COMMANDS: Final = ("apt-get", "dpkg-deb", "ip", "mount", "nsenter", "unshare")


@dataclass(frozen=True)
class Programs:
    """Where the programs are.

    Attributes:
        kubernetes: The folder of the programs of Kubernetes.
        containerd: That of containerd.
        debian: The files of the Debian packages that the machine does not have.
    """

    kubernetes: Path
    containerd: Path
    debian: Path

    @property
    def busybox(self) -> Path:
        """A static busybox."""
        roots = (self.debian, Path("/"))
        paths = [root / path for root in roots for path in ("bin/busybox", "usr/bin/busybox")]
        return next(path for path in paths if path.exists())


def build() -> Programs:
    """Return the programs; several processes may ask concurrently.

    Raises:
        Unavailable: This machine cannot run or get them.
    """
    if os.geteuid() != 0:
        raise Unavailable("a cluster is run as root")
    machine.demand(COMMANDS)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = debian.tools(PACKAGES, CACHE)
        try:
            return Programs(_kubernetes(), _containerd(), packages)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Unavailable(f"the programs of the cluster cannot be built: {error}") from error


def _kubernetes() -> Path:
    version = find(r"k8s\.io/kubernetes (v\S+) // indirect", MODULE / "go.mod")
    # Without a version they would call themselves v0.0.0.
    flags = [*FLAGS, f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version}"]
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES]
    inputs = [(MODULE / name).read_text() for name in ("go.mod", "go.sum")]
    return _install(f"kubernetes-{version}", [f"-C={MODULE}", *flags, *packages], inputs)


def _containerd() -> Path:
    # Those have a go.mod without `replace`, so that no module of ours is needed.
    package = "github.com/containerd/containerd/v2"
    version = f"-X {package}/version.Version={CONTAINERD}"
    flags = [*FLAGS, f"-ldflags=-s -w {version}", "-tags=no_btrfs,no_devmapper,no_zfs"]
    packages = [f"{package}/cmd/{name}@{CONTAINERD}" for name in CONTAINERD_PROGRAMS]
    return _install(f"containerd-{CONTAINERD}", [*flags, *packages], [])


def _install(name: str, arguments: Sequence[str], inputs: Sequence[str]) -> Path:
    """Install Go programs into a folder of their own."""
    directory = CACHE / f"{name}-{hash_of(*arguments, *inputs)}"
    if not directory.exists():
        golang.say(f"building {name} (minutes the first time)")
        with Unfinished(directory) as unfinished:
            go = golang.find_go(find(r"go (\S+)", MODULE / "go.mod"), ROOT / ".tools")
            golang.run(go, "install", *arguments, GOBIN=str(unfinished), GOOS="", GOARCH="")
    return directory


def main() -> None:
    try:
        programs = build()
    except Unavailable as reason:
        sys.exit(f"no cluster can be run here: {reason}")
    sys.stdout.write(f"{programs.kubernetes}\n{programs.containerd}\n{programs.debian}\n")


if __name__ == "__main__":
    main()
