"""The memory of a process, seen from outside."""

import re
from pathlib import Path


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    match = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None, "a process with memory"
    return int(match[1]) / 1024
