"""The properties of whatever a file is loaded to."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from devhost.allocation.policy import Policy
from devhost.allocation.rules import rules_of
from devhost.config.loader import Loaded
from devhost.devices.dry_run import report
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.config import Config
from devhost.model.sources import Static

JARGON: Final = ("Traceback", "pydantic", "<class", "object at 0x", "Error(", "NoneType")
BREAKS: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
ROOT: Final = tempfile.TemporaryDirectory(prefix="devhost-fuzz-")
FILE: Final = Path(ROOT.name) / "config.yaml"
(Path(ROOT.name) / "host").mkdir()
FILES: Final = HostFiles(os.path.realpath(Path(ROOT.name) / "host"))


def judge(loaded: Loaded, text: str, *, used: bool = True) -> None:
    """Look at what came of a text."""
    assert isinstance(loaded, Loaded)
    errors = [problem for problem in loaded.problems if problem.severity == "error"]
    assert (loaded.config is None) == bool(errors)
    lines = BREAKS.split(text)
    for problem in loaded.problems:
        assert 1 <= problem.line <= len(lines) + 1, problem
        length = len(lines[problem.line - 1]) if problem.line <= len(lines) else 0
        assert 1 <= problem.column <= length + 1, problem
        assert problem.message.strip()
        shown = str(problem).encode("utf-8", "backslashreplace").decode()
        assert shown.isprintable(), "a problem is one line"
        assert len(shown) < 20_000
        assert not [word for word in JARGON if word in shown and word not in text], problem
        json.dumps(problem.as_json(), ensure_ascii=False).encode()
    places = [(problem.line, problem.column) for problem in loaded.problems]
    assert places == sorted(places)
    if used and loaded.config is not None:
        use(loaded.config)


def use(config: Config) -> None:
    """Do with a configuration what a host and ``devhost plan`` do."""
    tokens = 0
    for resource in config.resources:
        rules_of(resource)
        Scanner(resource, FILES, Policy(), "node", settle_s=0.0)
        resource.applies_to("node")
        kinds = [source.kind for source in resource.sources]
        counts = [kind.count or len(kind.ids or ()) for kind in kinds if isinstance(kind, Static)]
        tokens += max([1, sum(counts)]) * resource.replicas
    if tokens <= 200:
        wanted = {resource.name: "1" for resource in config.resources}
        for planned in report(config, FILES, Policy(), "node", wanted):
            json.dumps(planned.as_json())
