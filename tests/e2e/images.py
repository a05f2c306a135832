"""Container images as archives that `ctr images import` reads; no registry is needed."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tests.deploy.build import Image
from tests.deploy.container import ARCHITECTURES

DEVHOST: Final = "localhost/devhost"
TAG: Final = "e2e"
# For the sandboxes, and for the tests' pods: it has a shell.
BUSYBOX: Final = f"localhost/busybox:{TAG}"

DIRECTORIES: Final = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var")


def devhost(image: Image, archive: Path) -> None:
    """Write the project's image, an OCI layout, with its name."""
    index = json.loads((image.directory / "oci" / "index.json").read_text())
    (manifest,) = index["manifests"]
    manifest["annotations"] = {"io.containerd.image.name": f"{DEVHOST}:{TAG}"}
    with tarfile.open(archive, "w") as tar:
        for name in ("oci-layout", "blobs"):
            tar.add(image.directory / "oci" / name, arcname=name)
        _add(tar, "index.json", json.dumps(index).encode())


def busybox(binary: Path, archive: Path) -> None:
    """Write an image of a static busybox, as `docker save` would."""
    layer = _busybox_layer(binary)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    )
    manifest = [{"Config": "config.json", "RepoTags": [BUSYBOX], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "config.json", config.encode())
        _add(tar, "layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _busybox_layer(binary: Path) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in DIRECTORIES:
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        _add(tar, "bin/busybox", binary.read_bytes(), mode=0o755)
        for name in subprocess.check_output([binary, "--list"], text=True).split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
    return layer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
