"""An emulated computer with USB: Debian's kernel on QEMU, with the files of this machine, read-only.

Its first process runs one command in there, with what this machine has: Python, .venv, the
kubelets. QEMU takes commands (plug, unplug) from that command, through a port of the computer.
"""

import fcntl
import lzma
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy import debian, machine
from tests.deploy.machine import ROOT, Unavailable

CACHE: Final = ROOT / ".tools" / "emulated"
SECONDS: Final = 1800  # for the command and all before it

# Debian packages, each with a program that is needed of it.
PACKAGES: Final = {
    "busybox-static": "",
    "linux-image-amd64": "",
    "qemu-system-x86": "qemu-system-x86_64",
}
# udev would load most of them when a device comes. What they need is loaded before them.
MODULES: Final = (
    *("virtio_pci", "9pnet_virtio", "9p", "virtio_console"),
    *("xhci_pci", "ftdi_sio", "usbhid", "hid_generic", "evdev", "snd_usb_audio"),
    *("usb_storage", "sd_mod"),
)
# Nothing in there can write to this machine; what has to be written goes to /run and /tmp.
INIT: Final = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in {modules}; do insmod /modules/$module.ko; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 root /root
for each in proc sys dev; do mount --move /$each /root/$each; done
mount -t tmpfs tmpfs /root/run
mount -t tmpfs tmpfs /root/tmp
for port in /root/sys/class/virtio-ports/*; do
    ln -s ${{port##*/}} /root/dev/$(cat $port/name)
done
ip link set lo up
cd /root
chroot . /bin/sh -c {command} </root/dev/null >/root/dev/output 2>&1
echo $? >/root/dev/status
poweroff -f
"""


@dataclass(frozen=True)
class Files:
    """The packages' files, of this machine where it has the package."""

    packages: Path

    def find(self, pattern: str) -> Path:
        """Return the first file by a pattern.

        Raises:
            Unavailable: There is none.
        """
        for root in (self.packages, Path("/")):
            for path in sorted(root.glob(pattern)):
                return path
        raise Unavailable(f"there is no {pattern}")

    def modules(self) -> Iterator[tuple[str, bytes]]:
        """Yield the modules of the kernel, each after those that it needs."""
        kernel = self.find("boot/vmlinuz-*-amd64").name.removeprefix("vmlinuz-")
        folder = self.find(f"usr/lib/modules/{kernel}")
        paths = {
            path.name.partition(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")
        }
        loaded: set[str] = set()

        def load(name: str) -> Iterator[tuple[str, bytes]]:
            if name in loaded or name not in paths:  # if not there, it is part of the kernel
                return
            loaded.add(name)
            content = paths[name].read_bytes()
            if paths[name].suffix == ".xz":
                content = lzma.decompress(content)
            depends = re.search(rb"\0depends=([^\0]*)\0", content)
            for module in depends[1].decode().split(",") if depends else ():
                yield from load(module.replace("-", "_"))
            yield name, content

        for name in MODULES:
            yield from load(name)


def files() -> Files:
    """Get the packages; several processes may ask concurrently.

    Raises:
        Unavailable: This machine cannot get them or run what is in them.
    """
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the kernel that is emulated is for x86_64, not {os.uname().machine}")
    if os.geteuid() != 0:
        raise Unavailable("it takes root to use the programs of packages that are not installed")
    machine.demand(("apt-get", "dpkg-deb", "mount", "unshare"))
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Files(debian.tools(PACKAGES, CACHE))


def run(files: Files, command: Sequence[str], variables: Mapping[str, str], scratch: Path) -> int:
    """Run a command in a computer, with its output as ours; return its exit status.

    Raises:
        RuntimeError: The computer has ended without one, or takes too long.
    """
    initrd, console, status = (scratch / name for name in ("initrd", "console", "status"))
    _pack(files, command, variables, scratch / "files", initrd)
    # At the end of its input QEMU takes no more output.
    with subprocess.Popen(_qemu(files, initrd, console, status), stdin=subprocess.PIPE) as process:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    try:
        return int(status.read_text())
    except (OSError, ValueError):
        output = console.read_text(errors="replace")[-4000:] if console.exists() else ""
        raise RuntimeError(f"the emulated computer did not get through:\n{output}") from None


def _pack(
    files: Files, command: Sequence[str], variables: Mapping[str, str], tree: Path, to: Path
) -> None:
    """Write the archive of the first process, with the modules that mount this machine's files."""
    for name in ("bin", "modules", "root", "proc", "sys", "dev"):
        (tree / name).mkdir(parents=True)
    busybox = tree / "bin" / "busybox"
    shutil.copy(files.find("usr/bin/busybox"), busybox)
    names = []
    for name, content in files.modules():
        (tree / "modules" / f"{name}.ko").write_bytes(content)
        names.append(name)
    settings = [f"{name}={value}" for name, value in variables.items()]
    line = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(['env', '-i', *settings, *command])}"
    init = tree / "init"
    init.write_text(INIT.format(modules=" ".join(names), command=shlex.quote(line)))
    init.chmod(0o755)
    with to.open("wb") as archive:
        listed = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        cpio = [str(busybox), "cpio", "--create", "--format=newc", "--quiet"]
        subprocess.run(cpio, check=True, cwd=tree, input=listed.encode(), stdout=archive)


def _qemu(files: Files, initrd: Path, console: Path, status: Path) -> list[str]:
    share = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"
    # QEMU takes commands at a socket, with which a port of the computer is connected.
    commands = f"path={initrd.with_name('monitor')}"
    ports = {
        "output": "stdio,id=output,signal=off",
        "status": f"file,id=status,path={status}",
        "monitor": f"socket,id=monitor,{commands}",
    }
    connected: list[str] = []
    for name, backend in ports.items():
        device = f"virtserialport,chardev={name},name={name}"
        connected += ["-chardev", backend, "-device", device]
    # Not KVM: where there is /dev/kvm, a guest may still not boot.
    return debian.with_tools(
        files.packages,
        *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2"),
        *("-m", "2048", "-display", "none", "-nodefaults", "-no-reboot"),
        *("-kernel", str(files.find("boot/vmlinuz-*-amd64")), "-initrd", str(initrd)),
        *("-append", "console=ttyS0 quiet panic=-1", "-serial", f"file:{console}"),
        *("-chardev", f"socket,id=qmp,{commands},server=on,wait=off"),
        *("-mon", "chardev=qmp,mode=control"),
        *("-virtfs", share, "-device", "virtio-serial-pci", *connected),
        *("-device", "qemu-xhci,id=usb,addr=14.0", "-audiodev", "none,id=silence"),
    )
