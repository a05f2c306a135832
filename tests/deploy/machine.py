"""Checks whether the machine can build the image."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = (ROOT / ".tools" / "image").resolve()

SECONDS: Final = 300  # for any one command


class Unavailable(Exception):  # noqa: N818 - about the machine
    """The image cannot be built or run on this machine; the text says why."""


def check() -> None:
    """Raise `Unavailable` where it is plain that nothing can be built."""
    if os.geteuid() != 0:
        raise Unavailable("an image is built and run as root")
    demand(("apt-get", "dpkg-deb", "tar", "unshare"))


def demand(commands: Iterable[str]) -> None:
    """Raise `Unavailable` where the machine lacks one of some commands."""
    lacking = [command for command in commands if not shutil.which(command)]
    if lacking:
        raise Unavailable(f"the machine has no {', '.join(lacking)}")


class Unfinished:
    """A directory under another name, until it is complete."""

    def __init__(self, directory: Path) -> None:
        self._final = directory
        self._directory = directory.with_name(f".{directory.name}")

    def __enter__(self) -> Path:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        return self._directory

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._directory.rename(self._final)
        else:
            shutil.rmtree(self._directory, ignore_errors=True)


def run(*argv: str, unavailable: str | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output.

    With `unavailable`, it may fail because there is no network: `Unavailable` is raised then.
    """
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=SECONDS, env=env
    )
    if done.returncode == 0:
        return done.stdout
    text = f"{' '.join(argv)}\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    if unavailable:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{unavailable}: {last}")
    raise RuntimeError(f"status {done.returncode} of {text}")


def name() -> str:
    """Name the distribution's release and the architecture, which the packages are for."""
    release = platform.freedesktop_os_release()
    return f"{release['ID']}-{release.get('VERSION_ID', '')}-{platform.machine()}"


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
