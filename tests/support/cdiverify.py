"""CDI files as a runtime reads them: the Go program in tests/support/go, built once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.goprogram import Oracle

ORACLE = Oracle("cdi", "cdiverify", "tags.cncf.io/container-device-interface")


def inject(directory: Path, devices: Sequence[str], user: int = 0, env: Sequence[str] = ()) -> Any:
    """Inject devices into a container; the answer is as `response` in tests/support/go/cdi/main.go.

    Args:
        directory: With the spec files.
        devices: Fully qualified names.
        user: The UID and GID of the container's process.
        env: What the container has before.
    """
    return ORACLE.ask(
        {
            "specDir": str(directory),
            "devices": list(devices),
            "uid": user,
            "gid": user,
            "env": list(env),
        }
    )
