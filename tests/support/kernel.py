"""The devices that a kernel shows in a sysfs below a root."""

import os
from collections.abc import Mapping
from pathlib import Path


def shows(
    root: Path,
    number: tuple[int, int],
    subsystem: str,
    name: str,
    *,
    below: Mapping[str, str] | None = None,
    files: Mapping[str, str | bytes] | None = None,
) -> None:
    """Add a character device to sysfs, part of others: the outermost first, with subsystems."""
    place = root / "sys/devices"
    for parent, kind in (below or {"virtual": ""}).items():
        place /= parent
        place.mkdir(parents=True, exist_ok=True)
        if kind:
            _belongs(root, place, kind)
    if subsystem != "usb":  # a class device
        place /= subsystem
    place /= name
    place.mkdir(parents=True)
    _belongs(root, place, subsystem)
    for path, content in (files or {}).items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    link = root / f"sys/dev/char/{number[0]}:{number[1]}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(place, link.parent))


def _belongs(root: Path, place: Path, subsystem: str) -> None:
    link = place / "subsystem"
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(root / "sys/class" / subsystem, place))
