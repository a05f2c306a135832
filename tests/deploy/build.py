"""The image, built from the Dockerfile as it is, without a registry and without installing.

    python -m tests.deploy.build

builds it below .tools/image and prints where, with its size and the time it took; if it is
there already, nothing is built. The base image, and buildah and runc where the machine has
none, are made of Debian's packages, and dependencies come as wheels: apt-get and pip get them,
as they are set up on the machine. This takes root, apt-get, and a kernel that lets us mount.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy import debian, machine
from tests.deploy.machine import CACHE, ROOT, Unavailable, Unfinished, hash_of, run

REVISION: Final = "0123456789abcdef"
# All that the image installs, and what builds devhost's wheel, with hashes.
REQUIREMENTS: Final = tuple(
    ROOT / "tools" / "image" / name for name in ("requirements.txt", "build-requirements.txt")
)
IN_USE: Final = 3600.0  # seconds for which another test run may still need an older image


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        directory: With `oci`, the image in the OCI layout, and `rootfs`, its files unpacked.
        tools: With the programs that the machine has not, below `usr`.
        base: The files of the base image, unpacked.
    """

    directory: Path
    tools: Path
    base: Path

    @property
    def rootfs(self) -> Path:
        return self.directory / "rootfs"

    @property
    def config(self) -> Any:
        """The image's configuration, as OCI has it."""
        return self._blob(self._manifest["config"])

    @property
    def layers(self) -> list[Path]:
        return [self._path(layer) for layer in self._manifest["layers"]]

    @property
    def _manifest(self) -> Any:
        index = json.loads((self.directory / "oci" / "index.json").read_text())
        return self._blob(index["manifests"][0])

    def _path(self, descriptor: Any) -> Path:
        digest: str = descriptor["digest"]
        return self.directory / "oci" / "blobs" / digest.replace(":", "/")

    def _blob(self, descriptor: Any) -> Any:
        return json.loads(self._path(descriptor).read_text())


def build() -> Image:
    """Return the image; several processes may ask concurrently.

    Raises:
        Unavailable: This machine cannot.
    """
    machine.check()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tools, base = debian.tools(debian.TOOLS, CACHE), debian.base()
        wheels = _wheels(base)
        inputs = [*_sources(), Path(__file__)]
        directory = CACHE / f"image-{hash_of(base.name, wheels.name, *_contents(inputs))}"
        if not directory.exists():
            for old in CACHE.glob("image-*"):
                if time.time() - old.stat().st_mtime > IN_USE:
                    shutil.rmtree(old)
            with Unfinished(directory) as unfinished:
                _build(tools, base, wheels, unfinished)
        return Image(directory, tools, base)


def _wheels(base: Path) -> Path:
    """Download the wheels that the Dockerfile will ask for, for the base's Python."""
    version = (base / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    pinned = [path.read_text() for path in REQUIREMENTS]
    directory = CACHE / f"wheels-{hash_of(version, *pinned)}"
    if not directory.exists():
        with Unfinished(directory) as unfinished:
            run(
                *(sys.executable, "-m", "pip", "download", "--quiet", f"--dest={unfinished}"),
                *for_platform(version, platform.machine()),
                unavailable="pip cannot get the dependencies",
            )
    return directory


def for_platform(version: str, machine: str) -> list[str]:
    """Return pip's options for what the image takes, for another Python than pip's own."""
    tags = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
    return [
        *(f"--requirement={path}" for path in REQUIREMENTS),
        *("--require-hashes", "--no-deps"),
        "--only-binary=:all:",
        f"--python-version={version}",
        "--implementation=cp",
        *(f"--platform={tag}_{machine}" for tag in tags),
    ]


def _build(tools: Path, base: Path, wheels: Path, out: Path) -> None:
    work, oci = out / "work", out / "oci"  # one is removed when it is done
    work.mkdir()
    (work / "registries.conf").write_text("unqualified-search-registries = []\n")
    (work / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (work / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    (work / "Base").write_text("FROM scratch\nCOPY . /\n")

    def buildah(command: str, *arguments: str) -> None:
        options = (
            *("--storage-driver=overlay", f"--root={work}/store", f"--runroot={work}/run"),
            f"--registries-conf={work}/registries.conf",
        )
        policy = f"--signature-policy={work}/policy.json"
        argv = debian.with_tools(tools, "buildah", *options, command, policy, *arguments)
        run(*argv, env=os.environ | {"BUILDAH_ISOLATION": "chroot"})

    buildah("build", f"--file={work}/Base", "--tag=localhost/base", str(base))
    buildah(
        *("build", "--pull-never", "--timestamp=0", "--tag=localhost/devhost"),
        *("--build-arg=BASE=localhost/base", f"--build-arg=REVISION={REVISION}"),
        *(f"--volume={wheels}:/wheels:ro", f"--volume={work}/pip.conf:/etc/pip.conf:ro"),
        str(ROOT),
    )
    buildah("push", "localhost/devhost", f"oci:{oci}:devhost")
    image = Image(out, tools, base)
    image.rootfs.mkdir()
    for layer in image.layers:
        run("tar", "-xpf", str(layer), "-C", str(image.rootfs))
    shutil.rmtree(work)


def _sources() -> list[Path]:
    """Return what the image is made of."""
    names = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE")
    package = [path for path in (ROOT / "devhost").rglob("*") if "__pycache__" not in path.parts]
    trees = [*package, *(ROOT / "tools" / "image").glob("*")]
    return [ROOT / name for name in names] + sorted(path for path in trees if path.is_file())


def _contents(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def unpacked_size(rootfs: Path) -> int:
    """Return the bytes of all files, those with several names once."""
    files = (path.lstat() for path in rootfs.rglob("*") if not path.is_dir() or path.is_symlink())
    return sum({(status.st_dev, status.st_ino): status.st_size for status in files}.values())


def main() -> None:
    started = time.monotonic()
    try:
        image = build()
    except Unavailable as reason:
        sys.exit(f"cannot build the image here: {reason}")
    packed = sum(layer.stat().st_size for layer in image.layers)
    sys.stdout.write(
        f"{image.directory}: {unpacked_size(image.rootfs) / 1e6:.1f} MB unpacked, "
        f"{packed / 1e6:.1f} MB packed, in {time.monotonic() - started:.1f} s\n"
    )


if __name__ == "__main__":
    main()
