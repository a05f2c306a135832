"""What a runtime makes of CDI files: the Go program in tests/cdi, built once.

    python -m tests.support.cdiverify

builds it and prints its path. The name of the binary carries the CDI library's version and a
hash of the sources; if it is there already, nothing is built.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kubelet.build import find
from tests.support import goprogram

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "cdi"
TOOLS = ROOT / ".tools"


def build(out: Path = TOOLS) -> Path:
    """Return the binary; several processes may ask at once."""
    version = find(r"tags\.cncf\.io/container-device-interface v(\S+)", SOURCES / "go.mod")
    return goprogram.build(SOURCES, ".", f"cdiverify-v{version}", out)


@functools.cache
def oracle() -> Path:
    """Build it for a test, which is skipped where that cannot be done, except in CI."""
    try:
        return build()
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"cannot build tests/cdi: {error}")


def inject(
    binary: Path,
    directory: Path,
    devices: Sequence[str],
    user: int = 0,
    env: Sequence[str] = (),
) -> Any:
    """Inject devices into a container; the answer is as `response` in tests/cdi/main.go.

    Args:
        binary: From `build`.
        directory: With the spec files.
        devices: Fully qualified names.
        user: The UID and GID of the container's process.
        env: What the container has before.
    """
    request = {
        "specDir": str(directory),
        "devices": list(devices),
        "uid": user,
        "gid": user,
        "env": list(env),
    }
    done = subprocess.run(
        [binary],
        input=json.dumps(request),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
