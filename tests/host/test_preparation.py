"""Steps before a container's start, against kubelets and on a real disk."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.fake_kubelet.kubelet import AdmissionError
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.root import needs_root

DISK = "example.com/disk"
ALLOWED = Policy(allow_devices=("/dev/loop*",), allow_exec=True, enforced=True)
ONE = {"app": {DISK: 1}}


class Bench:
    """Devices that are files, and a step that notes each of its runs."""

    def __init__(self, directory: Path, hosting: Hosting) -> None:
        self.directory, self.hosting = directory, hosting
        self.state, self.log = directory / "state", directory / "log"

    def plug(self, *names: str) -> None:
        for name in names:
            (self.directory / "colas" / name).touch()

    def config(self, *, prepares: bool = True) -> str:
        step = f"""{{run: [sh, -c, 'echo "$$0" >>{self.log}', "${{id}}"]}}"""
        return f"""
version: v1
resources:
  - name: {DISK}
    sources: [directory: {self.directory}/colas]
    prefer: packed
    preStart: [{step if prepares else ""}]
"""

    def start(self, *, prepares: bool = True) -> None:
        config = self.config(prepares=prepares)
        self.hosting.start(config, state_dir=self.state, policy=ALLOWED)

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def bench(directory: Path, hosting: Hosting) -> Bench:
    return Bench(directory, hosting)


@contract
async def test_prestart_of_a_crash_loop_runs_once(started: Kubelet, bench: Bench) -> None:
    """The next pod may have the same name, as in a StatefulSet."""
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    for runs in (["a"], ["a", "a"]):
        await started.admit("pod", ONE)
        for _ in range(3):
            await started.start_container("pod", "app")
        assert bench.runs == runs
        await started.free("pod")


@contract
async def test_prestart_is_not_repeated_after_a_restart(started: Kubelet, bench: Bench) -> None:
    bench.plug("a", "b")
    bench.start()
    await started.wait(DISK, 2, 2)
    await started.admit("ready", ONE)
    await started.admit("waiting", ONE, start=False)
    await started.restart()
    await started.wait(DISK, 2, 2)
    await started.start_container("ready", "app")
    await started.admit("ready", ONE)  # as the kubelet does, one by one, with those it finds
    await bench.hosting.stop()
    await started.wait(DISK, 2, 0)
    bench.start()
    await started.wait(DISK, 2, 2)
    await started.start_container("ready", "app")
    assert bench.runs == ["a"]
    await started.start_container("waiting", "app")
    await started.start_container("waiting", "app")
    assert bench.runs == ["a", "b"]


# ── real block devices, made of files, and filesystems on them ──


def program(name: str) -> str:
    """Return where a program is; without it the test is skipped."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"there is no {name}")
    return path


@contextlib.contextmanager
def loop_device(image: Path) -> Iterator[Path]:
    """Make a block device of a file; at the end it is gone, as soon as nobody uses it."""
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    losetup = program("losetup")
    done = subprocess.run(
        [losetup, "--find", "--show", image], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no loop devices: {done.stderr}")
    device = Path(done.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run([losetup, "--detach", device], check=True)


@contextlib.contextmanager
def mounted(device: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run([program("mount"), device, place], check=True)
    try:
        yield place
    finally:
        subprocess.run([program("umount"), place], check=True)


@contextlib.contextmanager
def container(device: Path, place: Path, script: str) -> Iterator[str]:
    """Mount a device's filesystem in a mount namespace until the end; yield a script's output."""
    place.mkdir(exist_ok=True)
    commands = f'mount "$0" "$1" && (cd "$1" && {{ {script}; }}) && echo && exec cat'
    command = [program("unshare"), "--mount", "sh", "-ec", commands, str(device), str(place)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        lines = []
        while (line := process.stdout.readline()).strip():
            lines.append(line.strip())
        assert line, f"{script} has failed"
        try:
            yield "\n".join(lines)
        finally:
            process.stdin.close()
            assert process.wait(60) == 0


class Disk:
    """A block device with a filesystem made for each holder."""

    def __init__(self, device: Path, directory: Path, hosting: Hosting) -> None:
        self.device, self.place = device, directory / "mnt"
        self.path = directory / "by-id" / "superdisk"
        self.path.parent.mkdir()
        self.path.symlink_to(device)
        self._state, self._hosting = directory / "state", hosting

    def start(self) -> None:
        text = f"""
version: v1
resources:
  - name: {DISK}
    sources: [glob: {{paths: {self.path.parent}/*, types: block}}]
    preStart:
      - run: [{program("mkfs.ext4")}, -q, "${{path}}"]
"""
        self._hosting.start(text, state_dir=self._state, policy=ALLOWED)


@pytest.fixture
def disk(directory: Path, hosting: Hosting) -> Iterator[Disk]:
    program("mkfs.ext4")
    with loop_device(directory / "image") as device:
        yield Disk(device, directory, hosting)


@needs_root
async def test_prestart_formats_per_pod(started: Kubelet, disk: Disk, hosting: Hosting) -> None:
    """A pod's files stay while it has the disk; the next pod does not see them."""
    disk.start()
    await started.wait(DISK, 1, 1)
    answer = (await started.admit("pod", ONE))["app"]
    assert [device["hostPath"] for device in answer["devices"]] == [str(disk.path.resolve())]
    with mounted(disk.device, disk.place) as place:  # by the pod, where all see it
        (place / "file").write_text("precious\n")
        hosting.hosts[-1].resources[0].scan.request()
        await started.wait(DISK, 1, 0)
        await started.start_container("pod", "app")
    hosting.hosts[-1].resources[0].scan.request()
    await started.wait(DISK, 1, 1)
    await started.start_container("pod", "app")
    with container(disk.device, disk.place, "cat file") as content:  # and its process hangs
        assert content == "precious"
        await started.free("pod")
        await started.admit("new", ONE, start=False)
        reason = re.escape(f"device superdisk: {disk.path} is in use (mounted")
        with pytest.raises(AdmissionError, match=reason):
            await started.start_container("new", "app")
    with container(disk.device, disk.place, "cat file") as content:
        assert content == "precious"
    await started.start_container("new", "app")
    with container(disk.device, disk.place, "ls") as content:
        assert content == "lost+found"
