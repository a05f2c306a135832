"""What directories were like when they were scanned, so that a later change can be seen.

Some changes have no file event: on filesystems that others write too (NFS), and where something
is mounted. They show in a directory's device, inode or modification time, or among the mounts in
it (`devhost.hostfs.mounts.by_directory`).
"""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Final

Fingerprint = tuple[int, int, int]
"""Device, inode and modification time (ns); where there is none, the negative error number."""

Baseline = Mapping[str, Fingerprint | None]
"""By path; ``None`` where a change after the scan might leave the same fingerprint."""

# The coarsest clock of a filesystem that is in use (FAT) tells every second second.
_GRAIN_NS: Final = 2_000_000_000


def fingerprint(path: str) -> Fingerprint:
    """Return what a directory is like now. Blocks."""
    try:
        found = os.stat(path)
    except OSError as error:
        return -(error.errno or 0), 0, 0
    return found.st_dev, found.st_ino, found.st_mtime_ns


def baseline(paths: Iterable[str]) -> Baseline:
    """Return what directories are like before a scan reads them. Blocks."""
    return {path: _lasting(fingerprint(path)) for path in paths}


def _lasting(found: Fingerprint) -> Fingerprint | None:
    device, _, modified = found
    if device < 0:
        return found
    recent = abs(time.time_ns() - modified) < _GRAIN_NS
    return None if recent or modified == 0 else found  # 0: it keeps no times
