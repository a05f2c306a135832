"""The devices of smarter-device-manager as resources.

Its rules, from its sources: a pattern is searched for in the paths below /dev, to ten levels. Each
path that has it is a resource of its own, with the path in its name, and "_" for "/".
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles
from devhost.model import pattern
from devhost.model.pattern import PatternError

DOMAIN: Final = "smarter-devices"
_LITERAL: Final = re.compile(r"\^((?:[A-Za-z0-9/_:-]|\\.)+)\$")
_COUNT: Final = re.compile("0*[1-9][0-9]{0,8}")
_NVIDIA: Final = "nvidia-gpu"
_DIRECTORIES: Final = ("snd", "dri", "input", "dvb", "bus/usb")


def entries(
    devices: Sequence[dict[str, Any]], domain: str, known: Sequence[str], files: HostFiles
) -> Iterator[tuple[DraftEntry, tuple[str, ...]]]:
    """Yield each resource, and what cannot be carried over.

    Args:
        devices: The mappings with ``devicematch``.
        domain: The domain of the resources.
        known: The paths below /dev that nodes have.
        files: The host's files, to tell links and directories.
    """
    for device in devices:
        match, count = str(device["devicematch"]), str(device.get("nummaxdevices") or "0")
        for key in device:
            if key not in ("devicematch", "nummaxdevices"):
                yield draft.lost(f"{match}: unknown key {key!r}")
        if match == _NVIDIA:
            yield draft.lost(f"{match}: the GPU of a Jetson; use NVIDIA's device plugin")
        elif not _COUNT.fullmatch(count):
            yield draft.lost(f"{match}: nummaxdevices is {count}")
        else:
            yield from _matching(match, int(count), domain, known, files)


def _matching(
    match: str, count: int, domain: str, known: Sequence[str], files: HostFiles
) -> Iterator[tuple[DraftEntry, tuple[str, ...]]]:
    try:
        matches = _matches(match, known)
    except PatternError as error:
        yield draft.lost(f"{match}: {error}")
        return
    if not matches:
        yield draft.lost(
            f"{match}: nothing below /dev of this host matches, and each match is a resource of "
            "its own; name those of other nodes: --dev NAME"
        )
    for below in matches:
        path, name = f"/dev/{below}", f"{domain}/{below.replace('/', '_')}"
        resource: dict[str, Any] = {"name": name, "sources": [path]}
        is_directory = files.entries(path) is not None or below in _DIRECTORIES
        if is_directory:
            resource["sources"] = [{"glob": {"paths": path, "types": "directory"}}]
        if count > 1:
            resource["replicas"] = count
        if is_directory or files.is_link(path):
            resource["allocate"] = {"devices": ["${path}"]}
        yield DraftEntry(resource), ()


def _matches(match: str, known: Sequence[str]) -> list[str]:
    """Return the paths below /dev that a pattern means."""
    if literal := _LITERAL.fullmatch(match):
        return [re.sub(r"\\(.)", r"\1", literal[1])]
    whole = f"(?s:.*)(?:{match})(?s:.*)"
    return [one for one in known if pattern.fullmatch(whole, one) is not None]
