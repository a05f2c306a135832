"""Real block devices, made of files, and real filesystems on them."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


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
