"""Which directories have to be watched so that a change at a place is not missed."""

import os
from dataclasses import dataclass

Identity = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Spot:
    """A directory to watch.

    Attributes:
        path: Where it is.
        recursive: Whether all below it counts.
        writes: Whether files that were written count, beside those that come, go or move.
    """

    path: str
    recursive: bool = False
    writes: bool = False


def places(spot: Spot) -> dict[Spot, Identity]:
    """Return the directories that have to be watched for a spot. Blocks.

    Whether writes count there is decided with all spots: inotify has one mask for a directory.
    """
    path = spot.path
    above = os.path.dirname(path.rstrip("/")) or "/"
    while not os.path.isdir(above) and above != "/":
        above = os.path.dirname(above)
    found = {Spot(path, spot.recursive): identity(path)} if os.path.isdir(path) else {}
    if found and spot.recursive:
        # To watch it walks it, where that holds up all. A mount that does not answer holds up
        # only this.
        for _ in os.walk(path):
            pass
    if above != path:
        found[Spot(above)] = identity(above)
    return found


def identity(path: str) -> Identity:
    """Return what tells a directory from another at its path."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def concerns(place: Spot, spot: Spot, paths: list[str]) -> bool:
    """Whether an event of a watch is of a spot, or only of its ancestor's other entries."""
    return place.path == spot.path or any(leads_to(path, spot.path) for path in paths)


def leads_to(path: str, wanted: str) -> bool:
    """Whether a path is that of another one, or of a directory above it."""
    return wanted == path or wanted.startswith(path.rstrip("/") + "/")
