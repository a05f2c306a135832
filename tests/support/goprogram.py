"""Go programs of ours, built once; the name of a binary carries a hash of its sources."""

import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kubelet.build import find, find_go, run

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Oracle:
    """A program in a folder of tests/ that answers a JSON request.

    Attributes:
        folder: With its sources.
        name: How the binary's name begins.
        dependency: The Go module whose version the binary's name carries.
    """

    folder: str
    name: str
    dependency: str

    def build(self) -> Path:
        """Return the binary; several processes may ask at the same time."""
        sources = ROOT / "tests" / self.folder
        version = find(rf"{re.escape(self.dependency)} v(\S+)", sources / "go.mod")
        return build(sources, ".", f"{self.name}-v{version}", ROOT / ".tools")

    def ask(self, request: Mapping[str, object]) -> Any:
        """Return the answer; skip the test where the program cannot be built, except in CI."""
        done = subprocess.run(
            [built(self)],
            input=json.dumps(request),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=250,
        )
        return json.loads(done.stdout)


@functools.cache
def built(oracle: Oracle) -> Path:
    """Return the binary; skip the test where it cannot be built."""
    try:
        return oracle.build()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot build tests/{oracle.folder}: {error}")


def build(module: Path, package: str, name: str, out: Path) -> Path:
    """Return the binary ``name-HASH`` of a package; several processes may ask concurrently.

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
