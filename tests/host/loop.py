"""Real block devices, made of files, and real filesystems on them."""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# linux/loop.h
_SET_FD, _CLR_FD, _CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82

_SIZE = 8 * 1024 * 1024


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
        file.truncate(_SIZE)
    try:
        descriptor, device = _attached(image)
    except OSError as error:
        pytest.skip(f"no loop devices: {error}")
    try:
        yield device
    finally:
        fcntl.ioctl(descriptor, _CLR_FD)
        os.close(descriptor)


def _attached(image: Path) -> tuple[int, Path]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _CTL_GET_FREE)}")
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _SET_FD, file)
            except OSError as error:
                os.close(descriptor)
                if error.errno != errno.EBUSY:  # somebody was quicker
                    raise
            else:
                return descriptor, device
    finally:
        os.close(file)
        os.close(control)


@contextlib.contextmanager
def mounted(device: Path, place: Path) -> Iterator[Path]:
    """Mount a device's filesystem where the whole machine sees it."""
    place.mkdir(exist_ok=True)
    subprocess.run([program("mount"), device, place], check=True)
    try:
        yield place
    finally:
        subprocess.run([program("umount"), place], check=True)


@contextlib.contextmanager
def container(device: Path, place: Path, script: str) -> Iterator[str]:
    """Mount a device's filesystem as a container does, in a mount namespace of its own.

    A shell script runs there, at the filesystem's top; what it prints is returned, and the
    mount stays until the end.
    """
    place.mkdir(exist_ok=True)
    commands = f'mount "$0" "$1" && (cd "$1" && {{ {script}; }}) && echo && exec cat'
    command = [program("unshare"), "--mount", "sh", "-ec", commands, str(device), str(place)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        said = []
        while (line := process.stdout.readline()).strip():
            said.append(line.strip())
        assert line, f"{script} has failed"
        try:
            yield "\n".join(said)
        finally:
            process.stdin.close()
            assert process.wait(60) == 0
