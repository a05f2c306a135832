"""Which directories have to be watched so that a change at a place is not missed."""

import os

from devhost.immutable import immutable


@immutable
class Spot:
    """A directory to watch.

    Attributes:
        path: Where it is: absolute. It may be a link to a directory.
        recursive: Whether all below it counts; links below it are not followed.
        writes: Whether files that were written count, beside those that come, go or move.
    """

    path: str
    recursive: bool = False
    writes: bool = False


@immutable
class Places:
    """The directories that have to be watched for a spot, by their paths.

    Attributes:
        above: The nearest one above it that is there, if any is above it.
        inside: The spot's own, first, and where all below it counts, those; none if not there.
    """

    above: str | None
    inside: tuple[str, ...]


def places(spot: Spot) -> Places:
    """Look which directories have to be watched for a spot. Blocks.

    What is above a directory that is there is there too, and is not asked.
    """
    path, above = spot.path, _parent(spot.path)
    if os.path.isdir(path):
        inside = (path, *_below(path)) if spot.recursive else (path,)
    else:
        inside = ()
        while not os.path.isdir(above) and above != "/":
            above = _parent(above)
    return Places(None if above == path else above, inside)


def entry_towards(above: str, path: str) -> str:
    """Return the name in the directory ``above`` that leads to a path."""
    return path[len(above) :].lstrip("/").partition("/")[0]


def _parent(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or "/"


def _below(path: str) -> list[str]:
    found, pending = [], [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                here = [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # gone, or not to be read
        found += here
        pending += here
    return found
