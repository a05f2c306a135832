"""CDI files as a runtime reads them: the Go program in tests/support/go, built once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.goprogram import Oracle

ORACLE = Oracle("cdi", "cdiverify", "tags.cncf.io/container-device-interface")


def inject(directory: Path, devices: Sequence[str], user: int = 0, env: Sequence[str] = ()) -> Any:
    """Inject CDI devices; the answer is as `response` in tests/support/go/cdi/main.go."""
    ids = {"uid": user, "gid": user}
    return ORACLE.ask({"specDir": str(directory), "devices": [*devices], **ids, "env": [*env]})
