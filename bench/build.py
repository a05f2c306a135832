"""The Go programs of the benchmark, built once: the load generator and the bare plugin.

The names of the binaries carry a hash of the sources; what is there already is not built.
"""

import fcntl
import hashlib
import os
from pathlib import Path

from tests.kubelet.build import find_go, run

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent
TOOLS = ROOT / ".tools"


def build(program: str, out: Path = TOOLS) -> Path:
    """Return the binary of the program in a folder here; several processes may ask at once."""
    modfile = SOURCES / "go.mod"
    binary = out / f"bench-{program}-{source_hash(program)}"
    if binary.exists():
        return binary
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".bench.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            unfinished = out / f".{binary.name}.{os.getpid()}"
            flags = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w", f"-o={unfinished}"]
            try:
                run(find_go(modfile, out), "build", "-C", str(SOURCES), *flags, f"./{program}")
                unfinished.replace(binary)
            finally:
                unfinished.unlink(missing_ok=True)
    return binary


def source_hash(program: str) -> str:
    digest = hashlib.sha256()
    for source in sorted([*(SOURCES / program).glob("*.go"), *SOURCES.glob("go.*")]):
        content = hashlib.sha256(source.read_bytes()).hexdigest()
        digest.update(f"{source.name} {content}\n".encode())
    return digest.hexdigest()[:12]
