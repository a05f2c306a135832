"""The tools and the base image, of Debian's packages; nothing is installed."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.deploy import machine
from tests.deploy.machine import CACHE, Unavailable, Unfinished, hash_of, run

# What an image is built and run with: Debian packages, each with a program of it.
TOOLS: Final = {"buildah": "buildah", "runc": "runc"}
# What the Dockerfile asks of its base: pip, a shell, and what wheels for glibc may link with.
BASE: Final = ("base-files", "coreutils", "dash", "libstdc++6", "python3-pip", "python3-venv")
# The release of Debian that the Dockerfile's base is made of: with the same Python.
RELEASE: Final = "trixie"


def tools(programs: Mapping[str, str], cache: Path) -> Path:
    """Extract what the machine has not of some programs, and what they need.

    Args:
        programs: Debian packages, each with a program of it, by name or by path.
        cache: Where they are kept.

    Raises:
        Unavailable: They cannot be had, or not be used here.
    """
    wanted = [name for name, program in programs.items() if not shutil.which(program)]
    directory = cache / f"tools-{hash_of(machine.name(), *wanted)}"
    if not directory.exists():
        with Unfinished(directory) as unfinished:
            (unfinished / "usr").mkdir()
            for package in _packages(wanted, unfinished) if wanted else ():
                run("dpkg-deb", "--extract", str(package), str(unfinished))
            for name in ("bin", "sbin", "lib", "lib64"):  # where the machine has them
                if (old := unfinished / name).exists():
                    merged = unfinished / "usr" / name
                    shutil.copytree(old, merged, True, copy_function=os.rename, dirs_exist_ok=True)
                    shutil.rmtree(old)
    if subprocess.run(with_tools(directory, "true"), check=False, capture_output=True).returncode:
        raise Unavailable("this process may not mount")
    return directory


def base() -> Path:
    """Extract packages and all that they need, not configured: good enough to run Python."""
    directory = CACHE / f"base-{hash_of(machine.name(), RELEASE, *BASE)}"
    if directory.exists():
        return directory
    with Unfinished(directory) as unfinished:
        for name in ("bin", "sbin", "lib", "lib64"):
            (unfinished / "usr" / name).mkdir(parents=True)
            (unfinished / name).symlink_to(f"usr/{name}")
        for name in ("dev", "proc", "sys", "tmp", "var/lib/dpkg/info"):
            (unfinished / name).mkdir(parents=True)
        database, status = unfinished / "var" / "lib" / "dpkg", []
        for package in _packages(BASE, unfinished, base=True):
            archive = subprocess.Popen(
                ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
            )
            tar = ("tar", "--keep-directory-symlink", "-xvC", str(unfinished))
            paths = subprocess.check_output(tar, stdin=archive.stdout, text=True)
            if archive.wait() != 0:
                raise RuntimeError(f"cannot extract {package}")
            name = run("dpkg-deb", "--field", str(package), "Package").strip()
            (database / "info" / f"{name}.list").write_text(re.sub(r"(?m)^\.", "", paths))
            status.append(run("dpkg-deb", "--field", str(package)))
        (database / "status").write_text("\n".join(status))
        # As the configuration of ca-certificates does: without it, no pip starts.
        authorities = sorted((unfinished / "usr/share/ca-certificates").rglob("*.crt"))
        certificates = unfinished / "etc/ssl/certs/ca-certificates.crt"
        certificates.write_bytes(b"".join(path.read_bytes() for path in authorities))
    return directory


def _packages(names: Sequence[str], where: Path, *, base: bool = False) -> Iterator[Path]:
    """Download Debian packages and those that they need; delete each after it was used.

    Args:
        names: The packages.
        where: Where there is room.
        base: For a base: of its release, and not only those that the machine has not.
    """
    apt, archives = where.parent / ("apt-base" if base else "apt"), where / ".archives"
    for directory in (apt / "lists" / "partial", archives / "partial"):
        directory.mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::State::Lists={apt / 'lists'}",
        f"Dir::Cache={apt}",
        f"Dir::Cache::archives={archives}",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
        "Acquire::Retries=3",
        "Debug::NoLocking=1",  # nothing of the machine's is written
    ]
    if base:
        (apt / "status").touch()
        options += [f"Dir::State::status={apt / 'status'}", *_sources(apt / "sources")]
    apt_get = ["apt-get", "-qq", *(f"-o{option}" for option in options)]
    run(*apt_get, "update", unavailable="apt-get cannot get Debian's packages")
    install = ("--yes", "--no-install-recommends", "--download-only", "install", *names)
    run(*apt_get, *install, unavailable=f"apt-get cannot get {' '.join(names)}")
    for package in sorted(archives.glob("*.deb")):
        yield package
        package.unlink()
    shutil.rmtree(archives)


def _sources(directory: Path) -> list[str]:
    """Write the machine's sources for `RELEASE`, and return the options that say so.

    On a derivative of Debian nothing is: its own release is as good a base.
    """
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian":
        return []
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    release = re.compile(rf"(?<![\w-]){system['VERSION_CODENAME']}\b")
    etc = Path("/etc/apt")
    for path in (etc / "sources.list", *(etc / "sources.list.d").glob("*.*")):
        if path.exists() and release.search(text := path.read_text()):
            (directory / path.name).write_text(release.sub(RELEASE, text))
    lists = directory / "sources.list"
    return [f"Dir::Etc::SourceList={lists}", f"Dir::Etc::SourceParts={directory}"]


def with_tools(tools: Path, *argv: str) -> list[str]:
    """Return a command that runs with the programs and libraries of a directory as if installed.

    They are laid over /usr, for this command alone: buildah and runc start themselves again
    with a new environment, so that no variable would do.
    """
    over = f'mount -t overlay overlay -o lowerdir="{tools}/usr:/usr" /usr && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", over, "sh", *argv]
