"""Go programs of ours, built once; the name of a binary carries a hash of its sources."""

import fcntl
import hashlib
import os
from pathlib import Path

from tests.kubelet.build import find_go, run


def build(module: Path, package: str, name: str, out: Path) -> Path:
    """Return the binary ``name-HASH`` of a package; several processes may ask at once.

    Args:
        module: The folder of its go.mod.
        package: Its folder in there, or ``.``.
        name: How the binary's name begins.
        out: Where it is kept.

    Raises:
        OSError: There is no Go to be had, or it fails with `subprocess.CalledProcessError`.
    """
    binary = out / f"{name}-{_source_hash(module, package)}"
    if binary.exists():
        return binary
    out.mkdir(parents=True, exist_ok=True)
    with (out / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            unfinished = out / f".{binary.name}.{os.getpid()}"
            flags = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w", f"-o={unfinished}"]
            go = find_go(module / "go.mod", out)
            try:
                run(go, "build", "-C", str(module), *flags, f"./{package}")
                unfinished.replace(binary)
            finally:
                unfinished.unlink(missing_ok=True)
    return binary


def _source_hash(module: Path, package: str) -> str:
    digest = hashlib.sha256()
    for source in sorted([*(module / package).glob("*.go"), *module.glob("go.*")]):
        content = hashlib.sha256(source.read_bytes()).hexdigest()
        digest.update(f"{source.name} {content}\n".encode())
    return digest.hexdigest()[:12]
