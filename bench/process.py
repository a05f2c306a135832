"""What a process holds: from outside, without its help."""

import re
from pathlib import Path


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, "a process with memory"
    return int(found[1]) / 1024
