"""The first process of the cluster's namespaces: mounts, devices, network. See node.py."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

NODE_IP: Final = "10.88.1.1"

# Numbers as in Linux's Documentation/admin-guide/devices.txt.
NODES: Final = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),  # read by the kubelet
    "tty": (5, 0),
}
LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# The kubelet writes these, and they are not namespaced
# (k8s.io/kubernetes v1.36.3 pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables).
SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def main() -> None:
    tools, directory = map(Path, sys.argv[1:])
    mount("--make-rshared", "/")
    tmpfs(directory)
    # The Debian packages look installed; what is written below /var stays in the tmpfs.
    mount("-t", "overlay", "-o", f"lowerdir={tools}/usr:/usr", "overlay", "/usr")
    for name in ("upper", "work"):
        (directory / "var" / name).mkdir(parents=True)
    var = f"lowerdir=/var,upperdir={directory}/var/upper,workdir={directory}/var/work"
    mount("-t", "overlay", "-o", var, "overlay", "/var")
    for path in ("/run", "/var/lib/kubelet", "/var/lib/containerd", "/var/log"):
        tmpfs(Path(path))
    devices()
    sysctls(directory / "sysctl")
    for command in (
        "link set lo up",
        "link add node0 type bridge",  # kernels without dummy devices have bridges
        f"addr add {NODE_IP}/24 dev node0",
        "link set node0 up",
    ):
        run("ip", *command.split())
    sys.stdout.write(f"{directory}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
    sys.stdin.read()


def devices() -> None:
    """Create a minimal /dev, so that a test finds only its own devices."""
    tmpfs(Path("/dev"))
    os.umask(0)
    for name, number in NODES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*number))
    for name, target in LINKS.items():
        Path("/dev", name).symlink_to(target)
    os.umask(0o022)
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620", "devpts", "/dev/pts")
    tmpfs(Path("/dev/shm"))


def sysctls(directory: Path) -> None:
    """Mount a file over each sysctl that must not change."""
    directory.mkdir()
    for name in SYSCTLS:
        real, copy = Path("/proc/sys", name), directory / name.replace("/", ".")
        copy.write_text(real.read_text())
        mount("--bind", str(copy), str(real))


def tmpfs(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(path))


def mount(*arguments: str) -> None:
    run("mount", *arguments)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
