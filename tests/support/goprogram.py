"""Go programs of ours, built once; the name of a binary carries a hash of its sources."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.golang import build, find

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "go"


@dataclass(frozen=True)
class Oracle:
    """A program in a folder of tests/support/go that answers a JSON request."""

    folder: str
    name: str
    dependency: str

    def build(self) -> Path:
        """Return the binary; several processes may ask at the same time."""
        sources = SOURCES / self.folder
        version = find(rf"{re.escape(self.dependency)} v(\S+)", sources / "go.mod")
        return build(sources, ".", f"{self.name}-v{version}", ROOT / ".tools")

    def ask(self, request: Mapping[str, object]) -> Any:
        """Return the answer; a test that asks is marked with the program's name."""
        text, program = json.dumps(request), [self.build()]
        return json.loads(subprocess.check_output(program, input=text, text=True, timeout=250))
